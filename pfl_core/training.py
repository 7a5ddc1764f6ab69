"""Settings of local training: optimizer, learning-rate schedule, and augmentation of training images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from pfl_core.options import Fraction, NonNegativeFloat, NonNegativeInt, PositiveInt, check_fields


@dataclass(frozen=True)
class Training:
    """Settings of local mini-batch SGD. Symbols of the papers: lr η, epochs E (FedSelect: L), batch_size B.

    Raises ValueError for a wrong type, and for a number that is not finite or out of bounds.
    """

    lr: NonNegativeFloat = 0.05  # learning rate of local training
    epochs: NonNegativeInt = 1  # local epochs
    batch_size: PositiveInt = 32  # batch size of local training
    momentum: NonNegativeFloat = 0.0  # momentum of local training
    weight_decay: NonNegativeFloat = 0.0  # weight decay of local training
    clip_norm: NonNegativeFloat | None = None  # bound on the L2 norm of the gradient of all trainable parameters
    milestones: tuple[Fraction, ...] = ()  # fractions of the rounds after which the rate is multiplied by `decay`
    decay: NonNegativeFloat = 0.1  # factor of the rate at each of the `milestones`
    partial_batch: Literal["keep", "drop", "merge"] = "keep"  # a smaller last batch; "merge": join the previous batch
    augment: Literal["none", "crop_flip"] = "none"  # "crop_flip": 4 pixels of padding, random crop, horizontal flip
    # "bf16": layers compute in bfloat16 (autocast), in training and scoring; weights, means and masks stay float32
    precision: Literal["float32", "bf16"] = "float32"

    def __post_init__(self) -> None:
        check_fields(self, "training")

    def batch_bounds(self, n: int) -> list[tuple[int, int]]:
        """(start, stop) of each batch of n samples.

        A client with fewer than ``batch_size`` samples always keeps its only batch.
        """
        bounds = [(start, min(start + self.batch_size, n)) for start in range(0, n, self.batch_size)]
        if len(bounds) < 2 or n % self.batch_size == 0 or self.partial_batch == "keep":
            return bounds
        whole = bounds[:-1]
        return whole if self.partial_batch == "drop" else [*whole[:-1], (whole[-1][0], n)]

    def factor(self, t: int, rounds: int) -> float:
        """Factor of the learning rate in round t (from 0) of ``rounds``."""
        return self.decay ** sum(t >= share * rounds for share in self.milestones)


def crop_flip(x: Tensor, stream: torch.Generator) -> Tensor:
    """Pad by 4 pixels, crop at random, flip horizontally at random; [B, c, h, w] -> [B, c, h, w]."""
    b, _, h, w = x.shape
    top, left = (torch.randint(0, 9, (b, 1), generator=stream).to(x.device) for _ in range(2))
    flip = (torch.rand(b, 1, generator=stream) < 0.5).to(x.device)
    # Pixel indices of each image's crop; a flipped image reads its columns backwards.
    rows = top + torch.arange(h, device=x.device)  # [b, h]
    columns = left + torch.where(flip, torch.arange(w - 1, -1, -1, device=x.device), torch.arange(w, device=x.device))
    image = torch.arange(b, device=x.device)[:, None, None]
    return pad(x, (4, 4, 4, 4))[image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


AUGMENT: dict[str, Callable[[Tensor, torch.Generator], Tensor] | None] = {"none": None, "crop_flip": crop_flip}
