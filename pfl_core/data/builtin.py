r"""Built-in data sets: handwritten digits, a small Fashion-MNIST, and the two synthetic sets of FedPeWS."""

import hashlib
import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pfl_core.data.arrays import hold_out
from pfl_core.data.dataset import Dataset, DatasetEntry
from pfl_core.data.npz import read_npz
from pfl_core.data.torchvision_sets import CLOTHES, DIGITS
from pfl_core.seeding import generator

DATA_SEED = 0  # the data do not depend on the seed of a run
TEST_SHARE = 0.3  # of each class of `digits`; this project's choice, scikit-learn's copy has no official split

FASHION_SMALL = Path(__file__).with_name("fashion_small.npz")  # its licence is in the same folder
FASHION_SMALL_SHA256 = "175b500c81cdebbf266952614aa9e33b5a5f7eb69b62181be6c8d9be32c431c6"

GRID, SPACING = 4, 3.0  # a 4x4 grid of Gaussian clusters
LONG, SHORT = 0.36, 0.21  # standard deviations of a cluster along its two axes
TRAIN_PER_CLUSTER = {"synthetic_32k": 2000, "synthetic_3200": 200}
TEST_PER_CLUSTER = 500


def digits(_folder: Path) -> Dataset:
    """1,797 handwritten digits, 8x8 grey; scikit-learn's values 0..16 are scaled to bytes 0..255.

    A fixed 30 % of each class is marked as test.
    """
    # Reads the file of sklearn.datasets.load_digits without importing scikit-learn, which would take a second.
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None and spec.submodule_search_locations is not None
    package = Path(spec.submodule_search_locations[0])
    table = torch.from_numpy(np.loadtxt(package / "datasets" / "data" / "digits.csv.gz", delimiter=","))
    x = table[:, :-1].mul(255 / 16).round().to(torch.uint8).view(-1, 1, 8, 8)
    y = table[:, -1].to(torch.int64)
    is_test = hold_out(y[:, None], lambda n: round(TEST_SHARE * n), DATA_SEED, "digits")
    return Dataset("digits", x, y, torch.zeros_like(y), is_test, num_classes=10, class_names=DIGITS)


def fashion_small(_folder: Path) -> Dataset:
    """Part of Fashion-MNIST, 14x14 grey: the first 500 training and 200 test images of each class in official order.

    Each pixel is the mean of 2x2 pixels. Raises ValueError if the installed file has another checksum.
    """
    if hashlib.sha256(FASHION_SMALL.read_bytes()).hexdigest() != FASHION_SMALL_SHA256:
        raise ValueError(f"{FASHION_SMALL} is damaged: its checksum is wrong; install the package again")
    return replace(read_npz(FASHION_SMALL, "fashion_small", CLOTHES), about="Fashion-MNIST (7,000 images, 14x14)")


def synthetic(name: str) -> Dataset:
    """FedPeWS's Synthetic-32K (`synthetic_32k`) and Synthetic-3.2K (`synthetic_3200`).

    From the paper: four classes of four two-dimensional Gaussian clusters, features (x, y, x², y², xy).

    Not in the paper: centres, covariances and test size. Here the cluster in row r and column c of a 4x4 grid with
    spacing 3 has class (r + c) mod 4 and covariance R diag(0.36², 0.21²) Rᵀ, where R rotates by 45° ((r + 2c) mod 4).
    Each cluster has 2,000 or 200 training points and 500 test points, the same for both sets. Features are not scaled.
    """
    train = _points(TRAIN_PER_CLUSTER[name], name)
    test = _points(TEST_PER_CLUSTER, "synthetic_test")
    x, y = (torch.cat(parts) for parts in zip(train, test, strict=True))
    return Dataset(
        name=name,
        x=x,
        y=y,
        source=torch.zeros_like(y),
        is_test=torch.arange(len(y)) >= len(train[1]),
        num_classes=GRID,
        class_names=tuple(str(c) for c in range(GRID)),
        about="generated here: the paper does not publish its cluster centres and covariances",
    )


def _points(per_cluster: int, stream: str) -> tuple[Tensor, Tensor]:
    """Features [16 m, 5] float32 and labels [16 m], cluster by cluster; each cluster has its own random stream."""
    x, y = [], []
    for row in range(GRID):
        for column in range(GRID):
            draws = torch.randn(
                per_cluster, 2, generator=generator(DATA_SEED, stream, row, column), dtype=torch.float64
            )
            xy = draws * torch.tensor([LONG, SHORT], dtype=torch.float64) @ _rotation(row, column).T
            x.append(xy + SPACING * (torch.tensor([column, row], dtype=torch.float64) - (GRID - 1) / 2))
            y.append(torch.full((per_cluster,), (row + column) % GRID))
    a, b = torch.cat(x).T
    return torch.stack([a, b, a * a, b * b, a * b], dim=1).to(torch.float32), torch.cat(y)


def _rotation(row: int, column: int) -> Tensor:
    angle = math.pi / 4 * ((row + 2 * column) % GRID)
    return torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64)


ENTRIES = {
    "digits": DatasetEntry(
        where="scikit-learn's copy of UCI 'Optical Recognition of Handwritten Digits' (test part)",
        licence="CC BY 4.0",
        size="1,797 images 1x8x8, 10 classes",
        read=digits,
        class_names=DIGITS,
    ),
    "fashion_small": DatasetEntry(
        where="part of Zalando's Fashion-MNIST: the first images of each class, 14x14",
        licence="MIT",
        size="5,000 + 2,000 images 1x14x14, 10 classes",
        read=fashion_small,
        class_names=CLOTHES,
    ),
    "synthetic_32k": DatasetEntry(
        where="generated; FedPeWS's Synthetic-32K with this project's geometry",
        licence="this project's",
        size="32,000 + 8,000 points, 5 features, 4 classes",
        read=lambda _folder: synthetic("synthetic_32k"),
    ),
    "synthetic_3200": DatasetEntry(
        where="generated; FedPeWS's Synthetic-3.2K with this project's geometry",
        licence="this project's",
        size="3,200 + 8,000 points, 5 features, 4 classes",
        read=lambda _folder: synthetic("synthetic_3200"),
    ),
}
