"""Label shift by Dirichlet draws, in the variants of the papers."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pfl_core.options import Part, PositiveFloat, PositiveInt, check_options
from pfl_core.partition.base import Partition, assemble, grouped, limited, pools
from pfl_core.partition.fedem import fedem
from pfl_core.partition.star_pfl import split_by_class
from pfl_core.seeding import numpy_generator, shuffled

if TYPE_CHECKING:
    from pfl_core.data import Dataset

DRAWS = 1_000  # attempts to give every client enough samples


def dirichlet(data: "Dataset", num_clients: int, seed: int, *, variant: str = "min_size", **options: Any) -> Partition:
    """One of VARIANTS: 'min_size' (FedPeWS), 'fedem' (pFedGate) or 'per_class' (harsher than Star-PFL's split)."""
    if variant not in VARIANTS:
        raise ValueError(f"dirichlet: variant={variant!r} is unknown: use one of {', '.join(VARIANTS)}")
    check_options(f"dirichlet variant {variant!r}", VARIANTS[variant], options, reserved=3)
    return VARIANTS[variant](data, num_clients, seed, **options)


def min_size(
    data: "Dataset",
    num_clients: int,
    seed: int,
    *,
    alpha: PositiveFloat = 0.5,
    min_size: int = 10,
    pool: str = "official",
    val: Part = 0.0,
    test: Part = 0.2,
    train_per_class: PositiveInt | None = None,
    test_per_class: PositiveInt | None = None,
) -> Partition:
    """Each class is divided by its own p ~ Dir(α 1_N), drawn again until every client has ``min_size`` samples.

    FedPeWS's Dirichlet split; not in the paper: the minimum size. The official test images are divided by the same p,
    so that every client's test part has the label distribution of its training part; each client must get at least one
    test image. ``train_per_class`` and ``test_per_class`` count images of a class over all clients.
    Raises ValueError if no draw meets these conditions.
    """
    samples = limited(data, seed, pool, train_per_class, test_per_class)
    least = {"train": min_size, "joined": min_size, "test": 1}
    shares = draw_shares(data, samples, least, num_clients, alpha, seed)

    def assign(indices: Tensor, name: str) -> Sequence[Tensor]:
        return cut_by_shares(data, shuffled(indices, seed, "partition", "dirichlet", name), shares)

    return assemble(data, seed, samples, assign, val, test)


def per_class(
    data: "Dataset", num_clients: int, seed: int, *, alpha: PositiveFloat = 0.1, min_size: int = 10
) -> Partition:
    """Each class divided over all N clients by a Dirichlet draw, pooled and split 60 / 20 / 20 as in Star-PFL.

    Not in the paper: a different, harsher setting than ``paired_dirichlet``; state this beside its results.
    Raises ValueError if no draw gives every client ``min_size`` samples (with alpha = 0.01, most draws do not).
    """
    samples = pools(data, "joined")
    shares = draw_shares(data, samples, {"joined": min_size}, num_clients, alpha, seed)
    mixed = shuffled(samples["joined"], seed, "partition", "dirichlet", "joined")
    return split_by_class(data, cut_by_shares(data, mixed, shares))


VARIANTS: dict[str, Callable[..., Partition]] = {"min_size": min_size, "fedem": fedem, "per_class": per_class}


def draw_shares(
    data: "Dataset", samples: dict[str, Tensor], least: dict[str, int], num_clients: int, alpha: float, seed: int
) -> np.ndarray:
    """p [num_classes, N], rows sum to 1, drawn until every client has ``least`` samples of every pool."""
    rng = numpy_generator(seed, "partition", "dirichlet")
    per_class = {n: torch.bincount(data.y[i], minlength=data.num_classes).numpy() for n, i in samples.items()}
    for name, sizes in per_class.items():
        if sizes.sum() < num_clients * least[name]:
            raise ValueError(
                f"dirichlet: {num_clients} clients with at least {least[name]} samples each need "
                f"{num_clients * least[name]} samples, {name} has {sizes.sum()}; use fewer clients "
                "or a smaller min_size"
            )
    best = dict.fromkeys(samples, 0)
    for _ in range(DRAWS):
        shares = rng.dirichlet(np.full(num_clients, alpha), size=data.num_classes)
        smallest = {n: int(np.diff(_bounds(shares, sizes)).sum(0).min()) for n, sizes in per_class.items()}
        if all(smallest[name] >= least[name] for name in samples):
            return shares
        best = {name: max(best[name], smallest[name]) for name in samples}
    raise ValueError(
        f"dirichlet: in {DRAWS} draws with alpha={alpha} the smallest of {num_clients} clients never had {least} "
        f"samples (at most {best}); use fewer clients, a larger alpha or a smaller min_size"
    )


def cut_by_shares(data: "Dataset", indices: Tensor, shares: np.ndarray) -> list[Tensor]:
    """The indices of each client: one consecutive piece of every class."""
    members = grouped(indices, data.y, data.num_classes)  # by class
    bounds = _bounds(shares, np.array([len(m) for m in members]))
    return [
        torch.cat([m[b[k] : b[k + 1]] for m, b in zip(members, bounds.tolist(), strict=True)])
        for k in range(shares.shape[1])
    ]


def _bounds(shares: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Bounds [num_classes, N + 1] of the clients' pieces: floor(cumulative share * class size), and the class size."""
    inner = (np.cumsum(shares, axis=1)[:, :-1] * sizes[:, None]).astype(np.int64)
    return np.concatenate([np.zeros_like(sizes)[:, None], inner, sizes[:, None]], axis=1)
