"""Figures as they were published of a model of 256 experts, top-8."""

from decimal import Decimal

from routing.core.allowance import Generated
from routing.core.published import PublishedWorst
from routing.core.shapes import ModelShape

SHAPE = ModelShape(num_layers=40, moe_layers=tuple(range(40)), num_experts=256, top_k=8, hidden_size=2048, expert_ffn_size=512)
GENERATED = Generated(tool_version="0.1.0", tool_commit=None, generated_at="2025-01-01T00:00:00Z")


def row(policy, kind, ep, worst, *, batch_tokens=None, tokens=None, source="said so"):
    return PublishedWorst(
        policy=policy, kind=kind, ep=ep, batch_tokens=batch_tokens, worst_imbalance=Decimal(worst), tokens=tokens, source=source
    )


def measured(policy, ep, worst, *, batch_tokens=200_000, tokens=3_500_000):
    return row(policy, "measured", ep, worst, batch_tokens=batch_tokens, tokens=tokens)


# As published for 256 experts, top-8, batches of 200k tokens.
MEASURED = (
    measured("pretrained", 2, "1.22"),
    measured("pretrained", 4, "1.40"),
    measured("pretrained", 8, "1.62"),
    measured("trained", 2, "1.24"),
    measured("trained", 4, "1.41"),
    measured("trained", 8, "1.61"),
)
SMALL = row("rollouts", "small_sample", 8, "1.95", source="a small sample")
INFERRED = row("production", "inferred", 2, "1.35", source="one production run")
CONTEXT = row("any", "context", 2, "1.24", source="worst per layer 1.16 to 1.24")
ALL = (*MEASURED, SMALL, INFERRED, CONTEXT)
