r"""pFedGate's server: every block averaged over the clients that touched it. Specification section 4.7.

    θ[j] ← Σ_k n_k θ_k[j] / Σ_k n_k over the sampled clients k with j in U_k;   unchanged where nobody sent

which is θ[j] plus the weighted mean of the updates. "dense": what a client did not touch counts as θ[j].
"whole_models", as the released code: a client sends all of θ_k; blocks that it did not touch have moved by weight decay
and momentum. Over "everyone", its default: absent clients count as well, with the θ that they were last sent.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pfl_core.algorithms.pfedgate.blocks import Blocks
from pfl_core.algorithms.pfedgate.local import ClientUpdate
from pfl_core.ops import accumulate, select


class Server:
    """Folds clients' rounds into the next model as they come.

    ``share`` [S]: their weights; with the weight of those that are ``absent`` they sum to 1.
    """

    def __init__(self, blocks: Blocks, aggregation: str, shared: Tensor, share: Tensor, absent: float = 0.0) -> None:
        self.blocks, self.shared, self.share = blocks, shared, share
        self.by_index, self.whole = aggregation == "by_index", aggregation == "whole_models"
        self.total = absent * shared if absent else torch.zeros_like(shared)  # [e]
        self.touched = np.zeros((len(share), blocks.num_blocks), dtype=bool)
        self.kept, self.loss = torch.full((len(share),), torch.nan), torch.full((len(share),), torch.nan)
        self.steps = torch.zeros(len(share), dtype=torch.int64)
        self.scale = shared.new_zeros(blocks.num_blocks)
        self.gate_scale = torch.full((2, len(share)), torch.nan, dtype=torch.float64)  # mean and deviation over blocks
        self.trained, self.masks = 0, set()

    def add(self, out: ClientUpdate, places: Tensor) -> None:
        """The rounds of the clients at these places."""
        fallback = torch.zeros_like(self.shared) if self.by_index else self.shared
        steps = out.steps.clamp(min=1)
        self.touched[places.numpy()] = (out.log.used > 0) | self.whole
        self.loss[places], self.steps[places] = out.loss, out.steps
        self.kept[places] = torch.where(
            out.steps > 0, torch.from_numpy(self.blocks.share(out.log.used)).float() / steps, torch.nan
        )
        self.gate_scale[:, places] = out.log.scales()
        self.scale += (out.log.scale / steps[:, None].to(self.scale)).sum(0)
        self.trained += int((out.steps > 0).sum())
        self.masks |= out.log.masks
        for row, place in zip(out.theta, places.tolist(), strict=True):
            mine = self.touched[place]
            sent = row if mine.all() else select(self.entries(mine), row, fallback)
            accumulate(self.total, sent[None], self.share[place : place + 1])

    def entries(self, kept: np.ndarray) -> Tensor:
        """Bool [e] of a mask on blocks; True on statistics."""
        wide = self.blocks.expand(torch.from_numpy(kept).to(self.shared.device))
        return torch.cat([wide, torch.ones_like(wide[:1]).expand(len(self.shared) - len(wide))])

    def merged(self) -> Tensor:
        """The next model [e]; exactly the weighted mean where all clients sent."""
        if not self.by_index or self.touched.all():
            return self.total
        cover = torch.from_numpy(self.touched).to(self.share).T @ self.share  # [L] share of the weight that sent
        cover[torch.from_numpy(self.touched.all(0))] = 1.0
        d = self.blocks.num_params
        wide = self.blocks.expand(cover)
        mean = torch.where(wide > 0, self.total[:d] / wide, self.shared[:d])
        return torch.cat([mean, self.total[d:]])

    def gate_values(self) -> Tensor:
        """M' [L], mean over each client's batches, then over the clients that had one."""
        return self.scale / max(self.trained, 1)

    def notes(self) -> dict[str, Tensor | int]:
        """Upload in values and bits, shares kept and sent, training losses, and how many masks there were."""
        values = torch.from_numpy(self.touched @ self.blocks.sizes)
        return {
            "train_loss": self.loss,
            "steps": self.steps,
            "gate_scale": self.gate_scale[0],
            "gate_spread": self.gate_scale[1],
            "upload": values,
            "upload_bits": torch.full_like(values, 0 if self.whole else self.blocks.num_blocks),
            "upload_ratio": values / self.blocks.num_params,
            "kept_ratio": self.kept,
            "distinct_masks": len(self.masks),
        }
