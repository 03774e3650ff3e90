"""The measuring machine needs torch, transformers and pyarrow; nothing of the analysing side."""

import os
import subprocess
import sys
import textwrap

import pytest

from tests.conftest import REPOSITORY
from tests.stores import write_tiny_run

BLOCK = """
    import sys
    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in {"duckdb", "polars", "pydantic", "ruamel", "datasets"}:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    sys.meta_path.insert(0, Absent())
    import torch
    torch.set_num_threads(1)
"""


def test_measuring_runs_without_the_analysing_libraries(policy_folder, corpus_file, tmp_path):
    code = textwrap.dedent(BLOCK) + textwrap.dedent("""
        from routing.cli import main
        sys.argv = ["routing", "measure", *sys.argv[1:]]
        main()
    """)
    arguments = [str(policy_folder), str(corpus_file), "--out", str(tmp_path / "run"), "--segment-tokens", "32", "--json"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"trajectories": 24' in done.stdout


@pytest.mark.parametrize("arguments", [["show"], ["imbalance"], ["fit", "--out", "table.yaml"]])
def test_a_verb_that_needs_more_names_what_is_missing(tmp_path, arguments):
    run_folder, two = tmp_path / "run", {"num_experts": 2, "top_k": 2}
    write_tiny_run(run_folder, paths=[[0], [1]], segment_tokens=[8, 8], loads={(0, 0): [8, 8], (1, 0): [10, 6]}, **two)
    code = textwrap.dedent(BLOCK) + textwrap.dedent("""
        from routing.cli import main
        sys.argv = ["routing", *sys.argv[1:]]
        main()
    """)
    command = [sys.executable, "-c", code, arguments[0], str(run_folder), *arguments[1:]]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    said = f"routing: {arguments[0]} needs duckdb, which is not installed here; install routing with all it depends on"
    assert done.stderr.splitlines() == [said]
