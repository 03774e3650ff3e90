"""What is long is read a stretch at a time: memory follows the tokens that are kept, never the file, and no count is lost."""

import json
import tracemalloc

import pytest

from pipelines import soak_large
from pipelines.soak_large import Counts, read_counts, write_corpus
from pipelines.timing import Spent
from routing.corpus.load import load_corpus
from routing.corpus.tree import build_tree

SMALL, LARGE = 60, 240  # trajectories of some 10 kB


class Ids:
    chat_template = None

    def __len__(self):
        return 2**31 - 1


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A corpus of 0.6 MB and one of 2.4 MB, with what was written into each."""
    folder = tmp_path_factory.mktemp("large")
    paths = {size: folder / f"{size}.jsonl" for size in (SMALL, LARGE)}
    return {size: (path, write_corpus(path, num_bytes=10_000 * size, num_trajectories=size)) for size, path in paths.items()}


def _peak_bytes(path, **options):
    tracemalloc.start()
    try:
        corpus = load_corpus([path], tokenizer=Ids(), **options)
        build_tree([one.token_ids for one in corpus.trajectories], segment_tokens=1024)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_what_the_soak_expects_is_what_a_set_of_prefixes_counts(files, capsys):
    path, counts = files[SMALL]
    rows = [tuple(json.loads(line)["input_ids"]) for line in path.read_text().splitlines()]
    packed = sum(len({row[:size] for row in family for size in range(1, len(row) + 1)}) for family in _families(rows))
    assert counts == Counts(trajectories=SMALL, tokens_logical=sum(map(len, rows)), tokens_packed=packed)
    read_counts(str(path))
    assert Counts(**json.loads(capsys.readouterr().out)) == counts


def _families(rows):
    return [[row for row in rows if row[0] == first] for first in dict.fromkeys(row[0] for row in rows)]


@pytest.mark.fault(
    "a file much longer than what is kept of it",
    how="files of 0.6 and 2.4 MB read with --max-tokens 20000, memory traced",
    tries=2,
    outcome="the peak of the longer is within a tenth of the shorter's",
)
def test_memory_does_not_grow_with_the_file(files):
    small, large = (_peak_bytes(files[size][0], max_tokens=20_000) for size in (SMALL, LARGE))
    assert large < 1.1 * small


def test_memory_grows_by_the_ids_that_are_kept_and_little_more(files):
    """int32 ids are 4 bytes a token; a second copy of them, as keys to sort by were, would make it 8."""
    small, large = (_peak_bytes(files[size][0]) for size in (SMALL, LARGE))
    tokens = files[LARGE][1].tokens_logical - files[SMALL][1].tokens_logical
    assert 4 <= (large - small) / tokens < 6


@pytest.mark.parametrize(
    ("spent", "said"),
    [
        ({"exit_code": 3}, "step: exit 3"),
        ({"peak_bytes": soak_large.PEAK_BYTES + 1}, "step: 1,500,000,001 bytes at the peak"),
        ({"stdout": '{"trajectories": 9}'}, "step: {'trajectories': 9}, written were {'trajectories': 10}"),
    ],
)
def test_the_soak_tells_a_fault(spent, said):
    sound = {"exit_code": 0, "stdout": '{"trajectories": 10}', "peak_bytes": 1, "processor_s": 1.0}
    assert list(soak_large._faults("step", Spent(**sound), {"trajectories": 10})) == []
    (fault,) = soak_large._faults("step", Spent(**{**sound, **spent}), {"trajectories": 10})
    assert fault.startswith(said)
