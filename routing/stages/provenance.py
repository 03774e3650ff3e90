"""What produced a result: versions, commit, time. The clock and the checkout are read here and handed to the rooms as values."""

import datetime
import hashlib
import importlib.metadata
import importlib.util
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

_PACKAGES = ("routing", "torch", "transformers", "tokenizers", "safetensors", "pyarrow", "numpy")
_KERNELS = {"flash_attention": "flash_attn", "flash_linear_attention": "fla", "causal_conv1d": "causal_conv1d"}


def utc_now() -> str:
    """The time in UTC, ISO 8601, whole seconds."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def tool_version() -> str:
    """The version of this package; `unknown` where it runs uninstalled."""
    return versions(("routing",)).get("routing", "unknown")


def versions(packages: tuple[str, ...] = _PACKAGES) -> dict[str, str]:
    """Installed versions of what can change a count, Python's among them."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def kernels() -> dict[str, bool]:
    """Which of the kernels that transformers takes up by itself are installed."""
    return {name: importlib.util.find_spec(package) is not None for name, package in _KERNELS.items()}


def tool_commit() -> tuple[str | None, bool | None]:
    """(commit, dirty) of the checkout this package runs from; (None, None) for an installed wheel or where git is missing."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None, None
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return commit, bool(_git(root, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def code_hash(rooms: Sequence[str]) -> str:
    """sha256 over the code of these rooms of the package: a version stays the same while somebody works on it."""
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    files = (file for room in rooms for kind in ("*.py", "*.sql") for file in (package / room).rglob(kind))
    for path in sorted(files):
        digest.update(f"{path.relative_to(package)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20, check=True)
    return done.stdout.strip()
