"""`make demo`: the main job on what ships, command by command as a user would type them.

Both demo policies are toys and the trajectories simulated: the numbers show the way, no policy of anybody's.
"""

import os
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

CORPUS = "data/demo/trajectories/shop.jsonl"
UNTRAINED, TRAINED = "runs/demo-untrained", "runs/demo-trained"
TABLE, REPORT = "runs/demo/allowances.yaml", "runs/demo/report.html"
# The packed corpus is too small for two batches of 200k; these sizes have several.
BATCH_TOKENS = "50k,20k,2k"

MEASURE = (
    f"measure data/demo/policy {CORPUS} --out {TRAINED} --label 'toy policy, trained'",
    f"measure data/demo/policy-untrained {CORPUS} --out {UNTRAINED} --label 'toy policy, untrained'",
)
ANSWER = (
    f"imbalance {TRAINED} {UNTRAINED} --batch-tokens {BATCH_TOKENS}",
    f"fit {TRAINED} {UNTRAINED} --batch-tokens {BATCH_TOKENS} --out {TABLE}",
    f"check {TABLE} {TRAINED} {UNTRAINED}",
    f"report {TRAINED} {UNTRAINED} --allowances {TABLE} --out {REPORT}",
)
COMMANDS = (*MEASURE, *ANSWER)


def main() -> None:
    """Both measurements side by side, then every answer; stops at the first that fails, with its exit code."""
    began = time.monotonic()
    measure_side_by_side()
    for command in ANSWER:
        print(f"\n$ routing {command}", flush=True)
        _stop_on_failure(subprocess.run(_arguments(command), check=False).returncode)
    print(f"\nDone in {time.monotonic() - began:.0f} s. The allowances, with their evidence: {TABLE}")
    print(f"The report, to open in a browser: {Path(REPORT).resolve().as_uri()}")
    print("Toy policies on simulated trajectories: a worked example, not figures for a training run.")


def measure_side_by_side() -> None:
    """One core each: on so small a policy a second thread gains nothing."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    measuring, voices = [], []
    for command in MEASURE:
        print(f"$ routing {command}", flush=True)
        process = subprocess.Popen(
            _arguments(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        voice = threading.Thread(target=_repeat, args=(process,))
        voice.start()
        measuring.append(process)
        voices.append(voice)
    for process, voice in zip(measuring, voices, strict=True):
        voice.join()
        _stop_on_failure(process.wait())


def _repeat(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)


def _arguments(command: str) -> list[str]:
    return [sys.executable, "-m", "routing", *shlex.split(command)]


def _stop_on_failure(exit_code: int) -> None:
    if exit_code:
        sys.exit(exit_code)


if __name__ == "__main__":
    main()
