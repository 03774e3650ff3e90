"""What the largest of n batches says of the next ones, supposing nothing but that they come as the n did.

The words of these sentences stand here: a fit writes them into a table, and an audit knows them again.
"""

CONFIDENCE = 0.95
NEEDED_BATCHES = (("95%", 59), ("99%", 299))  # the least n with 1 - share**n of 95%
NUM_TO_COVER = NEEDED_BATCHES[0][1]

HELD_OUT = ", held out "
NEXT_BATCH = "; chance that the next batch "
MORE_UNITS = ": units that reach coverage "
ONLY_PROVEN = "Only min(EP, E/k) = "
IS_PROVEN = " is proven."


def covered_share(num_batches: int) -> float:
    """The share of batches at or below the largest of `num_batches`, at 95% confidence: 0.05^(1/n)."""
    return float((1 - CONFIDENCE) ** (1 / num_batches))


def covered_percent(num_batches: int) -> str:
    """`81.8%`: that share cut, not rounded, so that it never says more than there is."""
    return f"{int(covered_share(num_batches) * 1000) / 10:g}%"


def next_exceeds(num_batches: int, num_next: int = 1) -> float:
    """The chance that one of the next `num_next` batches exceeds the largest of `num_batches`: m / (n + m)."""
    return num_next / (num_batches + num_next)
