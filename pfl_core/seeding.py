"""Randomness has an address: one independent stream for each (seed, purpose, round, client, ...).

Nothing draws from a global generator, so evaluating, adding a client or changing the number of workers shifts no other
stream.
"""

import hashlib
from operator import index

import numpy as np
import torch

Key = str | int


def _plain(part: object) -> Key:
    """3, np.int64(3) and torch.tensor(3) are one address; only integers and strings are addresses."""
    return str(part) if isinstance(part, str) else index(part.item() if isinstance(part, torch.Tensor) else part)


def _digest(seed: Key, key: tuple[object, ...]) -> int:
    address = repr(tuple(_plain(part) for part in (seed, *key)))
    return int.from_bytes(hashlib.blake2b(address.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *key: Key) -> torch.Generator:
    """An independent CPU stream per use, e.g. ``generator(seed, "batches", t, k)``.

    Raises TypeError if a part of the address is neither an integer nor a string.
    """
    return torch.Generator().manual_seed(_digest(seed, key))


def numpy_generator(seed: int, *key: Key) -> np.random.Generator:
    """The same for code that needs numpy's distributions (Dirichlet, multinomial)."""
    return np.random.default_rng(_digest(seed, key))
