"""Whatever call of the writer fails: what stood stands, no temporary is left, the same command ends like an untouched one."""

import errno
import io
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from routing.core.errors import StorageError
from routing.measure.policy import load_policy
from routing.stages import begin
from routing.stages.fit import fit
from routing.stages.import_counts import CountsRequest, import_counts
from routing.stages.measure import measure_prepared
from routing.store import files
from routing.store.allowances import read_table
from routing.store.files import write_bytes
from routing.store.run import MANIFEST_NAME, open_run, read_manifest, working, writing
from tests.faulty_disk import FaultyDisk, ShortFile, Written, fail_each_call
from tests.stages.conftest import Listener, build_request
from tests.stores import write_tiny_run

HOW = "the first call of a kind fails, then the second, until all have: open, half a write, fsync, rename, read"
OUTCOME = "exit 4 with the file named, old files whole, no temporary, no lock; the same command ends like an untouched one"
# A measurement writes its manifest at the start, with the settings, with the walk and at the end, and again with each part.
NUM_PARTS = 5  # segments, trajectories, paths, two of loads
MEASURE_WRITES = 4 + 2 * NUM_PARTS


def calls_of(writes, reads):
    """How many calls of each kind `writes` files take, of which `reads` are read again: two fsyncs, of file and folder."""
    return {"open": writes, "write": writes, "fsync": 2 * writes, "rename": writes, "open folder": writes, "read": reads}


def _fail_all(written, calls):
    assert {kind: fail_each_call(kind, written) for kind in calls} == calls


def _look_at_run(folder):
    if (folder / MANIFEST_NAME).exists():
        open_run(folder)


@pytest.fixture(scope="module")
def measuring(policy_folder, corpus_file, tmp_path_factory):
    """Measures a few trajectories in two parts into a folder, the policy loaded once for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(begin, "TOKENS_PER_PART", 250)
        request = build_request(policy_folder, corpus_file, tmp_path_factory.mktemp("disk") / "run", max_tokens=800)
        prepared = begin.prepare(request, Listener())
    assert prepared.manifest.planned_load_parts == NUM_PARTS - 3
    policy = load_policy(prepared.files, device=prepared.device, dtype=prepared.dtype)
    return lambda out: measure_prepared(out, prepared, Listener(), load=lambda: policy)


@pytest.mark.fault(
    "a full disk, or an I/O error, in a measurement", how=HOW, tries=2 * MEASURE_WRITES + NUM_PARTS, outcome=OUTCOME
)
def test_a_measurement_outlives_every_failing_call(measuring, tmp_path):
    out = tmp_path / "run"
    written = Written(
        folder=tmp_path,
        begin=lambda: shutil.rmtree(out, ignore_errors=True),
        operate=lambda: measuring(out),
        look=lambda: _look_at_run(out),
        result=lambda: read_manifest(out).content_hash,
    )
    calls = calls_of(MEASURE_WRITES, NUM_PARTS)
    _fail_all(written, {kind: calls[kind] for kind in ("write", "rename", "read")})  # the others in an import, which is faster


@pytest.mark.fault("short writes", how="each write of a measurement takes seven bytes", tries=1, outcome="the same content hash")
def test_short_writes_change_nothing(measuring, tmp_path, monkeypatch):
    measuring(tmp_path / "whole")
    opened = []

    def short(path, mode):
        opened.append(path)
        return io.BufferedWriter(ShortFile(path, mode), buffer_size=16) if mode == "wb" else open(path, mode)

    monkeypatch.setattr(files, "open", short, raising=False)
    measuring(tmp_path / "short")
    assert len(opened) == MEASURE_WRITES + NUM_PARTS
    assert open_run(tmp_path / "short").manifest.content_hash == read_manifest(tmp_path / "whole").content_hash


# An import writes no settings of its own, and three tables and one part of loads here.
IMPORT_WRITES, IMPORT_PARTS = 2 + 2 * 4, 4


@pytest.mark.fault(
    "a full disk, or an I/O error, in an import", how=HOW, tries=6 * IMPORT_WRITES + IMPORT_PARTS + 1, outcome=OUTCOME
)
def test_an_import_outlives_every_failing_call(tmp_path):
    out, source = tmp_path / "out" / "run", tmp_path / "counts.csv"
    rows = [(0, [4, 2, 1, 1]), (3, [2, 2, 2, 2])]
    lines = [f"u,{layer},{expert},{count}" for layer, counts in rows for expert, count in enumerate(counts)]
    source.write_text("\n".join(("unit,layer,expert,routed_rows", *lines)) + "\n")
    flags = {"num_tokens": 4, "top_k": 2, "num_experts": None, "model": None, "label": None, "engine": None}
    request = CountsRequest(files=(source,), out=out, command=("test",), **flags)
    written = Written(
        folder=tmp_path / "out",
        begin=lambda: shutil.rmtree(out, ignore_errors=True),
        operate=lambda: import_counts(request, lambda _note: None),
        look=lambda: _look_at_run(out),
        result=lambda: read_manifest(out).content_hash,
        is_over=lambda: (out / MANIFEST_NAME).exists() and read_manifest(out).state == "finished",
    )
    _fail_all(written, calls_of(IMPORT_WRITES, IMPORT_PARTS + 1))  # the table of counts is hashed, too


FIT_WRITES, FIT_READS = 1, 4  # one table, from four parts


@pytest.mark.fault("a full disk, or an I/O error, in a fit", how=HOW, tries=6 * FIT_WRITES + FIT_READS, outcome=OUTCOME)
def test_a_fit_outlives_every_failing_call(tmp_path):
    loads = {(segment, 0): rows for segment, rows in enumerate(([6, 4], [5, 5], [7, 3], [5, 5]))}
    tree = {"paths": [[0], [1], [2], [3]], "segment_tokens": [10] * 4}
    run = write_tiny_run(tmp_path / "run", **tree, loads=loads, num_experts=2, top_k=1).folder
    table = tmp_path / "table.yaml"
    written = Written(
        folder=tmp_path,
        begin=lambda: table.unlink(missing_ok=True),
        operate=lambda: fit([run], out=table, eps=(2,), batch_sizes=(10,), order="corpus"),
        look=lambda: open_run(run),
        result=lambda: read_table(table).entries,
    )
    _fail_all(written, calls_of(FIT_WRITES, FIT_READS))


def test_a_file_that_has_its_name_is_not_said_to_be_the_old_one(tmp_path):
    said = "file: written, but a power cut may still undo it"
    with FaultyDisk("open folder", 1, tmp_path).mounted(), pytest.raises(StorageError, match=said):
        write_bytes(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.fault(
    "a full disk when the lock is written", how="os.pwrite raises ENOSPC", tries=2, outcome="exit 4, the lock named, none left"
)
@pytest.mark.parametrize("hold", [writing, working])
def test_a_lock_that_can_not_be_written_is_given_back(tmp_path, monkeypatch, hold):
    def full(_handle, _text, _offset):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StorageError, match=r"run/lock: can't lock the run, No space left on device"), hold(tmp_path / "run"):
        pass
    assert list((tmp_path / "run").iterdir()) == []


@pytest.fixture
def closed_folder():
    """A folder that this process may not write; root becomes nobody for it."""
    with tempfile.TemporaryDirectory() as name:
        folder, user = Path(name), os.geteuid()
        folder.chmod(0o755)
        (folder / "closed").mkdir(0o555)
        try:
            if user == 0:
                os.seteuid(65534)
            yield folder / "closed"
        except PermissionError:
            pytest.skip("this root can't become another user")
        finally:
            os.seteuid(user)


@pytest.mark.fault(
    "a folder that may not be written", how="a table and a run in a folder of mode 555", tries=2, outcome="exit 4 with the path"
)
def test_a_closed_folder_is_named(closed_folder):
    table, run = closed_folder / "table.yaml", closed_folder / "run"
    with pytest.raises(StorageError, match=r"closed/table.yaml: not written, Permission denied after 0 bytes"):
        write_bytes(table, b"table")
    with pytest.raises(StorageError, match=r"closed/run: can't be made a run directory, Permission denied"), writing(run):
        pass
