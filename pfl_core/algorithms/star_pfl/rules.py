"""When Star-PFL calls an entry steady: the threshold, and the readings of what surrounds it (A2 to A5, A16, A17)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pfl_core.ops import count_true


@dataclass(frozen=True)
class Rule:
    """``rule(score, count, among)``: bool [..., d], True where an entry is steady.

    The two readings that go tensor by tensor (``floor``, ``empty_is_steady``) take [d] only.
    """

    threshold: float | None  # T; None: nothing ever is
    inclusive: bool = False  # at exactly T an entry is active (A3)
    min_history: int = 1  # so many records are needed (A4)
    floor: float | None = None  # at least this quantile of a tensor's scores is steady (A16)
    empty_is_steady: bool = False  # no record counts as score 0 where the tensor has any (A5, "skip")
    tensors: tuple[slice, ...] = ()  # the model's tensors

    def __call__(self, score: Tensor, count: Tensor, among: Tensor) -> Tensor:
        if self.threshold is None:
            return torch.zeros_like(among)
        cut = self.threshold if self.floor is None else self.raised(score, among)
        steady = score < cut if self.inclusive else score <= cut  # not-a-number never is
        known = count.bool() if self.min_history == 1 else count >= self.min_history  # the former is faster
        if self.empty_is_steady:
            for part in self.tensors:
                known[part] |= (count[part] == 0) & count[part].bool().any()
        return steady.logical_and_(known)

    def raised(self, score: Tensor, among: Tensor) -> Tensor:
        """[d] the released code's threshold: T, or a quantile of the tensor's scores if that is larger.

        Percent there is share here: its 0.7, less what part of the model the tensor's frozen entries are, is read as a
        percentile (0.007 less a hundredth of that part).
        """
        cut, calm = torch.full_like(score, self.threshold), (score <= self.threshold).logical_and_(among)
        for part in self.tensors:
            known = count_true(among[part])
            share = self.floor - (part.stop - part.start - known) / len(score) / 100
            enough = int(share * (known - 1)) + 2  # with so many at most T the quantile is, too, and is not looked for
            if known and share > 0 and count_true(calm[part]) < enough:
                cut[part] = max(self.threshold, quantile(score[part][among[part]], share))
        return cut


def quantile(x: Tensor, q: float) -> float:
    """The q-quantile of x [n], linear between neighbours; many times as fast as ``torch.quantile``."""
    place = q * (len(x) - 1)
    below, above = int(place), min(int(place) + 1, len(x) - 1)
    found = np.partition(x.cpu().numpy(), (below, above))
    low, high = found[below].item(), found[above].item()
    return low + (high - low) * (place - below)
