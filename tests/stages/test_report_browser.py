"""The page in a real browser: nothing is asked for, nothing goes wrong, everything is drawn, read aloud, printed and fits."""

import re

import pytest

from routing.stages.peaks import PeakFiles
from routing.stages.report import ReportRequest, report
from tests.browser import Browser, chromium
from tests.conftest import REPOSITORY
from tests.stages.reported import reported_runs

pytestmark = pytest.mark.skipif(chromium() is None, reason="no Chromium here: apt-get install chromium")
PUBLISHED = REPOSITORY / "data" / "published"
NARROW = 380


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The report of two tiny runs with shared trajectories, and that of the published table with its measured peak."""
    folder = tmp_path_factory.mktemp("browser")
    runs, table = reported_runs(folder)
    report(ReportRequest(runs=tuple(runs), allowances=table, against=table, out=folder / "runs.html"))
    peaks = PeakFiles(peaks=PUBLISHED / "peaks.csv", waves=PUBLISHED / "waves.yaml")
    report(ReportRequest(runs=(), allowances=REPOSITORY / "allowances.yaml", peaks=peaks, out=folder / "published.html"))
    return {"runs": folder / "runs.html", "published": folder / "published.html"}


@pytest.fixture(scope="module")
def browser():
    one = Browser()
    yield one
    one.close()


@pytest.fixture(params=["runs", "published"])
def opened(request, browser, pages):
    browser.ask("Emulation.setDeviceMetricsOverride", width=1200, height=900, deviceScaleFactor=1, mobile=False)
    browser.open(pages[request.param])
    browser.value("document.querySelectorAll('details').forEach(one => { one.open = true })")
    return browser


def test_nothing_is_asked_for_and_no_error_is_said(opened):
    methods = [one["method"] for one in opened.events]
    asked = [one["params"]["request"]["url"] for one in opened.events if one["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith("file:")] == []
    assert len(asked) == 1
    assert not {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"} & set(methods)


def test_every_picture_is_drawn(opened):
    drawn = opened.value(
        "[...document.querySelectorAll('figure svg')].map(one => { const box = one.getBoundingClientRect();"
        " return [box.width, box.height, one.querySelectorAll('path[d], rect, line, text').length] })"
    )
    assert len(drawn) == opened.value("document.querySelectorAll('.panels > div').length") > 0
    assert all(width > 50 and height > 20 and marks > 5 for width, height, marks in drawn)


def test_tables_and_pictures_are_in_the_accessibility_tree_with_names(opened):
    nodes = [one for one in opened.ask("Accessibility.getFullAXTree")["nodes"] if not one["ignored"]]
    named = {
        role: [one["name"]["value"] for one in nodes if one["role"]["value"] in roles]
        for role, roles in {"table": ("table",), "picture": ("img", "image"), "header": ("columnheader",)}.items()
    }
    assert len(named["table"]) == opened.value("document.querySelectorAll('table').length") > 5
    assert len(named["picture"]) == opened.value("document.querySelectorAll('svg').length")
    assert all(name.strip() for names in named.values() for name in names)
    headings = [one["name"]["value"] for one in nodes if one["role"]["value"] == "heading"]
    assert headings[0].startswith("Routing audit")
    assert headings[1].startswith(("Holds.", "Open."))  # the verdict is what is read first


def test_it_prints(opened):
    printed = opened.pdf()
    assert printed.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", printed)) >= 2


def test_what_is_folded_on_a_screen_is_on_paper(opened):
    opened.value("document.querySelectorAll('details').forEach(one => { one.open = false })")
    drawn = (
        "[...new Set([...document.querySelectorAll('details')]"
        ".map(one => getComputedStyle(one, '::details-content').contentVisibility))]"
    )
    assert opened.value(drawn) == ["hidden"]
    opened.ask("Emulation.setEmulatedMedia", media="print")
    printed = opened.value(drawn)
    opened.ask("Emulation.setEmulatedMedia", media="")
    assert printed == ["visible"]


def test_a_narrow_screen_is_not_scrolled_sideways(opened):
    opened.ask("Emulation.setDeviceMetricsOverride", width=NARROW, height=800, deviceScaleFactor=1, mobile=False)
    assert opened.value("window.innerWidth") == NARROW
    assert opened.value("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)") <= NARROW


CONTRAST = """
(() => {
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(one => one / 255)
    .map(one => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
  const page = light(parts(getComputedStyle(document.body).backgroundColor));
  const inks = ['body', '.lead', '.small', '.tone', '.verdict .word', 'figure svg text'].map(one => document.querySelector(one))
    .filter(Boolean).map(one => getComputedStyle(one)).map(one => one.fill === 'rgb(0, 0, 0)' ? one.color : one.fill);
  return [page, Math.min(...inks.map(parts).map(light).map(one => (Math.max(one, page) + 0.05) / (Math.min(one, page) + 0.05)))];
})()
"""


def test_dark_and_light_are_both_readable(opened):
    found = {}
    for scheme in ("light", "dark"):
        opened.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        found[scheme] = opened.value(CONTRAST)
    assert found["light"][0] > 0.9 > 0.1 > found["dark"][0]
    assert min(contrast for _, contrast in found.values()) >= 4.5  # WCAG 2, level AA, for text of this size
