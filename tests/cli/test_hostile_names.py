"""Names, paths and files are somebody's: they can't steer the terminal, and no password or token of theirs is shown or kept."""

import ast
import json

import pytest
from rich.console import Console

from routing.cli.plain import plain, without_secrets
from routing.cli.progress import StderrProgress
from routing.store.run import MANIFEST_NAME
from tests.conftest import REPOSITORY
from tests.policies import write_tiny_policy
from tests.stores import write_tiny_run

# Rich's markup and emoji, a cleared screen, a window title, a line drawn backwards, a lone surrogate, a bell.
EVIL = "[red]x[/red]:warning:\x1b[2J\x1b]0;owned\x07\u202etxet\x9b1m"
SHOWN = r"[red]x[/red]:warning:\x1b[2J\x1b]0;owned\x07\u202etxet\x9b1m"
PASSWORD, TOKEN = "hunter2", "hf_" + "aB3" * 11


def is_plain(text):
    return all(one.isprintable() or one == "\n" for one in text)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return write_tiny_policy(tmp_path_factory.mktemp("hostile") / "tiny")


@pytest.fixture(scope="module")
def evil_run(tmp_path_factory):
    """A run whose manifest and units hold such names, below a folder of quotes; rows 50 + s : 50 - s in segment s."""
    folder = tmp_path_factory.mktemp("it's \"quoted\"; DROP TABLE loads --") / "run"
    loads = {(segment, 0): [50 + segment, 50 - segment] for segment in range(4)}
    units = [f"{EVIL}/{segment}" for segment in range(4)]
    paths = [[segment] for segment in range(4)]
    write_tiny_run(
        folder, paths=paths, segment_tokens=[100] * 4, loads=loads, num_experts=2, top_k=1, label=EVIL, units=units
    )
    return folder


@pytest.mark.fault(
    "terminal escape sequences, markup and emoji names in a label or a unit",
    how="a run whose manifest and trajectories hold them, through seven verbs as tables",
    tries=7,
    outcome="every one shown letter by letter; stdout and stderr hold printable characters alone",
)
def test_a_name_is_shown_letter_by_letter_in_every_table(invoke, evil_run, tmp_path):
    table = tmp_path / "a.yaml"
    size = ("--batch-tokens", "100")
    for command in (
        ["show", evil_run],
        ["imbalance", evil_run, "--ep", "2", *size],
        ["fit", evil_run, "--ep", "2", *size, "--out", table],
        ["check", table, evil_run],
        ["report", evil_run, "--allowances", table, "--out", tmp_path / "page.html"],
        ["explain", table, "--wave", tmp_path / f"{EVIL.replace('/', '')}.yaml"],
        ["sql", evil_run, "SELECT unit, label FROM trajectories ORDER BY unit", "--format", "table"],
    ):
        code, out, err = invoke(*command)
        assert "Traceback" not in err
        assert is_plain(out + err), command[0]
        assert code == (2 if command[0] == "explain" else 0), err
        if command[0] in ("show", "imbalance", "check", "sql"):
            assert SHOWN in out


@pytest.mark.fault(
    "quotes and SQL in the path of a run",
    how="""a run below a folder named it's "quoted"; DROP TABLE loads --""",
    tries=1,
    outcome="the run is read itself and its rows are right",
)
def test_quotes_in_a_path_are_no_sql(invoke, evil_run):
    code, out, err = invoke("sql", evil_run, "SELECT sum(routed_rows) AS n FROM loads WHERE expert = 0", "--json")
    assert (code, json.loads(out)["rows"]) == (0, [{"n": 50 + 51 + 52 + 53}]), err


def test_csv_in_a_pipe_is_the_value_and_in_a_terminal_what_can_be_shown(invoke, evil_run, monkeypatch):
    query = ("sql", evil_run, "SELECT unit FROM trajectories ORDER BY unit LIMIT 1", "--format", "csv")
    assert f"{EVIL}/0" in invoke(*query)[1]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert f"{SHOWN}/0" in invoke(*query)[1]


def test_an_error_names_a_path_letter_by_letter(invoke, tmp_path):
    code, out, err = invoke("imbalance", tmp_path / EVIL.replace("/", ""))
    assert (code, out) == (2, "")
    assert is_plain(err)
    assert r"\x1b[2J" in err


def test_progress_takes_no_markup_and_no_escape_from_a_label(capsys):
    with StderrProgress() as progress:
        progress.note(EVIL)
    assert capsys.readouterr().err == SHOWN + "\n"


def test_a_bar_takes_no_markup_and_no_escape_from_a_label():
    progress = StderrProgress()
    progress._console = Console(force_terminal=True, width=200)
    with progress:
        progress.begin(f"measuring {EVIL}", 10)
        (task,) = progress._bar.tasks
        assert progress._bar.columns[0].render(task).plain == f"measuring {SHOWN}"


def test_only_one_module_writes_to_the_terminal():
    """What is printed elsewhere would pass the escapes of a name."""
    for path in sorted((REPOSITORY / "routing").rglob("*.py")):
        if path.name == "plain.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                is_method = isinstance(node.func, ast.Attribute)
                assert called not in ("echo", "secho", "Console"), path
                assert called != "print" or is_method, path  # of a PlainConsole


def test_text_that_can_be_shown_is_left_alone():
    text = "café 中文 🙂 — a/b_c-d.e [1] 'x' \"y\"\nsecond\tline"
    assert plain(text) == text
    assert plain("\x1b[31m\u2028\u200f\x00\ud800") == r"\x1b[31m\u2028\u200f\x00\ud800"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"https://me:{PASSWORD}@host/adapter", "https://***@host/adapter"),
        (f"no such folder s3://{TOKEN}@host:9/x y@z", "no such folder s3://***@host:9/x y@z"),
        (f"--revision={TOKEN}", "--revision=***"),
        ("org/name@main", "org/name@main"),
        ("https://host/path@2", "https://host/path@2"),
        ("hf_hub_offline", "hf_hub_offline"),
    ],
)
def test_a_password_and_a_token_are_starred_and_nothing_else(text, shown):
    assert without_secrets(text) == shown


@pytest.mark.fault(
    "a password in an address, a hub token in the environment or on the command line",
    how="given as --adapter, as policy, as --engine and in HF_TOKEN",
    tries=4,
    outcome="neither in the manifest nor in a printed line",
)
def test_no_secret_is_shown_or_kept(invoke, policy, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"text": "hello there"}\n')
    address = f"https://me:{PASSWORD}@host/adapter"
    for arguments in ([policy, corpus, "--adapter", address], [address, corpus]):
        code, out, err = invoke("measure", *arguments, "--out", tmp_path / "none")
        assert (code, out) == (2, "")
        assert PASSWORD not in err
    code, out, err = invoke("import", "counts", corpus, "--engine", address, "--top-k", "1", "--out", tmp_path / "none")
    assert (code, out) == (2, "")
    assert PASSWORD not in err
    code, out, err = invoke("measure", policy, corpus, "--out", tmp_path / "run", "--domain", TOKEN)
    assert code == 0, err
    kept = (tmp_path / "run" / MANIFEST_NAME).read_text()
    assert TOKEN not in kept + out + err
    assert json.loads(kept)["command"][-2:] == ["--domain", "***"]
