r"""pFedGate's server: every block is averaged over the clients that used it (Algorithm 1).

    θ[j] ← Σ_k n_k θ_k[j] / Σ_k n_k over the sampled clients k with j in U_k;   unchanged if there is none

This equals θ[j] plus the weighted mean of the updates. Options of ``aggregation`` besides this "by_index":

- "dense", not in the paper: a block that a client did not use counts as θ[j].
- "whole_models", as in the released code: clients send all of θ_k. Blocks that a client did not use have moved by
  weight decay and momentum.

With ``averaged_over="everyone"``, the default of the released code, absent clients count too, with the current θ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_core.algorithms.pfedgate.blocks import Blocks
from pfl_core.algorithms.pfedgate.local import ClientUpdate
from pfl_core.ops import accumulate, select


class Server:
    """Adds up the clients' updates of a round and returns the next model.

    ``shared`` [e] is θ. ``share`` [S] are the weights of the participants and ``absent`` is the total weight of the
    absent clients; together they sum to 1.
    """

    def __init__(self, blocks: Blocks, aggregation: str, shared: Tensor, share: Tensor, absent: float = 0.0) -> None:
        self.blocks, self.shared, self.share = blocks, shared, share
        self.by_index, self.whole = aggregation == "by_index", aggregation == "whole_models"
        self.total = absent * shared if absent else torch.zeros_like(shared)  # [e] weighted sum so far
        self.touched = np.zeros((len(share), blocks.num_blocks), dtype=bool)  # [S, L] blocks sent
        self.kept, self.loss = torch.full((len(share),), torch.nan), torch.full((len(share),), torch.nan)
        self.steps = torch.zeros(len(share), dtype=torch.int64)
        self.scale = shared.new_zeros(blocks.num_blocks)
        # Mean and standard deviation of M over the blocks, for each client
        self.gate_scale = torch.full((2, len(share)), torch.nan, dtype=torch.float64)
        self.num_trained = 0  # clients with at least one batch
        self.masks: set[bytes] = set()

    def add(self, out: ClientUpdate, places: Tensor) -> None:
        """Add the updates of some clients; ``places`` are their positions among the S participants."""
        fallback = torch.zeros_like(self.shared) if self.by_index else self.shared
        steps = out.steps.clamp(min=1)
        self.touched[places.numpy()] = (out.log.used > 0) | self.whole
        self.loss[places], self.steps[places] = out.loss, out.steps
        self.kept[places] = torch.where(
            out.steps > 0, torch.from_numpy(self.blocks.share(out.log.used)).float() / steps, torch.nan
        )
        self.gate_scale[:, places] = out.log.scales()
        self.scale += (out.log.scale / steps[:, None].to(self.scale)).sum(0)
        self.num_trained += int((out.steps > 0).sum())
        self.masks |= out.log.masks
        for row, place in zip(out.theta, places.tolist(), strict=True):
            touched = self.touched[place]
            sent = row if touched.all() else select(self.entries(touched), row, fallback)
            accumulate(self.total, sent[None], self.share[place : place + 1])

    def entries(self, kept: np.ndarray) -> Tensor:
        """Block mask [L] -> entry mask bool [e], True on batch-norm statistics."""
        params = self.blocks.expand(torch.from_numpy(kept).to(self.shared.device))
        return torch.cat([params, torch.ones_like(params[:1]).expand(len(self.shared) - len(params))])

    def merged(self) -> Tensor:
        """The next model [e]."""
        if not self.by_index or self.touched.all():
            return self.total
        cover = torch.from_numpy(self.touched).to(self.share).T @ self.share  # [L] total weight of the senders
        cover[torch.from_numpy(self.touched.all(0))] = 1.0  # without rounding error
        d = self.blocks.num_params
        weight = self.blocks.expand(cover)  # [d]
        mean = torch.where(weight > 0, self.total[:d] / weight, self.shared[:d])
        return torch.cat([mean, self.total[d:]])

    def gate_values(self) -> Tensor:
        """M' [L], averaged over each client's batches, then over the clients that had a batch."""
        return self.scale / max(self.num_trained, 1)

    def notes(self) -> dict[str, Any]:
        """The round's notes: losses, steps, scales, uploads, shares kept and sent, number of distinct masks."""
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
