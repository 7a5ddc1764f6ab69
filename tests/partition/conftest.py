"""A data set without samples: partitions use only labels, sources and test marks."""

from dataclasses import dataclass

import pytest
import torch

from pfl_core.seeding import generator


@dataclass(frozen=True)
class Pool:
    y: torch.Tensor
    source: torch.Tensor
    is_test: torch.Tensor
    num_classes: int
    name: str = "toy"
    x: torch.Tensor | None = None


def make_pool(train, test=(), sources=1, seed=0):
    """``train[c]`` and ``test[c]`` samples of class c in random order, test images last; source = label mod sources."""
    parts = []
    for name, sizes in (("train", train), ("test", test)):
        y = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes, dtype=torch.int64))
        parts.append(y[torch.randperm(len(y), generator=generator(seed, "pool", name))])
    y = torch.cat(parts)
    is_test = torch.arange(len(y)) >= len(parts[0])
    return Pool(y, y % sources, is_test, len(train), x=torch.empty(len(y), 0))


@pytest.fixture(scope="session")
def pool():
    return make_pool
