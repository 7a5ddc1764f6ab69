r"""FedBN: everything is averaged except batch norm, which stays with each client.

Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021. A baseline of
Star-PFL. θ = (u, v_k): v_k are the scales, shifts and statistics of the norm layers, u is everything else.

    θ_k⁺ = SGD(u, v_k)        u ← Σ_k n_k u_k⁺ / Σ_k n_k        v_k ← v_k⁺        scored: (u, v_k)

All clients start from the same model. Differs from the paper: u is weighted by n_k, as in Star-PFL's FedAvg. In the
paper, and in the PersonalizedFL code that Star-PFL builds on, clients have equal weights
(``client_weighting="uniform"``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pfl_core.algorithm import register
from pfl_core.algorithms.partial import Partial, PartialState
from pfl_core.federation import Federation
from pfl_core.layout import NORM, STATISTIC, Field, Layout


@register(
    "fedbn",
    papers=("star_pfl",),
    shares="all but batch norm, whose scales, shifts and statistics stay with their client",
    variants={"uniform": {"client_weighting": "uniform"}, "average_statistics": {"buffer_policy": "average"}},
)
@dataclass(frozen=True)
class FedBN(Partial[PartialState]):
    """Without norm layers it is bitwise equal to FedAvg."""

    client_weighting: Literal["uniform", "samples"] = "samples"

    def warnings(self, fed: Federation) -> list[str]:
        hint = "only batch norm is personal, not group or layer norm; lenet_small has it"
        return [f"{text}; {hint}" for text in super().warnings(fed)]

    def is_personal(self, layout: Layout) -> Callable[[Field], bool]:
        personal = {NORM, STATISTIC} if self.buffer_policy == "local" else {NORM}
        return lambda f: f.kind in personal
