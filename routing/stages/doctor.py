"""`routing doctor`: what is installed here, what it can do, what would be slow or refused, and what to do about it."""

import importlib.metadata
import importlib.util
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from routing.core.errors import RoutingError
from routing.core.units import BYTES_PER_GB, format_gb
from routing.stages.provenance import kernels, tool_commit, versions
from routing.store.packaged import packaged

_PACKAGE = "routing"
_NEEDED_FOR = {  # a package that others can do without, and what goes without it
    "altair": "report",
    "datasets": "folders that `datasets` saved",
    "duckdb": "imbalance, fit, check, report, sql",
    "jinja2": "report",
    "peft": "measure --adapter",
    "polars": "Python frames",
    "pydantic": "tables, plans and waves",
    "ruamel-yaml": "tables, plans and waves",
    "scipy": "fit",
    "vl-convert-python": "pictures of the report",
}
_GAINS = {
    "flash_attention": "attention over long trajectories",
    "flash_linear_attention": "gated delta net layers (Qwen3-Next, Qwen3.5)",
    "causal_conv1d": "the convolutions of gated delta net layers",
}
_LITTLE_DISK_BYTES = 2 * BYTES_PER_GB  # a run takes far less, a checkpoint from the hub takes more


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """`kind` is missing (routing can't work as installed), refused or slow; `remedy` is what to do."""

    kind: str
    what: str
    remedy: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorAnswer:
    """`facts` by name, as JSON has them, and what follows from them; `is_whole` where nothing needed is missing."""

    facts: dict[str, Any]
    findings: tuple[Finding, ...]

    @property
    def is_whole(self) -> bool:
        return all(one.kind != "missing" for one in self.findings)

    @property
    def body(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {**self.facts, "findings": [asdict(one) for one in self.findings], "is_whole": self.is_whole}


def doctor(environment: Mapping[str, str], folder: Path) -> DoctorAnswer:
    """Looks at this machine and this installation; `folder` is where runs would go. Nothing is written or downloaded."""
    required = _required()
    installed = versions((_PACKAGE, *sorted(required)))
    found_kernels = kernels()
    device, device_findings = _devices(environment)
    free_bytes = shutil.disk_usage(folder).free
    facts = {
        "versions": installed,
        "commit": tool_commit()[0],
        "device": device,
        "num_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "kernels": found_kernels,
        "free_disk_bytes": free_bytes,
        "hub": "offline" if environment.get("HF_HUB_OFFLINE", "0") not in ("0", "") else "online",
    }
    findings = [
        *_of_packages(required, installed),
        *_of_packaged_files(),
        *device_findings,
        *_of_kernels(found_kernels, has_gpu=bool(device["gpus"])),
        *_of_surroundings(facts, folder),
    ]
    return DoctorAnswer(facts=facts, findings=tuple(findings))


def _required() -> dict[str, Requirement]:
    """What routing's own metadata asks for, the tools of its developers left out."""
    try:
        named = importlib.metadata.requires(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return {}
    wanted = (Requirement(text) for text in named)
    return {one.name: one for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})}


def _of_packages(required: Mapping[str, Requirement], installed: Mapping[str, str]) -> Iterator[Finding]:
    if not required:
        yield Finding(kind="refused", what="routing is not installed, its requirements are not known", remedy="pip install -e .")
    for name, wanted in sorted(required.items()):
        found = installed.get(name)
        goes = _NEEDED_FOR.get(name)
        lost = f"refused without it: {goes}" if goes else "nothing works without it"
        if found is None:
            kind, what = "refused" if goes else "missing", f"{name} is not installed; {lost}"
            yield Finding(kind=kind, what=what, remedy=f"pip install '{wanted}'")
        elif not wanted.specifier.contains(found, prereleases=True):
            what = f"{name} {found} is older than routing was written for ({wanted.specifier})"
            yield Finding(kind="missing", what=what, remedy=f"pip install '{wanted}'")


def _of_packaged_files() -> Iterator[Finding]:
    for name in ("allowances.yaml", "models", "schemas"):
        try:
            packaged(name)
        except RoutingError as error:
            yield Finding(kind="missing", what=str(error), remedy="install routing again")


def _devices(environment: Mapping[str, str]) -> tuple[dict[str, Any], list[Finding]]:
    """(what PyTorch computes on here, what follows); without PyTorch nothing is known."""
    if importlib.util.find_spec("torch") is None:
        return {"gpus": [], "num_threads": None}, []
    from routing.measure.device import num_threads, visible_gpus

    gpus, threads = visible_gpus(), num_threads()
    findings = []
    if not gpus:
        what = "no GPU that PyTorch sees: measure runs on the CPU"
        findings.append(Finding(kind="slow", what=what, remedy="read the cost first: routing measure ... --plan"))
        if "OMP_NUM_THREADS" not in environment and threads > 1:
            what = f"{threads} threads, which wait for each other where other work takes a core"
            findings.append(Finding(kind="slow", what=what, remedy="on a shared machine: export OMP_NUM_THREADS=1"))
    return {"gpus": gpus, "num_threads": threads}, findings


def _of_kernels(found: Mapping[str, bool], *, has_gpu: bool) -> Iterator[Finding]:
    for name, is_there in found.items():
        if has_gpu and not is_there:
            what = f"{name} is not installed: {_GAINS[name]} run in PyTorch's own code, slower and with more memory"
            yield Finding(kind="slow", what=what, remedy=f"install it, for a policy that has them ({name})")


def _of_surroundings(facts: Mapping[str, Any], folder: Path) -> Iterator[Finding]:
    if facts["hub"] == "offline":
        what = "HF_HUB_OFFLINE is set: a policy by hub id is refused unless it was downloaded before"
        yield Finding(kind="refused", what=what, remedy="name a checkpoint folder, or unset HF_HUB_OFFLINE")
    if facts["free_disk_bytes"] < _LITTLE_DISK_BYTES:
        what = f"{format_gb(facts['free_disk_bytes'])} of disk free in {folder}: a run that doesn't fit stops with exit code 4"
        yield Finding(kind="refused", what=what, remedy="free some, or --out elsewhere")
    if not os.access(folder, os.W_OK):
        yield Finding(kind="refused", what=f"{folder} can't be written", remedy="work in another folder, or --out elsewhere")
