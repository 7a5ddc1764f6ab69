"""Random streams: an independent generator for each key (seed, purpose, round, client, ...).

No function of this package draws from a global generator. So evaluation, an added client or another number of workers
does not change the random numbers of the rest. A user's code may draw from global generators: see ``seeded``.
"""

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import index
from threading import RLock, current_thread, main_thread
from typing import Any

import numpy as np
import torch

Key = str | int
_GLOBAL = RLock()  # all threads of the process share the global generators


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


def permutation(num: int, seed: int, *key: Key) -> torch.Tensor:
    """0 .. num - 1 in a random order that depends on the key alone, [num] int64."""
    return torch.randperm(num, generator=generator(seed, *key))


def shuffled(x: torch.Tensor, seed: int, *key: Key) -> torch.Tensor:
    """The entries of x [n] in the order of ``permutation``."""
    return x[permutation(len(x), seed, *key).to(x.device)]


@contextmanager
def seeded(seed: int, *key: Key) -> Iterator[Callable[[], bool]]:
    """For a user's code: the global generators of torch (CPU and GPU), NumPy and ``random`` start from the key.

    Afterwards they are as before. Yields a function: whether any of them has drawn since. Other threads wait. Outside
    of the main thread, as in a Dask worker, draws from ``random`` do not count: the worker's own threads draw from it.
    """
    start, gpu = _digest((seed, *key)), torch.cuda.is_initialized()
    with _GLOBAL, torch.random.fork_rng(range(torch.cuda.device_count()) if gpu else []):
        before = np.random.get_state(), random.getstate()
        torch.default_generator.manual_seed(start)
        if gpu:
            torch.cuda.manual_seed_all(start)
        np.random.seed(start % 2**32)
        random.seed(start)
        first = _states(gpu)
        try:
            yield lambda: _states(gpu) != first
        finally:
            np.random.set_state(before[0])
            random.setstate(before[1])


def _states(gpu: bool) -> list[object]:
    """The states of the global generators, to be compared."""
    of_torch = [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if gpu else ())]
    of_numpy = [part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state()]
    of_random = random.getstate() if current_thread() is main_thread() else None
    return [*(state.numpy().tobytes() for state in of_torch), of_numpy, of_random]
