"""The pages on SQL and Python, and the notebook, can't rot: what they run is run as it stands, over runs of the demo's names."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import REPOSITORY
from tests.stores import random_loads, write_tiny_run

PAGES = ("sql.md", "python.md")
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
