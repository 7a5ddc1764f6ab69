"""Random streams: an independent generator for each key (seed, purpose, round, client, ...).

No function draws from a global generator. So evaluation, an added client or another number of workers does not change
the random numbers of the rest.
"""

import hashlib
from operator import index
from typing import Any

import numpy as np
import torch

Key = str | int


def _plain(part: Any) -> Key:
    """The part as a plain string or int, so that 3, np.int64(3) and torch.tensor(3) give the same stream."""
    value: Any = part.item() if isinstance(part, torch.Tensor) else part
    return str(value) if isinstance(value, str) else index(value)


def _digest(key: tuple[Key, ...]) -> int:
    text = repr(tuple(_plain(part) for part in key))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *key: Key) -> torch.Generator:
    """An independent CPU stream for each key, e.g. ``generator(seed, "batches", t, k)``.

    Raises TypeError if a part of the key is neither an integer nor a string.
    """
    return torch.Generator().manual_seed(_digest((seed, *key)))


def numpy_generator(seed: int, *key: Key) -> np.random.Generator:
    """The same as a NumPy generator, for Dirichlet and multinomial draws."""
    return np.random.default_rng(_digest((seed, *key)))
