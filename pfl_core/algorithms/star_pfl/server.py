"""What Star-PFL's server adds up while clients report, one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from pfl_core.ops import bits, count_true, keep_


@dataclass
class Collected:
    """Sums over the clients so far; written into by ``add_`` and ``note``."""

    total: Tensor  # [d] sum of w_i delta_i over those that sent an entry
    weight: Tensor  # [d] sum of w_i over the same
    sent: list[int] = field(default_factory=list)  # values of each client
    trained: list[int] = field(default_factory=list)  # entries that each trained
    macs: list[int] = field(default_factory=list)  # multiply-adds of an image in each one's weight gradients

    @classmethod
    def empty(cls, like: Tensor) -> Collected:
        return cls(torch.zeros_like(like), torch.zeros_like(like))

    def add_(self, delta: Tensor, sent: Tensor, weight: float) -> None:
        """A client's ``delta`` [d], which may be written into, on the entries ``sent``."""
        on = bits(sent, delta)
        self.total.add_(keep_(delta, on), alpha=weight)
        self.weight.sub_(on.to(delta.dtype), alpha=weight)  # on = -1 where sent

    def mean(self) -> Tensor:
        """[d] weighted mean over those that sent an entry, 0 where nobody did."""
        return self.total / torch.where(self.weight > 0, self.weight, 1.0)

    def note(self, active: Tensor, sent: Tensor, uses: Tensor) -> None:
        """Count a client's masks [d]; ``uses`` [d] of each weight by an image."""
        self.sent.append(count_true(sent))
        self.trained.append(count_true(active))
        self.macs.append(int((uses * active).sum()))

    def notes(self) -> dict[str, Tensor]:
        """One value a client, [S]."""
        return {
            "upload": torch.tensor(self.sent),
            "active_share": torch.tensor(self.trained) / len(self.total),
            "weight_macs": torch.tensor(self.macs),
        }
