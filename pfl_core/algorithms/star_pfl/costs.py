r"""Costs of a Star-PFL round: by the paper's accounting (Table 3), and with downloads and masks included.

The paper's "MB per client" covers the upload only, in float32 and with batch-norm statistics. It is in MiB and is 20
times the payload of one client, that is the sum over the 20 clients. It counts neither downloads nor mask bits. The
paper's FLOPs are those of dense training, minus the weight gradients of frozen entries:

    FLOPs_i = E n_i 2 (MAC + MAC + Σ_j M_ij u_j)        u_j: how often an image uses weight j; MAC = Σ_j u_j

The paper states neither rule; both were reconstructed from the numbers in Table 3. Unstructured masks save no time on
ordinary hardware.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pfl_core.costs import payload_bytes
from pfl_core.layout import NORM, STATISTIC, Layout

PAPER_CLIENTS = 20
AVERAGES_STATISTICS = ("fedavg", "lotteryfl", "star_pfl")  # methods that send batch-norm statistics
SMOOTHED, WITHIN = 5, 0.005  # plateau: rounds in the moving average, and its largest distance to the best value


@dataclass(frozen=True)
class Traffic:
    """Bytes of one client in one round."""

    upload_payload: float
    upload_mask: float
    download: float

    @property
    def total(self) -> float:
        return self.upload_payload + self.upload_mask + self.download


def traffic(
    method: str, layout: Layout, upload: float, upload_bits: float = 0.0, before: float | None = None
) -> Traffic:
    """Upload and download of one client in one round, masks and statistics included.

    ``upload`` is the number of parameters and ``upload_bits`` the number of mask bits that the round noted. Batch-norm
    statistics count in both directions for the methods that average them. Star-PFL downloads the whole model and the
    server's mask. LotteryFL downloads the ``before`` entries that the client kept before the round (default: as many as
    it uploads, which is too low in a round that prunes).
    """
    statistics = layout.num_statistics if method in AVERAGES_STATISTICS else 0
    norms = sum(f.stop - f.start for f in layout.params if f.kind == NORM)
    kept = upload if before is None else before
    down = {"local": 0, "fedbn": layout.num_params - norms, "fedap": layout.num_params - norms, "lotteryfl": kept}
    down_bits = layout.num_params if method == "star_pfl" else 0
    return Traffic(
        payload_bytes(upload + statistics),
        payload_bytes(0, upload_bits),
        payload_bytes(down.get(method, layout.num_params) + statistics, down_bits),
    )


def paper_values(method: str, layout: Layout, upload: float | None = None) -> float:
    """Number of values that Table 3 counts for one client and round.

    ``upload`` is the number of parameters sent, for methods with masks. Local sends none. Table 3 counts batch norm for
    FedAP, although FedAP keeps it local, and not for FedBN.
    """
    if method == "local":
        return 0
    norms = sum(f.stop - f.start for f in layout.fields if f.kind in (NORM, STATISTIC))
    if method == "fedbn":
        return layout.num_entries - norms
    return (layout.num_params if upload is None else upload) + layout.num_statistics


def as_paper_comm(upload_payload: float) -> float:
    """One client's bytes in one round, converted to the unit of Table 3."""
    return upload_payload * PAPER_CLIENTS / 2**20


def round_flops(macs: float, weight_macs: float, samples: float, epochs: int, bias_adds: float = 0) -> float:
    """FLOPs of one client in one round by the paper's rule.

    ``macs`` are the multiply-adds of one image, ``weight_macs`` is Σ_j M_j u_j. ``bias_adds`` are the bias additions in
    the forward pass of one image. They are counted three times, like the products. With them, dense training agrees
    with Table 3 to 0.1 %.
    """
    return epochs * samples * (2 * (2 * macs + weight_macs) + 3 * bias_adds)


def rounds_to_convergence(values: Sequence[float]) -> int:
    """The first round (from 1) with the best value, e.g. mean validation accuracy. The paper does not define it."""
    return max(range(len(values)), key=lambda t: (_number(values[t]), -t)) + 1


def rounds_to_plateau(values: Sequence[float]) -> int | None:
    """The first round (from 1) at which the mean of the last five values is within 0.005 of the best value, or None."""
    best = max(map(_number, values), default=math.nan)
    for t in range(SMOOTHED, len(values) + 1):
        if sum(values[t - SMOOTHED : t]) / SMOOTHED >= best - WITHIN:
            return t
    return None


def _number(value: float) -> float:
    return -math.inf if math.isnan(value) else value
