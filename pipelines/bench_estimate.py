"""`make bench`, the estimator's part: what one cold price costs, and how many waves a minute.

A cold price is of a wave never seen before, 40 layers, CP 2, executor stages by rank, with nothing of it kept from another: every
timed wave has its own rows. Published planners pay 40 to 76 ms for a peer rank's plan; ours stands beside it.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from statistics import median

from routing.core.allowance import AllowanceTable, Entry, entries_hash
from routing.core.wave import Adapter, Group, Stage, Topology, Wave
from routing.stages.estimator import Estimator
from routing.store.allowances import read_table
from routing.store.packaged import packaged

MODEL = "qwen3.6-35b-a3b"
PUBLISHED_PLAN_MS = (40, 76)
LIMIT_MS, LIMIT_S = 1.0, 60.0


def waves(num: int) -> Iterator[Wave]:
    """Distinct waves around the published one: rows of both ranks shift, and the stages with them."""
    for place in range(num):
        rows = (52480 - place % 4001, 44314 - place % 3989)
        stages = (_stages(rows[0], 0), _stages(rows[1], 16504))
        group = Group(
            attention_rows=rows,
            gdn_rows=(rows[0] - 4286, rows[1] + 4286),
            longest_packed_tokens=sum(rows),
            attention_stages=stages,
        )
        yield Wave(model=MODEL, topology=Topology(ep=2, cp=2), adapter=Adapter(expert_rank=8), groups=(group,))


def by_layer(table: AllowanceTable) -> AllowanceTable:
    """`table` with 40 distinct per-layer allowances from 1.001 to 1.040 at EP 2 (simulated)."""
    whole = next(one for one in table.entries if one.ep == 2 and one.layer == "all")
    own: tuple[Entry, ...] = tuple(
        replace(whole, layer=layer, allowance=Decimal(1001 + layer) / 1000) for layer in table.model.moe_layers
    )
    entries = (*table.entries, *own)
    return replace(table, entries=entries, content_hash=entries_hash(table.model, table.placement, entries, table.generated))


def price_ms(estimator: Estimator, some: list[Wave], *, per_layer: bool) -> list[float]:
    """Milliseconds of each price."""
    spent = []
    for wave in some:
        began = time.perf_counter()
        estimator.price(wave, per_layer=per_layer)
        spent.append(1e3 * (time.perf_counter() - began))
    return spent


def main() -> None:
    """Prints the figures; exits 1 where a median or the total is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waves", type=int, default=100_000)
    arguments = parser.parse_args()
    table = read_table(packaged("allowances.yaml"))
    flat = Estimator.load(model=MODEL)
    layered = Estimator(shape=flat.shape, table=by_layer(table))
    some, failed = list(waves(2000)), []
    for name, estimator, per_layer in (("one allowance", flat, False), ("40 distinct allowances", layered, True)):
        estimator.price(some[-1], per_layer=per_layer)
        spent = sorted(price_ms(estimator, some, per_layer=per_layer))
        middle = median(spent)
        print(
            f"one price, {name}: median {middle:.3f} ms, 99th percentile {spent[-len(spent) // 100]:.3f} ms (limit {LIMIT_MS} ms)"
        )
        failed += [name] if middle >= LIMIT_MS else []
    print(f"a published planner's plan for a peer rank: {PUBLISHED_PLAN_MS[0]} to {PUBLISHED_PLAN_MS[1]} ms (published)")
    for name, call in _many(flat, layered):
        began = time.perf_counter()
        for wave in waves(arguments.waves):
            call(wave)
        elapsed_s = time.perf_counter() - began
        limit_s = LIMIT_S * arguments.waves / 100_000
        print(f"{arguments.waves:,} waves made and priced, {name}: {elapsed_s:.1f} s (limit {limit_s:.0f} s)")
        failed += [f"{arguments.waves} waves"] if elapsed_s >= limit_s else []
    if failed:
        raise SystemExit(f"too slow: {', '.join(failed)}")


def _many(flat: Estimator, layered: Estimator) -> tuple[tuple[str, Callable[[Wave], object]], ...]:
    return (
        ("one allowance", flat.price),
        ("40 distinct allowances", lambda wave: layered.price(wave, per_layer=True)),
    )


def _stages(rows: int, remote_rows: int) -> tuple[Stage, ...]:
    planned = -(-rows // 64) * 64
    local = Stage(kind="local", q=rows, k=rows, q_len=planned, k_len=planned)
    if not remote_rows:
        return (local,)
    return local, Stage(kind="remote", q=rows, k=remote_rows, q_len=planned, k_len=-(-remote_rows // 64) * 64)


if __name__ == "__main__":
    main()
