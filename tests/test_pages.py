"""The pages and the notebook that show commands can't rot: what they run is run as it stands, over runs of the demo's names."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import REPOSITORY
from tests.stores import random_loads, write_tiny_run

PAGES = ("sql.md", "python.md", "verify.md")
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
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs of 60,000 tokens each: three full batches of 20k, simulated."""
    made = tmp_path_factory.mktemp("pages")
    tokens = [1000] * 60
    for seed, name in enumerate(("demo-trained", "demo-untrained")):
        rng = np.random.default_rng(seed)
        loads = random_loads(rng, segment_tokens=tokens, layers=(0, 1), num_experts=8, top_k=2)
        paths = [[segment, segment + 1] for segment in range(0, 60, 2)]
        write_tiny_run(
            made / "runs" / name,
            paths=paths,
            segment_tokens=tokens,
            loads=loads,
            num_experts=8,
            top_k=2,
            layers=(0, 1),
            label=f"simulated, {name}",
        )
    return made


@pytest.mark.parametrize(
    ("page", "language", "code"),
    [pytest.param(page, *block, id=f"{page}-{place}") for page in PAGES for place, block in enumerate(
        BLOCK.findall((REPOSITORY / "docs" / page).read_text())
    )],
)
def test_every_block_of_the_pages_runs(folder, page, language, code):
    command = [sys.executable, "-c", code] if language == "python" else ["bash", "-euo", "pipefail", "-c", code]
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{page}: {done.stderr}"
    assert done.stdout or ">" in code


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_the_pages_leads_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)\)", (REPOSITORY / "docs" / page).read_text())
    assert [target for target in targets if not (REPOSITORY / "docs" / target).exists()] == []


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
