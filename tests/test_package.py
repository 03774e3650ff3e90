"""The package as others get it: light to import, complete as a wheel."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import routing
from routing.api import NAMES
from tests.conftest import REPOSITORY
from tests.stores import write_tiny_run

HEAVY = {
    "torch",
    "duckdb",
    "polars",
    "numpy",
    "pydantic",
    "ruamel",
    "pyarrow",
    "transformers",
    "datasets",
    "scipy",
    "jinja2",
    "altair",
}


def _python(code, *arguments, executable=sys.executable, cwd=REPOSITORY):
    done = subprocess.run([executable, "-c", code, *arguments], capture_output=True, text=True, cwd=cwd, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_imports_no_library():
    loaded = set(json.loads(_python("import routing, sys, json; print(json.dumps(list(sys.modules)))")))
    assert {name.split(".")[0] for name in loaded} & HEAVY == set()


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_name_of_the_api_is_there(name):
    assert getattr(routing, name).__name__ == name
    assert name in dir(routing)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        routing.Nonsense  # noqa: B018


def test_type_checkers_see_the_names_of_the_api():
    text = (REPOSITORY / "routing" / "__init__.py").read_text()
    assert all(f"from {module} import {name} as {name}" in text for name, module in NAMES.items())


@pytest.fixture(scope="module")
def wheel_python(tmp_path_factory):
    """The interpreter of a fresh environment that holds the built wheel, with this environment's libraries behind it."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*build, str(REPOSITORY)], check=True)
    (wheel,) = folder.glob("routing-*.whl")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)],
        check=True,
    )
    site = next((folder / "env" / "lib").glob("python*/site-packages"))
    # A plain path: the checkout's own .pth behind it is not followed, so that only the wheel can be imported.
    (site / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


def test_an_installed_wheel_answers_without_a_checkout(wheel_python, tmp_path):
    run = write_tiny_run(tmp_path / "run", paths=[[0]], segment_tokens=[10], loads={(0, 0): [6, 4]}, num_experts=2, top_k=1)
    where = _python("import routing; print(routing.__file__)", executable=wheel_python, cwd=tmp_path).strip()
    assert Path(where).is_relative_to(wheel_python.parents[1])
    command = [wheel_python, "-m", "routing", "imbalance", run.folder, "--ep", "2", "--batch-tokens", "10", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["worst_imbalance"] == 1.2  # 6 x 2 / 10


def test_an_installed_wheel_holds_the_table_the_models_and_the_report_page(wheel_python, tmp_path):
    code = """
import os, routing
from importlib.resources import files
from routing.store.packaged import packaged
table = routing.read_table(packaged("allowances.yaml"))
print([(entry.ep, str(entry.allowance)) for entry in table.entries])
print(sorted(os.listdir(packaged("models"))), files("routing.audit").joinpath("report.html.jinja").is_file())
estimator = routing.Estimator.load(model="qwen3.6-35b-a3b")
print(estimator.shape.name)
"""
    said = _python(code, executable=wheel_python, cwd=tmp_path).splitlines()
    assert said[0] == "[(2, '1.4'), (4, '1.6'), (8, '2.0')]"
    assert "qwen3.6-35b-a3b.json" in said[1]
    assert said[1].endswith("True")
    assert said[2] == "qwen3.6-35b-a3b"
    site = next((wheel_python.parents[1] / "lib").glob("python*/site-packages"))
    assert not (site / "data").exists()
    assert os.path.exists(site / "routing" / "py.typed")
