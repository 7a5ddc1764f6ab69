"""Star-PFL's split: pairs of neighbouring clients share a slice of the data (star_pfl.md section 9.1)."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pfl_core.partition.base import Partition, grouped, ordered

if TYPE_CHECKING:
    from pfl_core.data import Dataset

DRAWS = 10_000  # for one pair; the rule is met within a few unless the data are tiny


def paired_dirichlet(
    data: "Dataset",
    num_clients: int,
    seed: int,
    *,
    alpha: float = 0.1,
    split_seed: int | None = None,
) -> Partition:
    """N / 2 random slices; in each, two lists share the classes by Dir(alpha, alpha); then N equal cuts of all lists.

    So all clients have the same size, and each class of a slice has two owners only: several classes a client, however
    small alpha is. Official training and test images are pooled; classes divide 60 / 20 / 20. ``split_seed`` keeps the
    split the same for all seeds of a run (the authors': 5). Raises ValueError for an odd number of clients or too
    little data.
    """
    if num_clients < 2 or num_clients % 2:
        raise ValueError(f"paired_dirichlet: {num_clients} clients cannot be paired; give an even number")
    if alpha <= 0:
        raise ValueError(f"paired_dirichlet: alpha={alpha} must be above 0")
    rng = np.random.RandomState(seed if split_seed is None else split_seed)
    labels, num = data.y.numpy(), len(data.y)
    rows = np.arange(num)
    rng.shuffle(rows)
    size = int(2 / num_clients * num)
    starts = [g * size for g in range(num_clients // 2)]
    lists: list[np.ndarray] = []
    for start, stop in zip(starts, [*starts[1:], num], strict=True):
        lists += _pair(rows[start:stop], labels, data.num_classes, alpha, rng)
    line, each = torch.from_numpy(np.concatenate(lists)), int(1 / num_clients * num)
    return split_by_class(data, [line[k * each : (k + 1) * each] for k in range(num_clients)])


def _pair(rows: np.ndarray, labels: np.ndarray, num_classes: int, alpha: float, rng: np.random.RandomState) -> list:
    """Two lists over the same rows, drawn again until the smaller one has at least a quarter of them."""
    for _ in range(DRAWS):
        pair = _draw_pair(rows, labels, num_classes, alpha, rng)
        if min(map(len, pair)) >= max(1, int(0.5 * len(rows) / 2)):
            return pair
    raise ValueError(f"paired_dirichlet: {DRAWS} draws gave no even enough pair of {len(rows)} samples; use more data")


def _draw_pair(
    rows: np.ndarray, labels: np.ndarray, num_classes: int, alpha: float, rng: np.random.RandomState
) -> list:
    """Class after class is cut in two; a list that holds half of the rows already gets no more."""
    pair = [rows[:0], rows[:0]]
    for c in range(num_classes):
        members = rows[labels[rows] == c]
        share = rng.dirichlet([alpha, alpha]) * [len(part) < len(rows) / 2 for part in pair]
        total = share.sum()
        cut = int(share[0] / total * len(members)) if total > 0 else 0  # 0/0: all to the second list
        pair = [np.concatenate(both) for both in zip(pair, (members[:cut], members[cut:]), strict=True)]
    return pair


def split_by_class(data: "Dataset", clients: list[Tensor]) -> Partition:
    """Per client and class, in data order: the first 60 % for training, 20 % for testing, the rest for validation."""
    parts: list[tuple[Tensor, ...]] = []
    for client in clients:
        runs = [_run_622(run) for run in grouped(client.sort().values, data.y, data.num_classes)]
        parts.append(tuple(torch.cat(pieces) for pieces in zip(*runs, strict=True)))
    train, test, val = zip(*parts, strict=True)
    return Partition(*map(ordered, (train, val, test)), joined=True)


def _run_622(run: Tensor) -> tuple[Tensor, ...]:
    """(train, test, validation): int(0.6 n), int(0.2 n) and what is left of n samples of one class."""
    return run.split([int(0.6 * len(run)), int(0.2 * len(run)), len(run) - int(0.6 * len(run)) - int(0.2 * len(run))])
