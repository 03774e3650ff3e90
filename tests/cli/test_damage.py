"""Whatever happened to a file of ours, it is named in one line before any number is printed, exit code 3; or it changes nothing.

Every file of a tiny run, and a table fitted from it, times every damage, asked through every verb that reads it.
"""

import json
import os
import random
import shutil

import pytest

from routing import open_run
from routing.core.errors import DamagedDataError
from routing.store.allowances import read_table
from tests.stores import write_tiny_run

PARTS = ("segments-00000", "trajectories-00000", "paths-00000", "loads-00000", "loads-00001")
RUN_FILES = ("manifest.json", *(f"{part}.parquet" for part in PARTS))
NUM_FLIPS = 16  # of every file, seeded
SIZES = ("--batch-tokens", "20,10", "--ep", "2,4")
NAMED = "named in one line, exit 3, nothing printed"


def _write(folder, *, moved):
    """Four trajectories of 10 tokens with a shared head of 5; `moved` rows lie on another expert than in the other run."""
    tokens = [5, 5, 5, 5, 5]
    loads = [{(segment, 0): [6 - moved, 2 + moved, 1, 1] for segment in ones} for ones in ((0, 1, 2), (3, 4))]
    paths = [[0, segment] for segment in (1, 2, 3, 4)]
    write_tiny_run(folder, paths=paths, segment_tokens=tokens, loads=loads, num_experts=4, top_k=2, label=f"moved {moved}")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run, another of the same tree whose loads and label differ, and a table fitted from the first."""
    folder = tmp_path_factory.mktemp("damage")
    _write(folder / "run", moved=1)
    _write(folder / "other" / "run", moved=2)
    # another corpus too, so that no file of the two is the same
    tree = {"paths": [[0], [1]], "segment_tokens": [10, 10], "num_experts": 4, "top_k": 2}
    write_tiny_run(folder / "foreign", loads=[{(0, 0): [8, 8, 2, 2]}, {(1, 0): [9, 7, 2, 2]}], **tree)
    return folder


@pytest.fixture
def sound(made, tmp_path, invoke):
    """A copy of the run to damage, and a table beside it."""
    shutil.copytree(made / "run", tmp_path / "run")
    if not (made / "table.yaml").exists():
        assert invoke("fit", made / "run", *SIZES, "--out", made / "table.yaml")[0] == 0
    shutil.copy(made / "table.yaml", tmp_path / "table.yaml")
    return tmp_path


def _asked(folder, *, of_table):
    """Every verb that reads the run, or the table, with what it prints."""
    run, table = folder / "run", folder / "table.yaml"
    report = ("report", run, "--allowances", table, "--out", folder / "r.html")
    both = (("check", table, run), report, ("verify", table, "--runs", run))
    if of_table:
        asked = ("--ep", "2", "--batch-tokens", "20", "--for", "automodel")
        return (*both, ("allowance", "--allowances", table, *asked))
    return (
        ("imbalance", run, *SIZES),
        ("fit", run, *SIZES, "--out", folder / "new.yaml"),
        ("verify", run),
        ("sql", run, "SELECT COUNT(*) FROM loads"),
        ("show", run),
        *both,
    )


def _require_named(invoke, folder, *, of_table=False, names=("",)):
    """Every verb ends with exit code 3, prints and writes nothing, and says it in one line."""
    before = sorted(os.listdir(folder))
    for asked in _asked(folder, of_table=of_table):
        code, out, err = invoke(*asked)
        said = [line for line in err.splitlines() if line.startswith("routing: ")]
        assert (code, out, len(said)) == (3, "", 1), (asked[0], code, out, err)
        assert any(name in said[0] for name in names), said
        assert "Traceback" not in err
    assert sorted(os.listdir(folder)) == before
    with pytest.raises(DamagedDataError):
        read_table(folder / "table.yaml") if of_table else open_run(folder / "run")


def test_the_sound_files_answer(invoke, sound):
    """What the matrix damages is in order before: else every row of it would hold."""
    for of_table in (False, True):
        for asked in _asked(sound, of_table=of_table):
            if asked[0] != "report":  # whose drawing costs seconds
                code, out, err = invoke(*asked)
                assert (code, bool(out)) == (0, True), (asked, err)


def _truncate(raw, draw):
    return raw[: draw.randrange(1, len(raw))]


@pytest.mark.fault("a truncated file of a run", how="cut at a drawn byte", tries=6 * 3, outcome=NAMED)
@pytest.mark.parametrize("name", RUN_FILES)
def test_a_truncated_file_is_named(invoke, sound, name):
    path, draw = sound / "run" / name, random.Random(name)
    raw = path.read_bytes()
    for cut in (raw[:-2], raw[:4], _truncate(raw, draw)):  # a manifest ends with a line's end, which says nothing
        path.write_bytes(cut)
        with pytest.raises(DamagedDataError, match=name):
            open_run(sound / "run")
    _require_named(invoke, sound, names=[name])


@pytest.mark.fault("an empty file of a run", how="cut to no byte", tries=6, outcome=NAMED)
@pytest.mark.parametrize("name", RUN_FILES)
def test_an_empty_file_is_named(invoke, sound, name):
    (sound / "run" / name).write_bytes(b"")
    _require_named(invoke, sound, names=[name])


@pytest.mark.fault(
    "a bit flipped in a file of a run",
    how="16 drawn bits of each file, one at a time",
    tries=6 * NUM_FLIPS,
    outcome=NAMED,
)
@pytest.mark.parametrize("name", RUN_FILES)
def test_a_flipped_bit_is_named(invoke, sound, name):
    path, draw = sound / "run" / name, random.Random(name)
    raw = path.read_bytes()
    for flip in range(NUM_FLIPS):
        path.write_bytes(_flipped(raw, draw))
        if flip:
            with pytest.raises(DamagedDataError, match=name):
                open_run(sound / "run")
        else:
            _require_named(invoke, sound, names=[name])


def _flipped(raw, draw, *, after=0):
    place = draw.randrange(after, len(raw))
    return raw[:place] + bytes([raw[place] ^ 1 << draw.randrange(8)]) + raw[place + 1 :]


@pytest.mark.fault(
    "a file of another run in a run",
    how="each file in turn replaced by its namesake of another corpus",
    tries=6,
    outcome=NAMED,
)
@pytest.mark.parametrize("name", RUN_FILES)
def test_a_file_of_another_run_is_named(invoke, sound, made, name):
    """A manifest in the wrong place names the first part that is not its own."""
    shutil.copy(made / "foreign" / name, sound / "run" / name)
    _require_named(invoke, sound, names=RUN_FILES if name == "manifest.json" else [name])


@pytest.mark.fault(
    "loads of another policy on the same trajectories",
    how="loads and manifest swapped, one at a time",
    tries=3,
    outcome=NAMED,
)
@pytest.mark.parametrize("name", ["manifest.json", "loads-00000.parquet", "loads-00001.parquet"])
def test_loads_of_another_policy_are_named(invoke, sound, made, name):
    shutil.copy(made / "other" / "run" / name, sound / "run" / name)
    _require_named(invoke, sound, names=["loads-0000"])


@pytest.mark.fault(
    "a renamed file of a run",
    how="each file renamed, parts to a name that a part could have",
    tries=6,
    outcome=NAMED,
)
@pytest.mark.parametrize("name", RUN_FILES)
def test_a_renamed_file_is_named(invoke, sound, name):
    (sound / "run" / name).rename(sound / "run" / name.replace("0000", "0007").replace("manifest", "manifest.old"))
    _require_named(invoke, sound, names=[name])


@pytest.mark.fault("a deleted file of a run", how="each file removed", tries=6, outcome=NAMED)
@pytest.mark.parametrize("name", RUN_FILES)
def test_a_deleted_file_is_named(invoke, sound, name):
    (sound / "run" / name).unlink()
    _require_named(invoke, sound, names=[name])


def _values(body, path=()):
    """The path of every number and text in a JSON body."""
    if isinstance(body, dict | list):
        for key, value in body.items() if isinstance(body, dict) else enumerate(body):
            yield from _values(value, (*path, key))
    elif body is not None:
        yield path


@pytest.mark.fault(
    "a manifest edited by hand",
    how="each of its values in turn changed to another of its kind",
    tries=74,
    outcome=NAMED,
)
def test_any_edited_value_of_a_manifest_is_named(invoke, sound):
    path = sound / "run" / "manifest.json"
    body = json.loads(path.read_text())
    tried = 0
    for place in _values(body):
        edited = json.loads(json.dumps(body))
        holder = edited
        for key in place[:-1]:
            holder = holder[key]
        old = holder[place[-1]]
        holder[place[-1]] = not old if isinstance(old, bool) else old + 1 if isinstance(old, int | float) else f"{old}x"
        path.write_text(json.dumps(edited, indent=1))
        with pytest.raises(DamagedDataError, match=r"manifest\.json"):
            open_run(sound / "run")
        tried += 1
    _require_named(invoke, sound, names=["manifest.json"])
    assert tried == 74


@pytest.mark.fault(
    "a damaged answer in a run's cache",
    how="emptied, cut, a bit flipped, another answer's bytes",
    tries=6,
    outcome="counted again, the same answer",
)
def test_a_damaged_cache_changes_no_answer(invoke, sound):
    asked = ("imbalance", sound / "run", *SIZES, "--json")
    whole = invoke(*asked)
    assert invoke("imbalance", sound / "run", "--batch-tokens", "15", "--json")[0] == 0
    first, second = sorted((sound / "run" / "cache").glob("imbalance-*.json"), key=lambda one: one.stat().st_mtime_ns)
    raw, draw = first.read_bytes(), random.Random(1)
    for content in (b"", raw[:-40], second.read_bytes(), *(_flipped(raw, draw) for _ in range(3))):
        first.write_bytes(content)
        assert invoke(*asked) == whole


TABLE = "table.yaml"


@pytest.mark.fault("a truncated or empty allowance table", how="cut at three drawn bytes, and to none", tries=4, outcome=NAMED)
def test_a_truncated_table_is_named(invoke, sound):
    path, draw = sound / TABLE, random.Random(2)
    raw = path.read_bytes()
    for cut in (b"", *(_truncate(raw[: raw.rindex(b"content_hash")], draw) for _ in range(3))):
        path.write_bytes(cut)
        _require_named(invoke, sound, of_table=True, names=[TABLE])


@pytest.mark.fault(
    "a bit flipped in an allowance table",
    how="48 drawn bits, one at a time",
    tries=48,
    outcome="named by its line, exit 3; or the table reads as it was written",
)
def test_a_flipped_bit_of_a_table_is_named(invoke, sound):
    path, draw = sound / TABLE, random.Random(3)
    raw, whole = path.read_bytes(), read_table(path)
    num_named = 0
    for flip in range(48):
        path.write_bytes(_flipped(raw, draw, after=raw.index(b"schema_version")))
        if _is_named(path):
            num_named += 1
        else:
            assert read_table(path) == whole
        if flip == 0:
            _require_named(invoke, sound, of_table=True, names=[TABLE])
    assert num_named > 43


def _is_named(path):
    try:
        read_table(path)
    except DamagedDataError as error:
        return str(error).startswith(f"{path}:")
    return False


@pytest.mark.fault(
    "an allowance table edited by hand",
    how="one digit of an allowance, a count, a hash and a line taken out",
    tries=4,
    outcome=NAMED,
)
@pytest.mark.parametrize("key", ["allowance: ", "num_batches: ", "content_hash: ", "  status: "])
def test_an_edited_table_is_named(invoke, sound, key):
    path = sound / TABLE
    path.write_text(path.read_text().replace(key, "  # " if key == "  status: " else f"{key}1", 1))
    _require_named(invoke, sound, of_table=True, names=[TABLE])


@pytest.mark.fault(
    "the allowance table of another run",
    how="the table of one run verified against another of the same model",
    tries=1,
    outcome="the run that it rests on named, exit 1",
)
def test_a_table_of_another_run_is_named(invoke, sound, made):
    code, out, err = invoke("verify", sound / TABLE, "--runs", made / "other" / "run")
    assert (code, out) == (1, "")
    assert "rests on a run 'run' with content hash" in err
