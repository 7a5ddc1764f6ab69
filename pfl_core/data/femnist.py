"""FEMNIST (LEAF): EMNIST's characters grouped by writer.

Reads `femnist.npz` with `train_source` = writer ids, or the folders written by LEAF's script: `femnist/train/*.json`
and `femnist/test/*.json`, or `femnist/all_data/*.json` (without a test part). Pixel values are used as they
are in the file.
"""

import math
from pathlib import Path

import numpy as np
import torch

from pfl_core.data.dataset import Dataset, DatasetEntry, subset
from pfl_core.data.torchvision_sets import BY_CLASS
from pfl_core.files import parsed
from pfl_core.options import Share
from pfl_core.seeding import shuffled


def read_leaf(folder: Path) -> Dataset:
    """LEAF's JSON: {"users": [...], "user_data": {user: {"x": [784 values in 0..1], "y": [...]}}} in every file.

    Raises ValueError with the file name if a file is damaged.
    """
    root = folder / "femnist"
    parts = {"train": False, "test": True} if (root / "train").is_dir() else {"all_data": False}
    x, y, writer, is_test = [], [], [], []
    for part, test in parts.items():
        for path in sorted((root / part).glob("*.json")):
            for user, images, labels in _users(path):
                x.append(images)
                y.extend(labels)
                writer.extend([user] * len(labels))
                is_test.extend([test] * len(labels))
    if not x:
        raise ValueError(f"{root} contains neither train/*.json nor all_data/*.json; see data/README.md")
    return Dataset(
        name="femnist",
        x=torch.from_numpy(np.concatenate(x)),
        y=torch.tensor(y),
        source=torch.from_numpy(np.unique(writer, return_inverse=True)[1]).to(torch.int64),
        is_test=torch.tensor(is_test),
        num_classes=len(BY_CLASS),
        class_names=BY_CLASS,
    )


def _users(path: Path) -> list[tuple[str, np.ndarray, list[int]]]:
    """(writer, images [m, 1, 28, 28] uint8, labels) of one file."""
    try:
        data = parsed(path.read_bytes())["user_data"]
        return [
            (user, np.rint(255 * np.array(part["x"])).astype(np.uint8).reshape(len(part["y"]), 1, 28, 28), part["y"])
            for user, part in data.items()
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged or not LEAF's JSON ({error}); write it again with LEAF's script"
        ) from error


def keep_writers(data: Dataset, *, writer_share: Share = 1.0, min_images: int = 3, seed: int = 0) -> Dataset:
    """Keep a random fraction of the writers with at least `min_images` images (pFedGate: 0.15, i.e. 539 writers).

    Raises ValueError if no writer is left.
    """
    writers = torch.nonzero(data.source.bincount() >= min_images)[:, 0]
    count = math.floor(writer_share * len(writers))
    if count == 0:
        raise ValueError(
            f"femnist: no writer is left of {len(writers)} with at least min_images={min_images} at "
            f"writer_share={writer_share}; raise the share, or check that the file has train_source"
        )
    kept = shuffled(writers, seed, "femnist", "writers")[:count]
    return subset(data, torch.nonzero(torch.isin(data.source, kept))[:, 0])


ENTRIES = {
    "femnist": DatasetEntry(
        where="LEAF's script (leaf.cmu.edu) over NIST Special Database 19; see data/README.md",
        licence="data: none stated (NIST); script: BSD-2-Clause",
        size="about 805,000 images 1x28x28 of about 3,600 writers, 62 classes",
        read=read_leaf,
        files=("femnist/*/*.json",),
        finish=keep_writers,
        class_names=BY_CLASS,
    )
}
