"""What a router without any preference would show: the part of an imbalance that is drawing and not preference.

Every token picks k of E experts, each set as likely as any other. A rank with E/n of them then gets, of B tokens, a sum of B
hypergeometric draws, close to normal with mean k B / n and variance B k (1/n)(1 - 1/n)(E - k)/(E - 1). Over the even share:

    imbalance of one layer of one batch = 1 + z sqrt((n - 1)(E - k) / ((E - 1) k B))
"""

from math import sqrt
from statistics import NormalDist


def uniform_worst(*, ep: int, num_experts: int, top_k: int, num_layers: int, num_batches: int, batch_tokens: float) -> float:
    """The median of the worst imbalance over ranks, layers and batches under a uniform router; 1.0 is even.

    z is the normal quantile at which n ranks, taken one by one, leave (1/2)^(1 / (layers x batches)) below. Left out: that ranks
    of one layer can't all be busy, which at such quantiles lowers z by less than the median says. `batch_tokens` is a mean.
    """
    left_below = 0.5 ** (1 / (num_layers * num_batches))
    z = NormalDist().inv_cdf(1 - (1 - left_below) / ep)
    spread = (ep - 1) * (num_experts - top_k) / ((num_experts - 1) * top_k * batch_tokens)
    return 1 + z * sqrt(spread) if num_experts > top_k else 1.0
