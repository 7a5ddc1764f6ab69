r"""FedBN: everything is averaged but batch norm, which every client keeps.

Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021. Star-PFL, section 7
of its specification; θ = (u without batch norm, v_k scales, shifts and statistics of the norm layers):

    θ_k⁺ = SGD(u, v_k)        u ← Σ_k n_k u_k⁺ / Σ_k n_k        v_k ← v_k⁺        scored: (u, v_k)

All clients start from one model. Differs from the paper: u is weighted by n_k, as Star-PFL's FedAvg is (there, and in
the code behind Star-PFL, all clients weigh the same: ``client_weighting="uniform"``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pfl_core.algorithm import register
from pfl_core.algorithms.partial import Partial
from pfl_core.layout import NORM, STATISTIC, Field, Layout


@register(
    "fedbn",
    papers=("star_pfl",),
    shares="all but batch norm, whose scales, shifts and statistics stay with their client",
    variants={"uniform": {"client_weighting": "uniform"}, "average_statistics": {"buffer_policy": "average"}},
)
@dataclass(frozen=True)
class FedBN(Partial):
    """Without norm layers it is FedAvg to the bit."""

    client_weighting: Literal["uniform", "samples"] = "samples"

    def keeps(self, layout: Layout) -> Callable[[Field], bool]:
        kept = {NORM, STATISTIC} if self.buffer_policy == "local" else {NORM}
        return lambda f: f.kind in kept
