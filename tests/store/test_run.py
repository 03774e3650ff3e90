"""A run is read only through its manifest, and every damage to it is named before a number is."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from routing.core.errors import DamagedDataError, InputError, StorageError
from routing.store.content import content_hash, require_content
from routing.store.files import write_bytes
from routing.store.manifest import decode, encode
from routing.store.run import open_run, part_name, require_finished, writing
from tests.stores import write_tiny_run


@pytest.fixture
def run_folder(tmp_path):
    """Two trajectories that share segment 0; one layer of two experts, top-1; loads in two parts."""
    loads = [{(0, 0): [3, 2], (1, 0): [1, 0]}, {(2, 0): [0, 4]}]
    write_tiny_run(
        tmp_path / "run", paths=[[0, 1], [0, 2]], segment_tokens=[5, 1, 4], loads=loads, num_experts=2, top_k=1, layers=(0,)
    )
    return tmp_path / "run"


def test_a_sound_run_opens_without_notices(run_folder):
    run = open_run(run_folder)
    assert run.notices == ()
    assert run.read("loads")["routed_rows"].to_pylist() == [3, 2, 1, 0, 0, 4]


@pytest.mark.parametrize("table", ["segments", "trajectories", "paths", "loads"])
def test_a_flipped_bit_in_any_part_is_named(run_folder, table):
    path = run_folder / part_name(table, 0)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DamagedDataError, match=rf"{path.name}: altered"):
        open_run(run_folder)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all"])
def test_a_cut_or_foreign_part_is_named(run_folder, content):
    (run_folder / "loads-00001.parquet").write_bytes(content)
    with pytest.raises(DamagedDataError, match=r"loads-00001\.parquet: \d+ bytes, the manifest says"):
        open_run(run_folder)


def test_a_part_that_is_gone_is_named(run_folder):
    (run_folder / "loads-00000.parquet").unlink()
    with pytest.raises(DamagedDataError, match=r"loads-00000\.parquet: in the manifest, and not on disk"):
        open_run(run_folder)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_part_that_something_else_took_the_place_of_is_named(run_folder, make):
    (run_folder / "loads-00000.parquet").unlink()
    make(run_folder / "loads-00000.parquet")
    with pytest.raises(DamagedDataError, match=r"loads-00000\.parquet: in the manifest, and not a plain file"):
        open_run(run_folder)


def test_a_part_that_the_manifest_lacks_is_ignored_with_a_notice(run_folder):
    pq.write_table(pa.table({"segment_id": [9]}), run_folder / "loads-00009.parquet")
    (run_folder / "loads-00008.parquet.tmp-1").write_bytes(b"torn")
    run = open_run(run_folder)
    assert len(run.notices) == 1
    assert "loads-00009.parquet" in run.notices[0]
    assert run.read("loads").num_rows == 6


@pytest.mark.fault(
    "a part that is a symbolic link",
    how="a part moved out of the run and linked to",
    tries=1,
    outcome="refused, exit 3",
)
def test_a_part_that_is_a_link_is_refused(run_folder, tmp_path):
    path = run_folder / "loads-00000.parquet"
    path.rename(tmp_path / "elsewhere.parquet")
    path.symlink_to(tmp_path / "elsewhere.parquet")
    with pytest.raises(DamagedDataError, match="symbolic link"):
        open_run(run_folder)


def _edit_manifest(folder, edit):
    path = folder / "manifest.json"
    body = json.loads(path.read_text())
    edit(body)
    path.write_text(json.dumps(body))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda body: body["shape"].update(top_k=2), "altered after it was written"),
        (lambda body: body.update(schema_version=99), "schema_version 99"),
        (lambda body: body.pop("policy"), "missing or unknown fields"),
        (lambda body: body.update(extra=1), "missing or unknown fields"),
        (lambda body: body.update(parts="none"), "not of the kind"),
        (lambda body: body["parts"][0].update(num_rows="3"), "not of the kind int"),
        (lambda body: body["shape"].update(top_k=-1), "top_k=-1 is not positive"),
    ],
)
def test_an_edited_manifest_is_refused(run_folder, edit, message):
    _edit_manifest(run_folder, edit)
    with pytest.raises(DamagedDataError, match=message):
        open_run(run_folder)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"schema_version": 1, "schema_version": 1}', b"\xff\xfe", b"[" * 100_000])
def test_a_manifest_that_is_no_manifest_is_refused_in_one_line(run_folder, raw):
    (run_folder / "manifest.json").write_bytes(raw)
    with pytest.raises(DamagedDataError) as refusal:
        open_run(run_folder)
    assert "\n" not in str(refusal.value)


@pytest.mark.fault(
    "a part name that leaves the run's folder",
    how="a resealed manifest that names ../loads-00000.parquet",
    tries=1,
    outcome="refused, exit 3, before it is opened",
)
def test_a_part_name_that_leaves_the_run_is_refused(run_folder, tmp_path, monkeypatch):
    (tmp_path / "loads-00000.parquet").write_bytes((run_folder / "loads-00000.parquet").read_bytes())
    from routing.store import manifest as manifests

    monkeypatch.setattr(manifests, "_self_hash", lambda _body: "same")
    _edit_manifest(
        run_folder, lambda body: (body["parts"][-1].update(name="../loads-00000.parquet"), body.update(manifest_sha256="same"))
    )
    with pytest.raises(DamagedDataError, match="no part of a run"):
        open_run(run_folder)


def test_a_folder_without_a_run_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="no run here"):
        open_run(tmp_path)
    with pytest.raises(InputError, match="no run here"):
        open_run(tmp_path / "missing")


def test_an_unfinished_run_says_how_far_it_is(tmp_path):
    run = write_tiny_run(
        tmp_path / "run",
        paths=[[0]],
        segment_tokens=[5],
        loads={(0, 0): [3, 2]},
        num_experts=2,
        top_k=1,
        layers=(0,),
        is_finished=False,
    )
    with pytest.raises(InputError, match="1 of 1 parts; run the same routing measure again"):
        require_finished(run)


def test_the_content_hash_ignores_how_the_loads_were_cut_into_parts(tmp_path):
    rows = {(0, 0): [3, 2], (1, 0): [1, 0], (2, 0): [0, 4]}
    cuts = ([rows], [{(0, 0): [3, 2]}, {(1, 0): [1, 0], (2, 0): [0, 4]}], [{(2, 0): [0, 4]}, {(0, 0): [3, 2], (1, 0): [1, 0]}])
    hashes = set()
    for number, loads in enumerate(cuts):
        run = write_tiny_run(
            tmp_path / f"run{number}",
            paths=[[0, 1], [0, 2]],
            segment_tokens=[5, 1, 4],
            loads=loads,
            num_experts=2,
            top_k=1,
            layers=(0,),
        )
        hashes.add(content_hash(run))
    assert len(hashes) == 1


def test_the_content_hash_sees_one_row_moved(tmp_path):
    same = {"paths": [[0]], "segment_tokens": [5], "num_experts": 2, "top_k": 1, "layers": (0,)}
    one = write_tiny_run(tmp_path / "one", loads={(0, 0): [3, 2]}, **same)
    other = write_tiny_run(tmp_path / "other", loads={(0, 0): [2, 3]}, **same)
    assert content_hash(one) != content_hash(other)


def test_a_segment_counted_twice_with_other_rows_is_damage(tmp_path):
    with pytest.raises(DamagedDataError, match="segment 0 was counted twice"):
        write_tiny_run(
            tmp_path / "run",
            paths=[[0]],
            segment_tokens=[5],
            loads=[{(0, 0): [3, 2]}, {(0, 0): [2, 3]}],
            num_experts=2,
            top_k=1,
            layers=(0,),
        )


def test_loads_of_a_segment_that_the_run_lacks_are_damage(tmp_path):
    with pytest.raises(DamagedDataError, match="loads of segment 7"):
        write_tiny_run(
            tmp_path / "run", paths=[[0]], segment_tokens=[5], loads={(0, 0): [3, 2], (7, 0): [1, 0]}, num_experts=2, top_k=1
        )


def test_a_table_without_parts_is_empty(tmp_path):
    run = write_tiny_run(tmp_path / "run", paths=[[0]], segment_tokens=[5], loads=[], num_experts=2, top_k=1, is_finished=False)
    assert run.read("loads").num_rows == 0


def _resealed(folder, change):
    """The manifest changed and hashed anew, as somebody would who means to."""
    manifest = decode((folder / "manifest.json").read_bytes(), where="here")
    (folder / "manifest.json").write_bytes(encode(change(manifest)))


@pytest.mark.parametrize("table", ["segments", "trajectories", "paths", "loads"])
def test_a_finished_run_that_lacks_a_table_is_damage(run_folder, table):
    _resealed(run_folder, lambda m: replace(m, parts=tuple(part for part in m.parts if part.table != table)))
    with pytest.raises(DamagedDataError, match=f"a finished run with 0 parts of {table}"):
        open_run(run_folder)


def test_loads_that_another_run_measured_are_damage_though_every_part_is_vouched_for(run_folder):
    _resealed(run_folder, lambda m: replace(m, content_hash="0" * 64))
    with pytest.raises(DamagedDataError, match="not the loads that were measured"):
        require_content(open_run(run_folder))


def test_nan_in_a_manifest_is_damage(run_folder):
    _resealed(run_folder, lambda m: replace(m, elapsed_s=float("nan")))
    with pytest.raises(DamagedDataError, match="NaN is no number"):
        open_run(run_folder)


@pytest.mark.parametrize("change", [{"elapsed_s": 1e308}, {"planned_tokens": 10**19}, {"halvings": -1}, {"elapsed_s": -0.5}])
def test_a_number_that_no_run_has_is_damage(run_folder, change):
    _resealed(run_folder, lambda m: replace(m, **change))
    with pytest.raises(DamagedDataError, match="is no count, size or time of a run"):
        open_run(run_folder)


def test_text_that_nothing_could_print_in_a_manifest_is_damage(run_folder):
    _resealed(run_folder, lambda m: replace(m, label="\udcff"))
    with pytest.raises(DamagedDataError, match="surrogates"):
        open_run(run_folder)


def test_a_path_that_is_no_text_is_refused(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff/run"))
    for act in (open_run, lambda one: writing(one).__enter__()):
        with pytest.raises(InputError, match="not UTF-8"):
            act(folder)


def test_a_loop_of_links_is_no_run(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises((InputError, StorageError)):
        open_run(tmp_path / "loop")


@pytest.mark.fault(
    "an --out that is a link, a pipe or a folder",
    how="written to",
    tries=3,
    outcome="refused, exit 2; the thing stays as it was",
)
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_only_a_plain_file_is_replaced(tmp_path, kind):
    target = tmp_path / "target"
    {"link": lambda: target.symlink_to("elsewhere"), "pipe": lambda: os.mkfifo(target), "folder": target.mkdir}[kind]()
    with pytest.raises(InputError, match="not a plain file, so not replaced"):
        write_bytes(target, b"new")
    assert [one.name for one in tmp_path.iterdir()] == ["target"]


@pytest.mark.fault(
    "a run name with a blank, a leading dot, 65 letters, other letters",
    how="a run begun under each",
    tries=4,
    outcome="refused, exit 2, nothing made",
)
@pytest.mark.parametrize("name", [".hidden", "a b", "x" * 65, "über"])
def test_a_run_name_is_plain(tmp_path, name):
    with pytest.raises(InputError, match="a run's name"), writing(tmp_path / name):
        pass


def test_a_writer_that_fails_leaves_the_old_file_and_no_temporary(tmp_path, monkeypatch):
    target = tmp_path / "file"
    write_bytes(target, b"old")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"file: not written, No space left on device after 3 bytes"):
        write_bytes(target, b"new")
    assert target.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
