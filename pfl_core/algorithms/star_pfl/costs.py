r"""What a Star-PFL round costs: the paper's accounting (Table 3) and an honest one beside it; star_pfl.md section 6.

The paper's "MB per client" is one way, float32, batch-norm statistics included, in MiB, and 20 times a client's
payload: the sum over its clients. It counts neither downloads nor mask bits. Its FLOPs are those of dense training, of
which freezing saves the weight gradients only:

    FLOPs_i = E n_i 2 (MAC + MAC + Σ_j M_ij u_j)        u_j: how often an image uses weight j; MAC = Σ_j u_j

Unstructured masks save no time on ordinary hardware; what is really computed is ``dense_flops``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from pfl_core.costs import payload_bytes, step_flops
from pfl_core.layout import NORM, STATISTIC, Layout

PAPER_CLIENTS = 20
AVERAGES_STATISTICS = ("fedavg", "lotteryfl", "star_pfl")  # of the methods compared; the others keep them at home
SENDS_MASK = ("lotteryfl", "star_pfl")
SMOOTHED, WITHIN = 5, 0.005  # rounds in a moving average, and how near the best one is near enough


@dataclass(frozen=True)
class Traffic:
    """Bytes of one client in one round."""

    upload_payload: float
    upload_mask: float
    download: float

    @property
    def total(self) -> float:
        return self.upload_payload + self.upload_mask + self.download


def traffic(method: str, layout: Layout, upload: float, upload_bits: float = 0.0) -> Traffic:
    """The honest accounting of a method: ``upload`` parameters and ``upload_bits`` of masks, as the round notes them.

    Batch-norm statistics travel with the methods that average them, both ways. Star-PFL sends the server's mask down
    with the whole model; LotteryFL's server knows what a client kept last, and sends that: ``upload`` of the round
    before, for which this has the round's own, too little where the client prunes (``sent`` of its results mends it).
    """
    statistics = layout.num_statistics if method in AVERAGES_STATISTICS else 0
    norms = sum(f.stop - f.start for f in layout.params if f.kind == NORM)
    down = {"local": 0, "fedbn": layout.num_params - norms, "fedap": layout.num_params - norms, "lotteryfl": upload}
    down_bits = layout.num_params if method == "star_pfl" else 0
    return Traffic(
        payload_bytes(upload + statistics),
        payload_bytes(0, upload_bits),
        payload_bytes(down.get(method, layout.num_params) + statistics, down_bits),
    )


def paper_values(method: str, layout: Layout, upload: float | None = None) -> float:
    """Values a round that Table 3 charges a client for; ``upload`` parameters where masks decide. Local: none.

    FedAP is charged for batch norm although it keeps it; FedBN is not.
    """
    if method == "local":
        return 0
    norms = sum(f.stop - f.start for f in layout.fields if f.kind in (NORM, STATISTIC))
    if method == "fedbn":
        return layout.num_entries - norms
    return (layout.num_params if upload is None else upload) + layout.num_statistics


def as_paper_comm(upload_payload: float) -> float:
    """A client's bytes in one round as Table 3 prints them."""
    return upload_payload * PAPER_CLIENTS / 2**20


def round_flops(macs: float, weight_macs: float, samples: float, epochs: int, bias_adds: float = 0) -> float:
    """The paper's rule for one client and round; ``macs`` of one image, ``weight_macs`` Σ_j M_j u_j.

    ``bias_adds``: additions of biases in an image's forward pass, counted three times as products are; with them dense
    training agrees with Table 3 to 0.1 %.
    """
    return epochs * samples * (2 * (2 * macs + weight_macs) + 3 * bias_adds)


def dense_flops(model: nn.Module, shape: tuple[int, ...], samples: float, epochs: int) -> float:
    """What one client really computes in a round, masks or not: torch's count (no gradient of the images)."""
    return epochs * samples * step_flops(model, shape)[1]


def rounds_to_convergence(values: Sequence[float]) -> int:
    """The first round, from 1, with the best value: mean validation accuracy (ours; the paper does not say)."""
    return max(range(len(values)), key=lambda t: (_number(values[t]), -t)) + 1


def rounds_to_plateau(values: Sequence[float]) -> int | None:
    """The first round whose mean over the last five is within 0.005 of the best value; None if none is."""
    best = max(map(_number, values), default=math.nan)
    for t in range(SMOOTHED, len(values) + 1):
        if sum(values[t - SMOOTHED : t]) / SMOOTHED >= best - WITHIN:
            return t
    return None


def _number(value: float) -> float:
    return -math.inf if math.isnan(value) else value
