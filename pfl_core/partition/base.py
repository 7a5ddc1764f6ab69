"""The ``Partition`` class, checks that hold for every partition, and helper functions."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pfl_core.seeding import Key, shuffled

if TYPE_CHECKING:
    from pfl_core.data import Dataset

SPLITS = ("train", "val", "test")
Assign = Callable[[Tensor, str], Sequence[Tensor]]  # (indices, name of the pool) -> indices of each client


@dataclass(frozen=True, eq=False)
class Partition:
    """The samples of each client: one tensor of indices [n_k] int64 per client and split."""

    train: tuple[Tensor, ...]
    val: tuple[Tensor, ...]
    test: tuple[Tensor, ...]
    dropped: int = 0  # clients removed because they had too few samples
    joined: bool = False  # whether official training and test images were pooled first, as in two of the papers

    @property
    def num_clients(self) -> int:
        return len(self.train)

    def table(self, data: "Dataset") -> dict[str, Tensor]:
        """Number of samples by client and class, [N, num_classes], for 'train', 'val' and 'test'."""
        counts = {s: [torch.bincount(data.y[i], minlength=data.num_classes) for i in getattr(self, s)] for s in SPLITS}
        return {s: torch.stack(rows) for s, rows in counts.items()}


def verify(part: Partition, data: "Dataset", name: str, num_clients: int) -> None:
    """Check a partition for ``num_clients`` clients.

    Raises ValueError for another number of clients (dropped ones are counted), indices that are not int64 tensors, an
    index that is out of range or assigned twice, an official test image outside the test parts, and a client without
    training or test samples.
    """
    if not isinstance(part, Partition):
        raise ValueError(f"partition {name} returned a {type(part).__name__}; return a pfl_core.partition.Partition")
    if not len(part.train) == len(part.val) == len(part.test) > 0:
        raise ValueError(f"partition {name}: train, val and test must have an entry for each of at least one client")
    if not part.num_clients <= num_clients <= part.num_clients + part.dropped:
        raise ValueError(
            f"partition {name}: {part.num_clients} clients and {part.dropped} dropped ones were made, not the "
            f"{num_clients} clients of the run; give an entry for each client"
        )
    for split in SPLITS:
        for k, index in enumerate(getattr(part, split)):
            if not isinstance(index, Tensor) or index.dtype != torch.int64 or index.ndim != 1:
                what = f"{index.dtype} {list(index.shape)}" if isinstance(index, Tensor) else type(index).__name__
                raise ValueError(f"partition {name}: {split}[{k}] is {what}; give a tensor of indices, int64 [n]")
    used = torch.cat(list(chain(part.train, part.val, part.test)))
    if len(used) and not 0 <= int(used.min()) <= int(used.max()) < len(data.y):
        raise ValueError(f"partition {name}: an index is outside the {len(data.y)} samples of the data set")
    if len(used.unique()) < len(used):
        raise ValueError(f"partition {name}: a sample was assigned twice; assign each sample at most once")
    if not part.joined and bool(data.is_test[torch.cat([*part.train, *part.val])].any()):
        raise ValueError(f"partition {name}: official test images may be used for testing only (or set joined=True)")
    for k in range(part.num_clients):
        for split in ("train", "test"):
            if not len(getattr(part, split)[k]):
                raise ValueError(
                    f"partition {name}: client {k} of {part.num_clients} gets no {split} sample; use fewer clients or "
                    f"more data"
                )


def grouped(indices: Tensor, labels: Tensor, num: int) -> list[Tensor]:
    """The indices of each of ``num`` labels, in their given order; labels [n] of the whole data set."""
    label = labels[indices]
    return list(indices[label.argsort(stable=True)].split(torch.bincount(label, minlength=num).tolist()))


def pools(data: "Dataset", pool: str) -> dict[str, Tensor]:
    """Indices by pool: 'train' and 'test' for ``pool="official"``, or 'joined' (all samples) for ``pool="joined"``.

    Raises ValueError for another ``pool``, and for "official" without official test images.
    """
    if pool == "joined":
        return {"joined": torch.arange(len(data.y))}
    if pool != "official":
        raise ValueError(f"pool={pool!r}: use 'official' (test images only for testing) or 'joined'")
    if not bool(data.is_test.any()):
        raise ValueError(f"{data.name} has no official test images: use pool='joined' with test=SHARE")
    return {"train": torch.where(~data.is_test)[0], "test": torch.where(data.is_test)[0]}


def per_class_limits(pool: str, train_per_class: int | None, test_per_class: int | None) -> dict[str, int | None]:
    """Pool name -> requested images per class (None: all). Raises ValueError if these do not fit ``pool``."""
    if pool == "joined" and (train_per_class, test_per_class) != (None, None):
        raise ValueError("train_per_class and test_per_class count official images: they need pool='official'")
    return {"train": train_per_class, "test": test_per_class, "joined": None}


def capped(data: "Dataset", indices: Tensor, per_class: int | None, seed: int, name: str) -> Tensor:
    """``per_class`` random samples of each class that occurs (None: all). Raises ValueError if a class has fewer."""
    if per_class is None:
        return indices
    kept = [indices[:0]]
    for c, members in enumerate(grouped(indices, data.y, data.num_classes)):
        if 0 < len(members) < per_class:
            raise ValueError(f"{name}_per_class={per_class}: class {c} has only {len(members)} {name} images")
        kept.append(shuffled(members, seed, "partition", "cap", name, c)[:per_class])
    return torch.cat(kept)


def limited(
    data: "Dataset", seed: int, pool: str, train_per_class: int | None, test_per_class: int | None
) -> dict[str, Tensor]:
    """``pools`` with the requested number of images of each class."""
    per_class = per_class_limits(pool, train_per_class, test_per_class)
    return {name: capped(data, i, per_class[name], seed, name) for name, i in pools(data, pool).items()}


def stratified(data: "Dataset", indices: Tensor, share: float, seed: int, *key: Key) -> tuple[Tensor, Tensor]:
    """(taken, rest) of n indices: ceil(share n) are taken, at most n - 1, with nearly the same fraction of each class.

    Systematic sampling: the shuffled indices are sorted by class, and every (1 / share)-th index is taken.
    """
    by_class = torch.cat(grouped(shuffled(indices, seed, *key), data.y, data.num_classes))
    n = len(by_class)
    num = max(min(math.ceil(share * n - 1e-9), n - 1), 0)  # the tolerance makes 0.07 * 100 give 7, not 8
    taken = torch.zeros(n, dtype=torch.bool)
    taken[((2 * torch.arange(num) + 1) * n) // (2 * max(num, 1))] = True  # the middles of num equal intervals
    return by_class[taken], by_class[~taken]


def assemble(
    data: "Dataset", seed: int, samples: dict[str, Tensor], assign: Assign, val: float, test: float
) -> Partition:
    """Assign each pool to the clients, then take validation samples (fraction ``val``) from each training part.

    With a joined pool, a fraction ``test`` of each client's samples becomes its test part first.
    """

    def cut(clients: Sequence[Tensor], share: float, name: str) -> tuple[list[Tensor], list[Tensor]]:
        pieces = [stratified(data, indices, share, seed, "partition", name, k) for k, indices in enumerate(clients)]
        return [taken for taken, _ in pieces], [rest for _, rest in pieces]

    test_parts: Sequence[Tensor]
    rest: Sequence[Tensor]
    if "joined" in samples:
        test_parts, rest = cut(assign(samples["joined"], "joined"), test, "test")
    else:
        test_parts, rest = assign(samples["test"], "test"), assign(samples["train"], "train")
    val_parts, train_parts = cut(rest, val, "val")
    return Partition(ordered(train_parts), ordered(val_parts), ordered(test_parts), joined="joined" in samples)


def ordered(pieces: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Each client's indices in ascending order, so that equal sets of samples give equal partitions."""
    return tuple(piece.sort().values for piece in pieces)
