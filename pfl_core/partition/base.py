"""What a partition is, what must hold for every one, and the steps that most of them share."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pfl_core.seeding import generator

if TYPE_CHECKING:
    from pfl_core.data import Dataset

SPLITS = ("train", "val", "test")
Assign = Callable[[Tensor, str], Sequence[Tensor]]  # (indices, name of the pool) -> one piece for each client


@dataclass(frozen=True, eq=False)
class Partition:
    """Who got which sample: an entry for each client, indices [n_k] int64 into the data set's pool."""

    train: tuple[Tensor, ...]
    val: tuple[Tensor, ...]
    test: tuple[Tensor, ...]
    dropped: int = 0  # clients removed by a minimum-size rule
    joined: bool = False  # official training and test images were put into one pool first, as two of the papers do

    @property
    def num_clients(self) -> int:
        return len(self.train)

    def table(self, data: "Dataset") -> dict[str, Tensor]:
        """Who got what: for 'train', 'val' and 'test' the number of samples by client and class, [N, num_classes]."""
        counts = {s: [torch.bincount(data.y[i], minlength=data.num_classes) for i in getattr(self, s)] for s in SPLITS}
        return {s: torch.stack(rows) for s, rows in counts.items()}


def verify(part: Partition, data: "Dataset", name: str) -> None:
    """What every partition promises. Raises ValueError for an index outside the pool or given twice, an official test
    image outside the test parts, or a client without a sample to train on or to be tested on."""
    if not len(part.train) == len(part.val) == len(part.test) > 0:
        raise ValueError(f"partition {name}: train, val and test must have an entry for each of at least one client")
    used = torch.cat(list(chain(part.train, part.val, part.test)))
    if len(used) and not 0 <= int(used.min()) <= int(used.max()) < len(data.y):
        raise ValueError(f"partition {name}: an index lies outside the {len(data.y)} samples of the pool")
    if len(used.unique()) < len(used):
        raise ValueError(f"partition {name}: a sample was given away twice; each may have one place only")
    if not part.joined and bool(data.is_test[torch.cat([*part.train, *part.val])].any()):
        raise ValueError(f"partition {name}: official test images may only be tested on (or set joined=True)")
    for k in range(part.num_clients):
        for split in ("train", "test"):
            if not len(getattr(part, split)[k]):
                raise ValueError(
                    f"partition {name}: client {k} of {part.num_clients} gets no {split} sample; use fewer clients or "
                    f"more data"
                )


def shuffled(indices: Tensor, *address: int | str) -> Tensor:
    """The indices in an order that depends on the address (seed, purpose, ...) alone."""
    return indices[torch.randperm(len(indices), generator=generator(*address))]


def grouped(indices: Tensor, labels: Tensor, num: int) -> list[Tensor]:
    """The indices of each of ``num`` labels, in their given order; labels [n] of the whole pool."""
    of = labels[indices]
    return list(indices[of.argsort(stable=True)].split(torch.bincount(of, minlength=num).tolist()))


def pools(data: "Dataset", pool: str) -> dict[str, Tensor]:
    """The samples to give away: 'train' and 'test' (the official parts), or 'joined' (all of them in one pool).

    Raises ValueError for another ``pool``, and for the official parts of a set without test images.
    """
    if pool == "joined":
        return {"joined": torch.arange(len(data.y))}
    if pool != "official":
        raise ValueError(f"pool={pool!r}: use 'official' (test images only for testing) or 'joined'")
    if not bool(data.is_test.any()):
        raise ValueError(f"{data.name} has no official test images: use pool='joined' with test=SHARE")
    return {"train": torch.where(~data.is_test)[0], "test": torch.where(data.is_test)[0]}


def counts(pool: str, train_per_class: int | None, test_per_class: int | None) -> dict[str, int | None]:
    """The number of images of a class asked for from each pool; ValueError if they do not fit ``pool``."""
    if pool == "joined" and (train_per_class, test_per_class) != (None, None):
        raise ValueError("train_per_class and test_per_class count official images: they need pool='official'")
    for name, count in (("train_per_class", train_per_class), ("test_per_class", test_per_class)):
        if count is not None and count < 1:
            raise ValueError(f"{name}={count}: give at least 1, or None for all images")
    return {"train": train_per_class, "test": test_per_class, "joined": None}


def capped(data: "Dataset", indices: Tensor, per_class: int | None, seed: int, name: str) -> Tensor:
    """Exactly ``per_class`` seeded samples of every class that occurs (None: all); ValueError if a class has fewer."""
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
    """``pools`` with exactly so many images of each class."""
    per_class = counts(pool, train_per_class, test_per_class)
    return {name: capped(data, i, per_class[name], seed, name) for name, i in pools(data, pool).items()}


def carve(data: "Dataset", indices: Tensor, share: float, *address: int | str) -> tuple[Tensor, Tensor]:
    """(taken, rest) of n indices: ceil(share n) are taken, but one stays; each class gives as even a part as it can.

    Systematic: the shuffled indices are lined up by class, and every (1 / share)-th is taken.
    """
    line = torch.cat(grouped(shuffled(indices, *address), data.y, data.num_classes))
    num = max(min(math.ceil(share * len(line) - 1e-9), len(line) - 1), 0)  # 0.07 x 100 is 7, not 8
    taken = torch.zeros(len(line), dtype=torch.bool)
    taken[((2 * torch.arange(num) + 1) * len(line)) // (2 * max(num, 1))] = True
    return line[taken], line[~taken]


def assemble(
    data: "Dataset", seed: int, samples: dict[str, Tensor], assign: Assign, val: float, test: float
) -> Partition:
    """Deal every pool, then take validation samples from each client's training part (``val``, a share of it).

    A joined pool gives up its test samples first (``test``, a share of all that a client holds).
    Raises ValueError for shares outside [0, 1).
    """
    for name, share in (("val", val), ("test", test)):
        if not 0 <= share < 1:
            raise ValueError(f"{name}={share} is outside [0, 1): it is a share of a client's samples")

    def cut(clients: Sequence[Tensor], share: float, name: str) -> tuple[list[Tensor], list[Tensor]]:
        pieces = [carve(data, indices, share, seed, "partition", name, k) for k, indices in enumerate(clients)]
        return [taken for taken, _ in pieces], [rest for _, rest in pieces]

    if "joined" in samples:
        held, kept = cut(assign(samples["joined"], "joined"), test, "test")
    else:
        held, kept = assign(samples["test"], "test"), assign(samples["train"], "train")
    checked, trained = cut(kept, val, "val")
    return Partition(ordered(trained), ordered(checked), ordered(held), joined="joined" in samples)


def ordered(pieces: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Each client's indices in ascending order: equal sets are equal partitions, training shuffles anyway."""
    return tuple(piece.sort().values for piece in pieces)
