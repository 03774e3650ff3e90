"""`routing estimate`, `routing wave` and `routing replay`: a wave file in, its price out, to the same bytes later."""

from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import zip_longest
from pathlib import Path
from typing import Any

from routing.core.allowance import decimal_text
from routing.core.errors import CheckFailedError, InputError
from routing.core.placement import PLACEMENT
from routing.core.wave import Adapter, Topology, Wave
from routing.estimate.bounds import even_group
from routing.estimate.ledger import require_shape
from routing.estimate.result import Estimate, Term
from routing.stages.estimator import Estimator
from routing.store.files import read_json_object, read_text
from routing.store.waves import read_wave, wave_text

_REPLAYED = (
    *("total_bytes", "floor_bytes", "walk_bytes", "required_bytes", "total_without_hybridep_bytes"),
    *("binding_rank", "binding_layer", "allowance", "warnings"),
)
OPTIONS = {"per_layer": bool, "mode": str, "strict": bool, "lower_by_observed": bool, "outside_bytes": int}


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A measured peak and what was allocated before the call, both as the allocator counts them."""

    peak_bytes: int
    baseline_bytes: int

    def __post_init__(self) -> None:
        if self.peak_bytes <= self.baseline_bytes:
            raise InputError(f"--peak-bytes: {self.peak_bytes} is not above --baseline-bytes {self.baseline_bytes}")

    @property
    def measured_bytes(self) -> int:
        """What the estimate is compared with."""
        return self.peak_bytes - self.baseline_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class EstimateRequest:
    """The flags of `routing estimate`; `options` are keyword arguments of `Estimator.price`."""

    wave: Path
    allowances: Path | None
    model: str | None
    options: dict[str, Any]
    placement: str = PLACEMENT
    budget_bytes: int | None = None
    comparison: Comparison | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EstimateAnswer:
    """`body` as `--json` gives it, `text` as a person reads it; `exceeds` where the budget is too small."""

    body: dict[str, Any]
    text: str
    warnings: tuple[str, ...]
    exceeds: str | None


def estimate(request: EstimateRequest) -> EstimateAnswer:
    """Prices the wave; beside it what was asked for: a budget, a measured peak."""
    found = _price(request.wave, request.allowances, request.model, request.options, request.placement)
    body, lines, exceeds = estimate_body(found, request.options), [found.explain()], None
    if request.budget_bytes is not None:
        fits = found.required_bytes <= request.budget_bytes
        body |= {"budget_bytes": request.budget_bytes, "fits": fits}
        largest = max(found.terms, key=lambda term: term.bytes)
        if fits:
            lines.append(
                f"fits the budget of {request.budget_bytes:,} bytes, {request.budget_bytes - found.required_bytes:,} spare"
            )
        else:
            over = found.required_bytes - request.budget_bytes
            exceeds = (
                f"{request.wave}: required {found.required_bytes:,} bytes are {over:,} above the budget; "
                f"the largest term is {largest.name} ({largest.bytes:,} bytes)"
            )
    if request.comparison is not None:
        fractions = compare(found, request.comparison)
        body |= fractions
        with_buffer, without = fractions["over_fraction"], fractions["over_fraction_without_hybridep"]
        measured = request.comparison.measured_bytes
        lines.append(
            f"against a measured {measured:,} bytes above the baseline: {with_buffer:+.1%}, {without:+.1%} without HybridEP"
        )
    warnings = tuple(f"{caution.code}: {caution.message}" for caution in found.cautions)
    return EstimateAnswer(body=body, text="\n".join(lines), warnings=warnings, exceeds=exceeds)


def compare(found: Estimate, comparison: Comparison) -> dict[str, Any]:
    """estimate / measured - 1, with and without the buffer that PyTorch's peak can't show."""
    measured = comparison.measured_bytes
    return {
        "peak_bytes": comparison.peak_bytes,
        "baseline_bytes": comparison.baseline_bytes,
        "over_fraction": found.total_bytes / measured - 1,
        "over_fraction_without_hybridep": found.total_without_hybridep_bytes / measured - 1,
    }


def estimate_body(found: Estimate, options: dict[str, Any]) -> dict[str, Any]:
    """An estimate as plain values; `bytes_per_row` as decimal text, since a float may not hold it."""
    used = found.allowance
    return {
        "total_bytes": found.total_bytes,
        "floor_bytes": found.floor_bytes,
        "walk_bytes": found.walk_bytes,
        "required_bytes": found.required_bytes,
        "total_without_hybridep_bytes": found.total_without_hybridep_bytes,
        "binding_rank": found.binding_rank,
        "binding_layer": found.binding_layer,
        "terms": [_term_body(term) for term in found.terms],
        "allowance": {
            "ep": used.ep,
            "batch_tokens": used.batch_tokens,
            "value": float(used.value),
            "layer": used.layer,
            "status": used.status,
            "warnings": list(used.warnings),
        },
        "seen_with_margin": None if used.seen is None else float(used.seen),
        "warnings": [caution.code for caution in found.cautions],
        "options": {name: options[name] for name in OPTIONS if name in options},
    }


def replay(wave: Path, *, recorded: Path, allowances: Path | None, model: str | None) -> dict[str, Any]:
    """Prices a recorded wave again, with the options of the recorded estimate.

    CheckFailedError naming the term that moved furthest, InputError where `recorded` is no estimate.
    """
    before = _read_estimate(recorded)
    options = _recorded_options(before.get("options", {}), recorded)
    now = estimate_body(_price(wave, allowances, model, options), options)
    was, is_now = _bytes_by_term(before, recorded), _bytes_by_term(now, recorded)
    moved = {name: is_now.get(name, 0) - was.get(name, 0) for name in {**was, **is_now}}
    name = max(moved, key=lambda one: abs(moved[one]))
    if moved[name]:
        place = f"{recorded}: {name}: {was.get(name, 0):,} bytes recorded, {is_now.get(name, 0):,} priced now ({moved[name]:+,})"
        raise CheckFailedError(place)
    for total in _REPLAYED:
        if total not in before:
            raise InputError(f"{recorded}: no estimate of routing estimate --json (no {total})")
        if before[total] != now[total]:
            raise CheckFailedError(
                f"{recorded}: {total}: {str(before[total])[:40]} recorded, {now[total]} priced now; every term is the same"
            )
    for old, new in zip_longest(before["terms"], now["terms"]):
        if old != new:  # the sums agree by name: rows, ranks, or two changes that cancel
            raise CheckFailedError(f"{recorded}: {(new or old)['name']}: {str(old)[:120]} recorded, {str(new)[:120]} priced now")
    return {"replayed": str(wave), "total_bytes": now["total_bytes"], "terms": len(now["terms"])}


def lay_out(lengths: Path, *, ep: int, cp: int, model: str, adapter_rank: int | None) -> str:
    """The YAML of a wave that packs every sequence into one group, its rows as even over the ranks as they go.

    `lengths` is a text file of whole numbers, the tokens of each packed sequence, or a run directory (its packed tokens).
    """
    from routing.store.model_shapes import find_shape

    shape = find_shape(model)
    rows = _packed_tokens(lengths)
    topology = Topology(ep=ep, cp=cp)
    adapter = None if adapter_rank is None else Adapter(expert_rank=adapter_rank)
    wave = Wave(model=model, topology=topology, groups=(even_group(rows, topology, shape),), adapter=adapter)
    require_shape(wave, shape)
    return wave_text(wave, comment="layouts by even share: no planner laid these rows out, real ranks differ")


def _price(
    wave_path: Path, allowances: Path | None, model: str | None, options: dict[str, Any], placement: str = PLACEMENT
) -> Estimate:
    wave = read_wave(wave_path)
    if model is not None:
        wave = replace(wave, model=model)
    estimator = Estimator.load(allowances, model=wave.model, placement=placement)
    try:
        return estimator.price(wave, **options)
    except InputError as error:
        raise InputError(f"{wave_path}: {error}") from error


def _term_body(term: Term) -> dict[str, Any]:
    return {
        "name": term.name,
        "rank": term.rank,
        "layer": term.layer,
        "rows": term.rows,
        "bytes_per_row": None if term.bytes_per_row is None else _plain(term.bytes_per_row),
        "bytes": term.bytes,
    }


def _plain(value: Decimal) -> str:
    return decimal_text(value).removesuffix(".0")


def _read_estimate(path: Path) -> dict[str, Any]:
    body = read_json_object(path, what="an estimate")
    if not isinstance(body.get("terms"), list) or not isinstance(body.get("options", {}), dict):
        raise InputError(f"{path}: no estimate of routing estimate --json (no list of terms)")
    return body


def _recorded_options(options: dict[str, Any], where: Path) -> dict[str, Any]:
    for name, value in options.items():
        if name not in OPTIONS or type(value) is not OPTIONS[name]:
            raise InputError(f"{where}: options: {name[:40]}: {str(value)[:40]!r} is no option of routing estimate")
    return options


def _bytes_by_term(body: dict[str, Any], where: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for term in body["terms"]:
        if not isinstance(term, dict) or not isinstance(term.get("name"), str) or type(term.get("bytes")) is not int:
            raise InputError(f"{where}: terms: {str(term)[:60]!r} has no name and whole bytes")
        found[term["name"]] = found.get(term["name"], 0) + term["bytes"]
    return found


def _packed_tokens(lengths: Path) -> int:
    if lengths.is_dir():
        from routing.query.checks import require_checks
        from routing.store.run import open_run

        run = open_run(lengths)
        require_checks(run)
        return run.manifest.corpus.tokens_packed
    text = read_text(lengths, what="a list of lengths")
    total = 0
    for number, line in enumerate(text.splitlines(), start=1):
        for word in line.replace(",", " ").split():
            if not word.isdecimal() or not word.isascii() or len(word) > 9 or not int(word):
                raise InputError(f"--lengths: {lengths}:{number}: {word[:20]!r} is no length, a whole number of tokens")
            total += int(word)
    if not total:
        raise InputError(f"--lengths: {lengths} holds no length")
    return total
