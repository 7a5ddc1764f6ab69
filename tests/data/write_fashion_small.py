"""Write `pfl_core/data/fashion_small.npz` from the whole Fashion-MNIST: `python -m tests.data.write_fashion_small`.

Needs `fashion_mnist` in the data folder (`pfl data fashion_mnist`). The same set gives the same images, a test compares
them.
"""

from __future__ import annotations

import numpy as np
import torch

from pfl_core.data import Dataset, load
from pfl_core.data.builtin import FASHION_SMALL
from pfl_core.partition.base import grouped

PER_CLASS = {"train": 500, "test": 200}


def reduced(data: Dataset) -> dict[str, np.ndarray]:
    """The first images of each class of either part, in the official order; squares of 2x2 pixels become their mean.

    Means are rounded to the nearest byte, halves up.
    """
    arrays = {}
    for part, size in PER_CLASS.items():
        official = torch.where(data.is_test == (part == "test"))[0]
        chosen = torch.cat([members[:size] for members in grouped(official, data.y, data.num_classes)]).sort().values
        n, _, height, width = data.x[chosen].shape
        squares = data.x[chosen].to(torch.int32).view(n, height // 2, 2, width // 2, 2).sum((2, 4))  # [n, h/2, w/2]
        arrays[f"{part}_images"] = ((squares + 2) // 4).to(torch.uint8).numpy()
        arrays[f"{part}_labels"] = data.y[chosen].to(torch.uint8).numpy()
    return arrays


if __name__ == "__main__":
    np.savez_compressed(FASHION_SMALL, **reduced(load("fashion_mnist")))
