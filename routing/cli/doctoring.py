"""The verb that looks at the machine: `doctor`."""

import os
from pathlib import Path
from typing import Any

from routing.cli.common import Json, print_answer, quiet_transformers
from routing.cli.plain import say
from routing.cli.tables import show_facts
from routing.core.errors import CheckFailedError
from routing.core.units import format_gb


def doctor(as_json: Json = False) -> None:
    """Say what is installed here, which devices and kernels are found, what would be slow or refused; exit 1 if it can't work."""
    quiet_transformers()
    from routing.stages.doctor import doctor as doctor_stage

    answer = doctor_stage(os.environ, Path.cwd())
    print_answer(answer.body, as_json, _show)
    if not answer.is_whole:
        raise CheckFailedError("doctor: something that routing needs is missing; the lines marked `missing` say what to install")


def _show(body: dict[str, Any]) -> None:
    device = body["device"]
    gpus = [f"{gpu['name']} ({format_gb(gpu['memory_bytes'])})" for gpu in device["gpus"]]
    show_facts(
        {
            **body["versions"],
            "commit": body["commit"],
            "GPUs": ", ".join(gpus) or "none",
            "processors": body["num_cpus"],
            "threads of PyTorch": device["num_threads"],
            **{name: "found" if is_there else "not found" for name, is_there in body["kernels"].items()},
            "free disk here": format_gb(body["free_disk_bytes"]),
            "hub": body["hub"],
        }
    )
    for finding in body["findings"]:
        say(f"{finding['kind']}: {finding['what']} -> {finding['remedy']}")
    if not body["findings"]:
        say("nothing is missing, nothing would be slow or refused")
