"""Files grown by coverage, with atheris, for three readers: trajectories in JSON Lines, a wave in YAML, and a guard's log.

    pip install atheris                                   # Linux; not among the tested set
    python -m pipelines.fuzz_inputs trajectories -runs=100000
    python -m pipelines.fuzz_inputs wave -max_total_time=60

What follows the reader's name is libFuzzer's. It stops at a traceback, a message of several lines or a wrong answer, and writes
the input to `crash-HASH`.
"""

import sys
import tempfile
from pathlib import Path

TARGETS = {"trajectories": "token ids", "wave": "wave", "log": "guard log"}


def main() -> None:
    """Runs until libFuzzer's own limits."""
    if sys.argv[1:2] == [] or sys.argv[1] not in TARGETS:
        raise SystemExit(f"name a reader, one of {', '.join(TARGETS)}; then libFuzzer's flags, as -runs=100000")
    name = TARGETS[sys.argv.pop(1)]
    try:
        import atheris
    except ImportError:
        raise SystemExit("atheris is not installed: pip install atheris") from None
    with atheris.instrument_imports(include=["routing.corpus", "routing.store", "ruamel.yaml"]):
        from pipelines.odd.readers import READERS, outcome
    reader = READERS[name]
    with tempfile.TemporaryDirectory() as home:
        seeds = Path(home) / "seeds"
        seeds.mkdir()
        for place, raw in enumerate(reader.samples):
            (seeds / str(place)).write_bytes(raw)
        atheris.Setup([*sys.argv, str(seeds)], lambda raw: outcome(reader, raw, Path(home) / "input"))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
