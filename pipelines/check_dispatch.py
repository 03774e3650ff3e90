"""What ranks receive, beside what the query says: a batch's rows are sent to their experts' owners by a real all-to-all.

    python -m pipelines.check_dispatch

On 2, 4 and 8 gloo ranks: every rank runs the policy over its own trajectories, one by one, sends each token's hidden row to the
ranks that own its experts, once an expert, and counts what arrives for its own. Beside it stands the query's answer for the
same trajectories as one batch: measured in padded batches, in segments, each prefix run once. They must be equal in every
layer, row for row.
"""

import argparse
import inspect
import multiprocessing
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from routing.cli.common import quiet_transformers
from routing.cli.progress import StderrProgress
from routing.measure.forward import TokenIds
from routing.measure.policy import LoadedPolicy, load_policy
from routing.query.batches import CORPUS_ORDER
from routing.query.imbalance import tabulated
from routing.stages.begin import MeasureRequest, prepare
from routing.stages.measure import measure
from routing.store.run import open_run

POLICY, CORPUS = "data/demo/policy", "data/demo/trajectories/shop.jsonl"
MAX_TOKENS = 20_000
EP_SIZES = (2, 4, 8)
FORK = multiprocessing.get_context("fork")  # the weights are loaded once

Received = dict[tuple[int, int, int], int]  # (ep, layer, rank) to rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Dispatch:
    """What each rank needs: the policy, and every trajectory of the batch."""

    policy: LoadedPolicy
    sequences: tuple[TokenIds, ...]
    num_experts: int


def asked_and_received(policy: str, corpus: Path, *, eps: Sequence[int], max_tokens: int) -> tuple[Received, Received]:
    """(rows that the query names, rows that arrived) by EP size, layer and rank, the whole corpus being one batch."""
    with tempfile.TemporaryDirectory() as folder:
        request = _request(policy, corpus, out=Path(folder) / "run", max_tokens=max_tokens)
        with StderrProgress() as progress:
            measure(request, progress)
            prepared = prepare(request, progress)
        asked = _asked(request.out, eps, batch_tokens=prepared.tree.tokens_logical)
    dispatch = Dispatch(
        policy=load_policy(prepared.files, device=prepared.device, dtype=prepared.dtype),
        sequences=tuple(one.token_ids for one in prepared.corpus.trajectories),
        num_experts=prepared.files.shape.num_experts,
    )
    received: Received = {}
    for ep in eps:
        received |= _received(dispatch, ep)
    return asked, received


def _asked(out: Path, eps: Sequence[int], *, batch_tokens: int) -> Received:
    with tabulated(open_run(out), eps=eps, batch_sizes=(batch_tokens,), view="logical", order=CORPUS_ORDER) as tables:
        rank_loads = tables.con.table("rank_loads").select("ep", "layer", "rank", "routed_rows")
        return {(ep, layer, rank): rows for ep, layer, rank, rows in rank_loads.fetchall()}


def _received(dispatch: Dispatch, ep: int) -> Received:
    with tempfile.TemporaryDirectory() as folder:
        answers = FORK.SimpleQueue()
        ranks = [FORK.Process(target=_rank, args=(dispatch, rank, ep, f"file://{folder}/meet", answers)) for rank in range(ep)]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join()
        if any(one.exitcode for one in ranks):
            raise RuntimeError(f"ep={ep}: a rank failed, exit codes {[one.exitcode for one in ranks]}")
        return {place: rows for _ in ranks for place, rows in answers.get().items()}


def _rank(dispatch: Dispatch, rank: int, ep: int, meet: str, answers: "multiprocessing.SimpleQueue[Received]") -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=ep)
    routed = _run_own(dispatch, dispatch.sequences[rank::ep])
    counted: Received = {}
    for layer, (rows_TH, ids_TK) in routed.items():
        ids_R = send_to_owners(rows_TH, ids_TK, ep=ep, rank_experts=dispatch.num_experts // ep)
        if not bool((ids_R // (dispatch.num_experts // ep) == rank).all()):
            raise RuntimeError(f"layer {layer}: rank {rank} received rows of experts that are not its own")
        counted[ep, layer, rank] = len(ids_R)
    dist.destroy_process_group()
    answers.put(counted)


def _run_own(dispatch: Dispatch, sequences: Sequence[TokenIds]) -> dict[int, tuple[Tensor, Tensor]]:
    """By layer: hidden rows [T, H] and expert ids [T, K] of all tokens of the sequences, T being 0 where there are none."""
    caught: dict[int, list[tuple[Tensor, Tensor]]] = {one.layer: [] for one in dispatch.policy.experts}
    for experts in dispatch.policy.experts:
        signature = inspect.signature(type(experts.module).forward)

        def catch(module, args, kwargs, experts=experts, signature=signature):  # type: ignore[no-untyped-def]
            given = list(signature.bind(module, *args, **kwargs).arguments.values())
            ids_TK = given[1 + experts.ids_at[1]]
            caught[experts.layer].append((given[1].reshape(len(ids_TK), -1), ids_TK))

        experts.module.register_forward_pre_hook(catch, with_kwargs=True)
    with torch.inference_mode():
        for sequence in sequences:
            dispatch.policy.model(input_ids=torch.from_numpy(sequence.astype("int64"))[None], use_cache=False)
    hidden_size, top_k = dispatch.policy.model.config.hidden_size, dispatch.policy.top_k
    nothing = (torch.empty(0, hidden_size), torch.empty(0, top_k, dtype=torch.int64))
    return {layer: tuple(map(torch.cat, zip(nothing, *pairs, strict=True))) for layer, pairs in caught.items()}  # type: ignore[misc]


def send_to_owners(rows_TH: Tensor, ids_TK: Tensor, *, ep: int, rank_experts: int) -> Tensor:
    """Sends each row to the owner of each of its experts by all-to-all; the expert ids of the rows received here [R]."""
    owner_P = (ids_TK // rank_experts).flatten()
    order_P = owner_P.argsort(stable=True)
    num_sent = owner_P.bincount(minlength=ep)
    num_received = torch.empty_like(num_sent)
    dist.all_to_all_single(num_received, num_sent)
    splits = {"output_split_sizes": num_received.tolist(), "input_split_sizes": num_sent.tolist()}
    total = int(num_received.sum())
    received_RH, received_R = rows_TH.new_empty(total, rows_TH.shape[1]), ids_TK.new_empty(total)
    dist.all_to_all_single(received_RH, rows_TH[order_P // ids_TK.shape[1]].contiguous(), **splits)
    dist.all_to_all_single(received_R, ids_TK.flatten()[order_P].contiguous(), **splits)
    return received_R


def _request(policy: str, corpus: Path, *, out: Path, max_tokens: int) -> MeasureRequest:
    return MeasureRequest(
        policy=policy,
        corpus=(corpus,),
        out=out,
        label=None,
        tokenizer=None,
        format=None,
        domain=None,
        segment_tokens=1024,
        max_tokens=max_tokens,
        device="cpu",
        dtype="float32",
        on_bad_line="stop",
        command=("check_dispatch",),
    )


def main() -> None:
    """Prints a line an EP size; exit code 1 where one row arrived elsewhere than the query says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default=POLICY)
    parser.add_argument("--corpus", type=Path, default=Path(CORPUS))
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS)
    arguments = parser.parse_args()
    quiet_transformers()
    asked, received = asked_and_received(arguments.policy, arguments.corpus, eps=EP_SIZES, max_tokens=arguments.max_tokens)
    for ep in EP_SIZES:
        places = [place for place in asked if place[0] == ep]
        odd = [place for place in places if asked[place] != received[place]]
        total = sum(received[place] for place in places)
        verdict = "equal"
        if odd:
            verdict = f"not equal, first (ep, layer, rank) {odd[0]}: {asked[odd[0]]} asked, {received[odd[0]]} arrived"
        print(f"ep {ep}: {total:,} rows to {len(places)} (layer, rank) places, {verdict}")
    sys.exit(asked != received)


if __name__ == "__main__":
    main()
