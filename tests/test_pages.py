"""The pages and the notebook can't rot: what they run is run as it stands, over runs of the demo's names."""

import json
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest
import typer

from pipelines.write_docs import verbs
from routing.cli.app import app
from tests.conftest import REPOSITORY
from tests.pages import ENVIRONMENT, PAGES, RUN_BY, forms_of, read_page, run_page
from tests.stores import random_loads, write_tiny_run

DECISIONS = sorted(page.name for page in (REPOSITORY / "docs" / "decisions").glob("*.md"))
# What a kernel does with a notebook: every cell in one namespace, the value of its last expression shown.
RUN_CELLS = """
import ast, json, sys
names, shown = {"__name__": "__main__"}, []
for cell in json.load(sys.stdin):
    tree = ast.parse("".join(cell["source"]))
    assert isinstance(tree.body[-1], ast.Expr), "a cell ends with what it shows"
    last = ast.Expression(tree.body.pop().value)
    exec(compile(tree, "cell", "exec"), names)
    value = eval(compile(last, "cell", "eval"), names)
    getattr(value, "to_json", lambda: None)() if type(value).__module__.startswith("altair") else repr(value)
    shown.append(type(value).__name__)
print(json.dumps(shown))
"""
# Files whose links are held too, though nothing in them runs.
LINKED = (*PAGES, "CHANGELOG.md", "CONTRIBUTING.md", "data/README.md", *(f"docs/decisions/{name}" for name in DECISIONS))
COMMANDS = verbs(typer.main.get_command(app))


@pytest.fixture(scope="module")
def demo_runs(tmp_path_factory):
    """Runs of the demo's names, 60,000 tokens each: three full batches of 20k, simulated."""
    made = tmp_path_factory.mktemp("demo")
    tokens = [1000] * 60
    for seed, name in enumerate(("demo-trained", "demo-untrained")):
        rng = np.random.default_rng(seed)
        loads = random_loads(rng, segment_tokens=tokens, layers=(0, 1), num_experts=8, top_k=2)
        paths = [[segment, segment + 1] for segment in range(0, 60, 2)]
        write_tiny_run(
            made / name,
            paths=paths,
            segment_tokens=tokens,
            loads=loads,
            num_experts=8,
            top_k=2,
            layers=(0, 1),
            label=f"simulated, {name}",
        )
    return made


@pytest.fixture
def folder(tmp_path, demo_runs):
    """A reader's checkout, as far as pages need one, after a demo."""
    for name in ("data", "allowances.yaml"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    shutil.copytree(demo_runs, tmp_path / "runs")
    return tmp_path


@pytest.mark.parametrize("page", [page for page in PAGES if page not in RUN_BY])
def test_every_block_of_a_page_runs_and_prints_what_the_page_shows(page, folder):
    run_page(page, folder)


def test_every_page_is_run_somewhere():
    assert set(RUN_BY) <= set(PAGES)
    assert [page for page, test in RUN_BY.items() if f'run_page("{page}"' not in read_page(test)] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_command_line_takes_every_form_and_knows_every_flag_that_a_page_names(page):
    text = read_page(page)
    for form in forms_of(text):
        name, command, arguments = _verb_of(shlex.split(form.partition(" > ")[0])[1:])
        command.make_context(name, arguments)  # read as the program reads it, and not run
    for words in re.findall(r"`routing ([^`]+)`", text):
        _, command, arguments = _verb_of(words.split())
        flags = {flag for one in command.params for flag in one.opts} | {"--help"}
        assert [word for word in arguments if word.startswith("--") and word not in flags] == [], f"{page}: routing {words}"


def _verb_of(words):
    """(verb, its command, the words behind it)."""
    for size in (2, 1):
        if (name := " ".join(words[:size])) in COMMANDS:
            return name, COMMANDS[name], words[size:]
    (group,) = {name.split()[0] for name in COMMANDS if name.startswith(f"{words[0]} ")}
    return group, typer.main.get_command(app).commands[group], words[1:]


@pytest.mark.parametrize("page", PAGES)
def test_every_module_and_target_that_a_page_names_exists(page):
    text, makefile = read_page(page), read_page("Makefile")
    for module in re.findall(r"python -m (pipelines[\w.]+)", text):
        path = REPOSITORY / module.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").exists(), f"{page}: {module}"
    for target in re.findall(r"(?:`|^)make ([a-z]+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page}: make {target}"


@pytest.mark.parametrize("page", LINKED)
def test_every_link_of_a_page_leads_somewhere(page):
    here = (REPOSITORY / page).parent
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", read_page(page), flags=re.MULTILINE | re.DOTALL)
    for target, _, heading in re.findall(r"\]\((?!https?:)([^)#\s]*)(#([^)\s]+))?\)", prose):
        found = here / target if target else REPOSITORY / page
        assert found.exists(), f"{page}: {target}"
        assert not heading or heading in _headings(found.read_text(encoding="utf-8")), f"{page}: {target}#{heading}"


def _headings(text):
    """What GitHub calls the headings of a page in its links."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_notebook_runs_from_a_clean_process_and_is_stored_without_output(folder):
    book = json.loads((REPOSITORY / "docs" / "explore.ipynb").read_text())
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert [cell["outputs"] for cell in cells] == [[] for _ in cells]
    done = subprocess.run(
        [sys.executable, "-c", RUN_CELLS],
        input=json.dumps(cells),
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == ["DataFrame", "Chart", "Chart", "DataFrame", "DataFrame"]
