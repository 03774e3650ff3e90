"""Which allowance prices a group: its EP size and the largest fitted batch size that is not above its own rows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from routing.core.allowance import AllowanceTable, Layer, proven_ceiling
from routing.core.errors import InputError
from routing.core.layers import DecoderShape
from routing.core.lookup import batch_size_for
from routing.core.observed import Caution
from routing.core.placement import require_ep_size
from routing.estimate.routed import Routing, ratio

Mode = Literal["fitted", "proven"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance:
    """What prices one group: `value` for every layer, `by_layer` where layers have their own, `most` the largest of these.

    `batch_tokens` is null where no entry was looked up: at EP 1, and for what is proven.
    """

    ep: int
    batch_tokens: int | None
    value: Decimal
    status: str
    flat: Routing
    most: Routing
    by_layer: tuple[Routing, ...] | None = None
    own_layers: Mapping[int, tuple[Decimal, str]] | None = None  # value and status of a layer that has its own entry
    cautions: tuple[Caution, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AllowanceUsed:
    """The allowance of the binding group, and of the binding layer where it was priced at its own.

    `seen` is the observed share with its margin where that is above `value`: it binds, and the allowance does not.
    """

    ep: int
    batch_tokens: int | None
    value: Decimal
    layer: Layer
    status: str
    warnings: tuple[str, ...]
    seen: Decimal | None = None


class AllowanceBook:
    """A table's entries by EP and batch size, for one model.

    Raises InputError for a table of another model. Without a table, `reason` says why, where a lookup needs one.
    """

    def __init__(
        self, shape: DecoderShape, table: AllowanceTable | None, *, reason: str = "no allowance table was given"
    ) -> None:
        self.shape, self._reason = shape, reason
        routed = shape.routed
        if table is not None and table.model.shape_hash != routed.shape_hash:
            differ = [name for name in routed.__slots__ if getattr(table.model, name) != getattr(routed, name)]
            raise InputError(
                f"allowances: the table is of {table.model.name}, another model than {shape.name} ({', '.join(differ)} differ); "
                "fit one: routing fit RUN --out FILE"
            )
        self._has_table = table is not None
        entries = table.entries if table is not None else ()
        self._sizes = {
            ep: sorted({one.batch_tokens for one in entries if (one.ep, one.layer) == (ep, "all")})
            for ep in {one.ep for one in entries}
        }
        self._fitted = {
            (one.ep, one.batch_tokens): self._fit(table, one.ep, one.batch_tokens) for one in entries if one.layer == "all"
        }

    def find(self, *, ep: int, rows: int, mode: Mode, strict: bool) -> Allowance:
        """The allowance for a group of `rows` attention rows over all ranks.

        InputError for an EP size that isn't fitted, and under `strict` for rows below the smallest fitted batch.
        """
        if ep == 1:
            return _fixed(1, Decimal(1))
        if mode == "proven":
            return _fixed(ep, proven_ceiling(ep, num_experts=self.shape.num_experts, top_k=self.shape.top_k)[0])
        sizes = self._sizes.get(ep)
        if not sizes:
            require_ep_size(ep, self.shape.num_experts, name="allowances: ep")
            raise InputError(self._lacking(ep))
        found = self._fitted[ep, batch_size_for(sizes, rows)]
        if sizes[0] <= rows <= sizes[-1]:
            return found
        return self._beyond(found, rows, sizes, strict=strict)

    def batch_sizes(self, ep: int, mode: Mode) -> tuple[int, ...]:
        """The fitted batch sizes at `ep`, rising; none where no entry is looked up."""
        return () if ep == 1 or mode == "proven" else tuple(self._sizes.get(ep, ()))

    def _fit(self, table: AllowanceTable | None, ep: int, batch_tokens: int) -> Allowance:
        entries = table.entries if table is not None else ()
        here = {one.layer: one for one in entries if (one.ep, one.batch_tokens) == (ep, batch_tokens)}
        flat = here["all"]
        own = {layer: (one.allowance, str(one.status)) for layer, one in here.items() if isinstance(layer, int)}
        values = [own.get(layer, (flat.allowance, ""))[0] for layer in self.shape.moe_layers]
        by_layer = [own.get(layer, (flat.allowance, ""))[0] for layer in range(self.shape.num_layers)]
        return Allowance(
            ep=ep,
            batch_tokens=batch_tokens,
            value=flat.allowance,
            status=flat.status,
            flat=(ratio(flat.allowance), None),
            most=(ratio(max(values) if own else flat.allowance), None),
            by_layer=tuple((ratio(value), None) for value in by_layer) if own else None,
            own_layers=own or None,
        )

    def _beyond(self, found: Allowance, rows: int, sizes: list[int], *, strict: bool) -> Allowance:
        if rows < sizes[0]:
            text = f"{rows} rows at ep={found.ep}, the smallest fitted batch has {sizes[0]}: small batches are less even"
            if strict:
                raise InputError(f"below_fitted_batch: {text}; fit smaller ones: routing fit RUN --batch-tokens {rows}")
            caution = Caution(code="below_fitted_batch", message=text)
        else:
            text = f"{rows} rows at ep={found.ep}, the largest fitted batch has {sizes[-1]}"
            caution = Caution(code="above_fitted_batch", message=text)
        return replace(found, cautions=(caution,))

    def _lacking(self, ep: int) -> str:
        fitted = sorted(size for size, batches in self._sizes.items() if batches)
        known = ", ".join(map(str, fitted)) or "none"
        why = f"no allowance for ep={ep} (has {known})" if self._has_table else f"no allowance for ep={ep}: {self._reason}"
        asked = ",".join(str(size) for size in sorted({*fitted, ep}))
        return f"allowances: {why}; measure it: routing fit RUN --ep {asked} --out FILE, or price what is proven: --mode proven"


def _fixed(ep: int, value: Decimal) -> Allowance:
    return Allowance(ep=ep, batch_tokens=None, value=value, status="proven", flat=(ratio(value), None), most=(ratio(value), None))
