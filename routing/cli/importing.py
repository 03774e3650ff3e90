"""The verbs that take what another engine recorded: `import routes`, `import counts`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from routing.cli.common import Json, print_answer, quiet_transformers
from routing.cli.plain import command_given, say
from routing.cli.tables import show_facts
from routing.core.errors import InputError
from routing.core.units import parse_size

app = typer.Typer(
    help="Take routes or counts that another engine recorded, without a forward pass (docs/recorded.md).",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Out = Annotated[Path, typer.Option("--out", help="The run directory to write, as runs/NAME.")]
Label = Annotated[str | None, typer.Option("--label", help="What tables call this policy. Default: the run's name.")]
Engine = Annotated[str | None, typer.Option("--engine", help="What recorded the files, as `vllm 0.21`, for the run's record.")]


@app.command()
def routes(
    files: Annotated[list[Path], typer.Argument(help=".npz, safetensors, Parquet or JSON with expert ids beside token ids.")],
    model: Annotated[Path, typer.Option("--model", help="The model's config.json, or the folder that holds it.")],
    out: Out,
    label: Label = None,
    engine: Engine = None,
    domain: Annotated[str | None, typer.Option("--domain", help="The domain of rows that name none, for units.")] = None,
    segment_tokens: Annotated[str, typer.Option("--segment-tokens", help="The longest segment, in tokens.")] = "1024",
    layers: Annotated[
        str | None, typer.Option("--layers", help="The decoder layers that the files hold, as 0,2-5. Default: every MoE layer.")
    ] = None,
    drop_last: Annotated[
        bool, typer.Option("--drop-last", help="Leave out a last token without routes: it was sampled and never run.")
    ] = False,
    fill_prefixes: Annotated[
        bool, typer.Option("--fill-prefixes", help="Take a cached prefix's routes from another sequence that begins alike.")
    ] = False,
    drop_shared_expert: Annotated[
        bool, typer.Option("--drop-shared-expert", help="Drop the one id of each token that is a shared expert's.")
    ] = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out and count sequences with a fault; else stop.")] = False,
    as_json: Json = False,
) -> None:
    """Import the expert ids of every token, [tokens, layers, top-k], as training and serving stacks return them."""
    quiet_transformers()
    from routing.recorded.routes import AskedRepairs
    from routing.stages.import_routes import RoutesRequest, import_routes

    request = RoutesRequest(
        files=tuple(files),
        model=model,
        out=out,
        label=label,
        engine=engine,
        domain=domain,
        segment_tokens=parse_size(segment_tokens, name="--segment-tokens"),
        asked=AskedRepairs(
            layers=None if layers is None else _layers(layers),
            drop_last=drop_last,
            fill_prefixes=fill_prefixes,
            drop_shared_expert=drop_shared_expert,
        ),
        skip_bad=skip_bad,
        command=command_given(),
    )
    print_answer(asdict(import_routes(request, _note)), as_json, show_facts)


@app.command()
def counts(
    files: Annotated[
        list[Path],
        typer.Argument(help="CSV or Parquet with columns unit, layer, expert, routed_rows; or SGLang or TensorRT-LLM dumps."),
    ],
    out: Out,
    num_tokens: Annotated[
        str | None, typer.Option("--num-tokens", help="Tokens of each unit, where the table has no column num_tokens.")
    ] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", min=1, help="Experts a token is sent to.")] = None,
    num_experts: Annotated[
        int | None, typer.Option("--num-experts", min=1, help="Experts of a layer, where not every one has a row.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", help="The model's config.json, to know its layers, experts and widths.")
    ] = None,
    label: Label = None,
    engine: Engine = None,
    as_json: Json = False,
) -> None:
    """Import counts of routed rows by unit, layer and expert. A unit's tokens share no prefix that a table could tell."""
    quiet_transformers()
    from routing.stages.import_counts import CountsRequest, import_counts

    request = CountsRequest(
        files=tuple(files),
        out=out,
        num_tokens=None if num_tokens is None else parse_size(num_tokens, name="--num-tokens"),
        top_k=top_k,
        num_experts=num_experts,
        model=model,
        label=label,
        engine=engine,
        command=command_given(),
    )
    print_answer(asdict(import_counts(request, _note)), as_json, show_facts)


def _note(text: str) -> None:
    say(text, err=True)


def _layers(text: str) -> tuple[int, ...]:
    """`0,2-5` as 0, 2, 3, 4, 5."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not last)) or len(part) > 12:
            raise InputError(f"--layers: {part[:20]!r} is no layer or range of layers, as 0,2-5")
        if last and int(last) < int(first):
            raise InputError(f"--layers: {part.strip()!r} runs backwards; as {last}-{first}")
        found += range(int(first), int(last or first) + 1)
        if len(found) > 10_000:
            raise InputError(f"--layers: {text[:40]!r} names more layers than a model has")
    return tuple(found)
