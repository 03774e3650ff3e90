"""The estimator that trainers load: a model's shape and its allowance table, then prices without any file."""

import os
from pathlib import Path
from typing import Self

from routing.core.allowance import AllowanceTable
from routing.core.errors import InputError, StorageError
from routing.core.fields import FieldError
from routing.core.layers import DecoderShape
from routing.core.shapes import ModelShape
from routing.core.wave import Topology, Wave
from routing.estimate import bounds
from routing.estimate.autograd_price import price_autograd
from routing.estimate.bounds import LargestWave
from routing.estimate.ledger import require_shape
from routing.estimate.lookup import AllowanceBook, Mode
from routing.estimate.price import PriceOptions, price, terms_by_rank
from routing.estimate.result import Estimate, Term


class Estimator:
    """Prices waves of one model. Pricing needs the standard library alone; `load` reads the table and the shape."""

    def __init__(
        self,
        *,
        shape: DecoderShape,
        table: AllowanceTable | None = None,
        no_table: str = "no table was given",
        other_models: frozenset[str] = frozenset(),
    ) -> None:
        """`no_table` is why there is no table, where a lookup needs one; a wave that names one of `other_models` is refused."""
        self.shape = shape
        self.table = table
        self._book = AllowanceBook(shape, table, reason=no_table)
        self._other_models = other_models

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None, *, model: str | DecoderShape | ModelShape) -> Self:
        """The estimator of `model` with the table at `path`, by default the packaged one.

        `model` is a bundled name, a config.json (or its folder), or a shape. A packaged table of another model serves EP 1 and
        what is proven; a table that was named and is of another model is an InputError.
        """
        from routing.store.allowances import read_table
        from routing.store.model_shapes import bundled_models
        from routing.store.packaged import packaged

        shape = _shape_of(model)
        same = shape.routed.shape_hash
        others = frozenset(name for one in bundled_models() if one.shape.routed.shape_hash != same for name in one.names)
        if path is not None:
            return cls(shape=shape, table=read_table(Path(path)), other_models=others)
        try:
            table = read_table(packaged("allowances.yaml"))
        except StorageError as error:
            return cls(shape=shape, no_table=str(error), other_models=others)
        if table.model.shape_hash == same:
            return cls(shape=shape, table=table, other_models=others)
        return cls(shape=shape, no_table=f"the packaged table is of {table.model.name}", other_models=others)

    def price(
        self,
        wave: Wave,
        *,
        per_layer: bool = False,
        mode: Mode = "fitted",
        strict: bool = False,
        lower_by_observed: bool = False,
        outside_bytes: int = 0,
    ) -> Estimate:
        """The bytes of `wave` above the baseline, as named terms.

        InputError where the wave isn't of this model, an EP size has no allowance, or, under `strict`, rows are below the
        smallest fitted batch. On the transformers stack (EP 1, CP 1) no allowance is looked up: but for `outside_bytes` these
        choices change nothing.
        """
        self._require_model(wave)
        mode = _mode(mode)
        if wave.stack == "transformers":
            require_shape(wave, self.shape)
            return price_autograd(wave, self.shape, self._book, outside_bytes=outside_bytes)
        options = PriceOptions(
            per_layer=per_layer,
            mode=mode,
            strict=strict,
            lower_by_observed=lower_by_observed,
            outside_bytes=outside_bytes,
        )
        return price(wave, self.shape, self._book, options)

    def terms_by_rank(self, wave: Wave) -> tuple[tuple[Term, ...], ...]:
        """What is alive at each priced rank's own peak, under the table's allowances; errors as of `price`."""
        if wave.stack == "transformers":
            return (self.price(wave).terms,)
        self._require_model(wave)
        return terms_by_rank(wave, self.shape, self._book, PriceOptions())

    def lower_bound(
        self,
        total_rows: int,
        topology: Topology,
        *,
        per_layer: bool = False,
        mode: Mode = "fitted",
        lower_by_observed: bool = False,
    ) -> int:
        """Bytes that no layout of `total_rows` in one gradient group is priced below, under the same choices (`megatron-te`)."""
        options = PriceOptions(per_layer=per_layer, mode=_mode(mode), lower_by_observed=lower_by_observed)
        return bounds.lower_bound(total_rows, topology, self.shape, self._book, options)

    def largest_wave(
        self,
        topology: Topology,
        budget_bytes: int,
        *,
        shape: Wave | None = None,
        per_layer: bool = False,
        mode: Mode = "fitted",
    ) -> LargestWave:
        """The most rows, even over the ranks in one packed group, whose `required_bytes` fit; and the binding term.

        `shape` is a wave that gives everything but the groups: adapter, outputs, head, what is held. Default: no adapter, cold.
        """
        template = shape or Wave(
            model=self.shape.name, topology=topology, groups=(bounds.even_group(topology.cp, topology, self.shape),)
        )
        return bounds.largest_wave(
            topology,
            budget_bytes,
            self.shape,
            template=template,
            price_of=lambda wave: self.price(wave, per_layer=per_layer, mode=mode),
            batch_sizes=self._book.batch_sizes(topology.ep, mode),
        )

    def _require_model(self, wave: Wave) -> None:
        """FieldError for a wave of another model."""
        named = wave.model.rpartition("/")[2].lower()
        if named in self._other_models:
            raise FieldError(("model",), f"{wave.model} is another model than the estimator's {self.shape.name}")


def _shape_of(model: str | DecoderShape | ModelShape) -> DecoderShape:
    from routing.store.model_shapes import bundled_models, find_shape

    if isinstance(model, DecoderShape):
        return model
    if isinstance(model, ModelShape):
        for bundled in bundled_models():
            if bundled.shape.routed == model:
                return bundled.shape
        raise InputError(
            "model: a ModelShape of no bundled model says nothing of attention; give a config.json or a DecoderShape"
        )
    return find_shape(model)


def _mode(mode: Mode) -> Mode:
    if mode not in ("fitted", "proven"):
        raise InputError(f"--mode: {str(mode)[:40]!r} is neither fitted nor proven")
    return mode
