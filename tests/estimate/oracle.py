"""The sum of the published formulas, added up again the slow way: every layer, every rank, every instant, in Fractions.

Written from the formulas, not from the estimator: nothing of `routing.estimate` is imported.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, gcd

B = 2


@dataclass(frozen=True)
class Oracle:
    """One wave on one model, with the allowance of every layer (one value for all, or a list)."""

    shape: object
    wave: object
    flat: Fraction
    by_layer: tuple = ()

    def rank_rows(self, group, rank, mixer):
        busiest = max(group.attention_rows)
        if self.wave.topology.cp >= 4:
            return max([busiest, *(group.gdn_rows or ())])
        if mixer == "attention":
            return group.attention_rows[rank]
        return busiest if group.gdn_rows is None else group.gdn_rows[rank]

    def routed_rows(self, group, rank, mixer):
        topology = self.wave.topology
        layout = group.gdn_rows if mixer == "gdn" and group.gdn_rows is not None else group.attention_rows
        if topology.ep == 1:
            return max(1, self.rank_rows(group, rank, mixer))
        if topology.ep_group_is_cp_group:
            return max(1, ceil(Fraction(sum(layout), topology.ep)))
        return max(1, max(layout))

    def routed_bytes(self, rows, rho, gradient):
        s, adapter = self.shape, self.wave.adapter
        h, f, c = s.hidden_size, s.expert_ffn_size, 2 if self.wave.topology.ep == 1 else 1
        r = adapter.expert_rank if adapter and "experts" in adapter.targets else 0
        eff = max(8, r) if r else 0
        local = s.num_experts // self.wave.topology.ep
        t1, t2 = local * eff * (h + 2 * f) * B, local * eff * (f + h) * B
        p1, p2 = (t1, t2) if 0 < r < 8 else (0, 0)
        base = c * h + 3 * f + 3 * h
        if gradient:
            stages = [
                (base + 2 * eff, p1 + p2),
                (base - h + 2 * eff, p2 + t2 + p1),
                (c * h + 4 * f + eff, p1 + t1),
                (c * h + 6 * f + eff, p1),
            ]
        else:
            stages = [(base, 0), (base - h + eff, p2 + t2), (c * h + 4 * f + eff, p1 + t1), (c * h + 6 * f, 0)]
        return max(ceil(Fraction(rows * s.top_k * B * count) * rho) + fixed for count, fixed in stages)

    def retained(self, stages):
        s = self.shape
        a, hq = s.num_query_heads * s.head_dim, s.num_query_heads
        total, tapes = 0, []
        for one in stages:
            if one.q == 0 or one.k == 0:
                continue
            q_pad, k_pad = max(256, ceil(one.q_len / 128) * 128), max(128, ceil(one.k_len / 64) * 64)
            kv = s.num_kv_heads * 2 * s.head_dim * B
            total += 2 * a * q_pad + (a * B + 8 * hq) * q_pad + ((a * B + 4 * hq) * one.q if q_pad != one.q else 0)
            total += kv * k_pad if one.kind == "local" else kv * one.k + (kv * k_pad if k_pad != one.k else 0)
            tapes.append((one.kind != "local", hq * (s.head_dim + 1) * 4 * one.q))
        return total + sum(tape for _, tape in tapes) - (min(tapes)[1] if tapes else 0)

    def stage(self, group, rank, layer, rho):
        """One layer's stage of a gradient group, TE workspaces with it."""
        s, topology = self.shape, self.wave.topology
        mixer = s.mixers[layer]
        m = max(1, self.rank_rows(group, rank, mixer))
        a, kv, h = s.num_query_heads * s.head_dim, s.num_kv_heads * s.head_dim, s.hidden_size
        if mixer == "attention":
            total = m * B * (2 * h + (7 if s.output_gate else 5) * a + 3 * kv)
            if topology.cp in (1,):
                pass
            elif group.attention_stages is None or topology.cp >= 4:
                total += m * B * (3 * a + 2 * kv)
            else:
                total += self.retained(group.attention_stages[rank])
        else:
            g = s.gdn
            kw, v, hv = g.num_key_heads * g.key_head_dim, g.num_value_heads * g.value_head_dim, g.num_value_heads
            total = m * B * (h + 2 * kw + 2 * hv * g.key_head_dim + 6 * v + 64 * hv + (h + v if topology.cp > 1 else 0))
        total += m * 2 * h * B
        if not self.wave.te_workspaces_held:
            total += 5 * (32 * 1024 * 1024 + 1024)
        if layer not in s.moe_layers:
            return total + m * B * (3 * s.dense_ffn_size + h)
        calibrated = topology.ep == 1 and (s.num_experts, s.top_k) == (256, 8)
        total += m * (13 * s.num_experts + 4 if calibrated else 14 * s.num_experts + 16) + m * 3 * s.shared_ffn_size * B
        rows = self.routed_rows(group, rank, mixer)
        returned = 0 if not s.shared_ffn_size else h * B * (2 if s.shared_gated else 1)
        return total + self.routed_bytes(rows, rho, True) + max(m, rows) * returned

    def forward_stage(self, group, rank, layer, rho):
        s = self.shape
        mixer = s.mixers[layer]
        m = max(1, self.rank_rows(group, rank, mixer))
        total = 4 * s.hidden_size * B * m
        if layer not in s.moe_layers:
            return total + m * B * (3 * s.dense_ffn_size + s.hidden_size)
        rows = self.routed_rows(group, rank, mixer)
        returned = s.hidden_size * B if s.shared_ffn_size else 0
        return total + self.routed_bytes(rows, rho, False) + max(m, rows) * returned

    def head(self):
        if self.wave.head is None:
            return 0
        return min(self.wave.head.projected_rows, 512) * self.shape.vocab_size * B * (3 if self.wave.head.targets else 1)

    def boundary(self, group, rank, layer):
        layouts = self.wave.layer_inputs
        mixers = ("attention", *self.shape.mixers)
        layout = layouts[layer] if layouts else ("gdn" if mixers[layer] == mixers[layer + 1] == "gdn" else "attention")
        return self.shape.hidden_size * B * self.rank_rows(group, rank, layout)

    def gradient(self, group, boundaries):
        dense = len(self.shape.moe_layers) < len(self.shape.mixers)
        return self.shape.hidden_size * B * max(group.attention_rows) * (boundaries if dense else 1)

    def pending(self, layer):
        s, adapter, wave = self.shape, self.wave.adapter, self.wave
        if not adapter or not adapter.pending_gradients or not wave.terms.adapter_gradients or layer not in s.moe_layers:
            return 0
        if "experts" not in adapter.targets:
            return 0
        local, h, f = s.num_experts // wave.topology.ep, s.hidden_size, s.expert_ffn_size
        return local * adapter.expert_rank * (h + 2 * f + f + h) * B

    def common(self):
        s, wave, t = self.shape, self.wave, self.wave.topology
        per_row = {"target_logprob": 4, "logits": s.vocab_size * B, "hidden": s.hidden_size * B}
        total = sum(one.rows * (12 * one.k if one.kind == "top_k" else per_row[one.kind]) for one in wave.outputs)
        if wave.first_gradient_execution and wave.terms.cold_transients and any(group.gradient for group in wave.groups):
            total += 67108864
        if t.ep > 1:
            longest = max(group.longest_packed_tokens for group in wave.groups)
            busiest = max(max([*group.attention_rows, *(group.gdn_rows or ())]) for group in wave.groups)
            capacity = max(min(longest, 2 * ceil(Fraction(longest, 512 * t.cp)) * 512), busiest)
            unit = 4 // gcd(4, t.ep)
            rows = ceil(max(ceil(capacity / unit) * unit, 512) / 64) * 64
            if rows > wave.held_hybridep_rows:
                total += rows * t.ep * (2 * s.hidden_size + 5 * s.num_experts + 4 * (s.hidden_size // 128))
        return total

    def ranks(self):
        if self.wave.topology.cp >= 4:
            return [0]
        return range(self.wave.topology.cp)

    def floor(self):
        gradient_groups = [group for group in self.wave.groups if group.gradient]
        layers = range(len(self.shape.mixers))
        totals = []
        for rank in self.ranks():
            stages = [self.stage(group, rank, layer, self.flat) for group in gradient_groups for layer in layers]
            stages += [
                self.forward_stage(group, rank, layer, self.flat)
                for group in self.wave.groups
                if not group.gradient
                for layer in layers
            ]
            alive = sum(self.boundary(group, rank, layer) for group in gradient_groups for layer in layers)
            alive += sum(self.gradient(group, len(layers)) for group in gradient_groups)
            extra = 0
            for group in gradient_groups:
                for layer in layers:
                    above = sum(self.pending(other) for other in layers if other >= layer)
                    gone = sum(self.boundary(group, rank, other) for other in layers if other > layer)
                    extra = max(extra, above - gone)
            totals.append(alive + max([*stages, self.head()]) + extra)
        return self.common() + max(totals)

    def walk(self):
        """One gradient group and no other: the sum as it is written."""
        (group,) = self.wave.groups
        layers = range(len(self.shape.mixers))
        instants = []
        for rank in self.ranks():
            every = sum(self.boundary(group, rank, layer) for layer in layers)
            if self.wave.head is not None:
                instants.append(every + self.gradient(group, len(layers)) + self.head())
            for layer in layers:
                rho = self.by_layer[layer] if self.by_layer else self.flat
                alive = sum(self.boundary(group, rank, other) for other in layers if other <= layer)
                above = sum(self.pending(other) for other in layers if other >= layer)
                instants.append(alive + self.gradient(group, layer + 1) + self.stage(group, rank, layer, rho) + above)
        return self.common() + max(instants)
