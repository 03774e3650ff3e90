"""The measuring machine needs torch, transformers and pyarrow; nothing of the analysing side."""

import subprocess
import sys
import textwrap

from tests.conftest import REPOSITORY

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
