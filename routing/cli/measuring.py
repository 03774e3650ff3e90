"""The verb that runs a policy: `measure`."""

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from routing.cli import tables
from routing.cli.common import Json, print_answer, quiet_transformers
from routing.cli.plain import command_given
from routing.cli.progress import StderrProgress
from routing.core.units import parse_size
from routing.core.worker import Worker, worker_of


def measure(
    policy: Annotated[str, typer.Argument(help="A checkpoint folder, or a hub id as org/name or org/name@revision.")],
    corpus: Annotated[
        list[Path], typer.Argument(help="Trajectory files, or hub data sets as org/name@revision; told by their content.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The run directory, as runs/NAME; an unfinished one is gone on with.")],
    label: Annotated[str | None, typer.Option("--label", help="What tables call this policy. Default: its name.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="A folder with another tokenizer than the policy's.")
    ] = None,
    format: Annotated[
        str | None, typer.Option("--format", help="The corpus format, instead of telling it from the content.")
    ] = None,
    domain: Annotated[str | None, typer.Option("--domain", help="The domain of files that name none, for units.")] = None,
    segment_tokens: Annotated[str, typer.Option("--segment-tokens", help="The longest segment, in tokens.")] = "1024",
    max_tokens: Annotated[
        str | None, typer.Option("--max-tokens", help="Take whole trajectories, round-robin, up to N tokens.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
    device_map: Annotated[
        str | None, typer.Option("--device-map", help="auto: spread the layers over all GPUs, then the CPU, then the disk.")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.")] = "auto",
    on_bad_line: Annotated[
        str, typer.Option("--on-bad-line", help="stop, or skip: leave out lines that are no JSON, counted.")
    ] = "stop",
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out, counted, trajectories with NaN, Inf or equal router logits.")
    ] = False,
    adapter: Annotated[
        Path | None, typer.Option("--adapter", help="Measure the policy under this LoRA adapter, a folder that peft wrote.")
    ] = None,
    base_out: Annotated[
        Path | None, typer.Option("--base-out", help="With --adapter: measure the base policy too, into this run directory.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option("--revision", help="Of a hub id: a branch, a tag or a commit; a run keeps its commit.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say tokens, segments, disk and expected time; measure nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Run a policy over a corpus and count the rows that each expert of each MoE layer receives. Resumes by itself."""
    quiet_transformers()
    from routing.stages.begin import MeasureRequest

    worker = worker_of(os.environ)
    request = MeasureRequest(
        policy=policy,
        corpus=tuple(corpus),
        out=out,
        label=label,
        tokenizer=tokenizer,
        format=format,
        domain=domain,
        segment_tokens=parse_size(segment_tokens, name="--segment-tokens"),
        max_tokens=None if max_tokens is None else parse_size(max_tokens, name="--max-tokens"),
        device=device,
        dtype=dtype,
        on_bad_line=on_bad_line,
        command=command_given(),
        worker=worker,
        adapter=adapter,
        base_out=base_out,
        skip_bad=skip_bad,
        revision=revision,
        device_map=device_map,
    )
    with StderrProgress(is_alone=worker.count == 1) as progress:
        result = _stage_of(worker, is_plan=plan)(request, progress)
    print_answer(asdict(result), as_json, tables.show_facts)


def _stage_of(worker: Worker, *, is_plan: bool) -> Callable[..., Any]:
    """The stage that measures, a share of the work or all of it, or that only plans; no other is imported."""
    if is_plan:
        from routing.stages.plan import plan

        return plan
    if worker.count > 1:
        from routing.stages.share import measure_share

        return measure_share
    from routing.stages.measure import measure as measure_all

    return measure_all
