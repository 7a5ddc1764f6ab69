"""Combinations of data sets: each part is a source and keeps its own classes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_core.data.dataset import Dataset, resized, subset, with_channels
from pfl_core.options import NonNegativeInt
from pfl_core.seeding import shuffled

Samples = tuple[NonNegativeInt, NonNegativeInt] | None


@dataclass(frozen=True)
class Recipe:
    """Parts and options of a combination."""

    parts: tuple[str, ...]  # in the order of the sources, i.e. of the clients in a partition by source
    labels: tuple[str, ...]  # the same names in the order of the labels
    size: int | None = None  # side of the images in pixels; None: the largest of the parts
    samples_per_class: Samples = None  # default of the option: (training, test) images of each class; None: all


# FedPeWS's sets. The paper's main text and Figure 6 disagree on which client has MNIST; here it is the first.
RECIPES = {
    "cifar_mnist": Recipe(("mnist", "cifar10"), ("cifar10", "mnist"), size=32, samples_per_class=(400, 200)),
    "path_oct_tissue": Recipe(
        ("pathmnist", "octmnist", "tissuemnist"),
        ("pathmnist", "octmnist", "tissuemnist"),
        size=32,
        samples_per_class=(400, 200),
    ),
}


def recipe(name: str) -> Recipe | None:
    """The recipe of a named combination or of "a+b+..."; None if `name` is neither."""
    if name in RECIPES:
        return RECIPES[name]
    parts = tuple(name.split("+"))
    if len(parts) == 1:
        return None
    if len(set(parts)) < len(parts):
        raise ValueError(f"data set {name!r} names a part twice; give each set once, e.g. 'mnist+cifar10'")
    return Recipe(parts, parts)


def combine(
    name: str, recipe: Recipe, parts: Sequence[Dataset], *, samples_per_class: Samples = None, seed: int = 0
) -> Dataset:
    """One data set in which part k is source k; the classes of the parts are numbered in the order of `recipe.labels`.

    Images are resized to one size (bilinear); grey images get three channels if a part has colour.
    `samples_per_class` = (training, test) images drawn from each class with `seed`, which does not depend on the seed
    of the run; None: all images. Raises ValueError for features, and for classes with fewer images.
    """
    for part in parts:
        if not part.has_images:
            raise ValueError(f"data set {name!r}: {part.name!r} holds features; only images can be combined")
    if samples_per_class is not None:
        if sum(samples_per_class) == 0:
            raise ValueError(f"samples_per_class={samples_per_class!r} selects nothing; give e.g. [400, 200], or null")
        parts = [subset(part, _drawn(part, samples_per_class, seed)) for part in parts]
    by_label = sorted(parts, key=lambda part: recipe.labels.index(part.name))
    size = recipe.size or max(max(part.x.shape[-2:]) for part in parts)
    channels = max(part.x.shape[1] for part in parts)
    return Dataset(
        name=name,
        x=torch.cat([with_channels(resized(part.x, size), channels) for part in parts]),
        y=torch.cat([part.y + offset for part, offset in zip(parts, _offsets(parts, by_label), strict=True)]),
        source=_sources(parts),
        is_test=torch.cat([part.is_test for part in parts]),
        num_classes=sum(part.num_classes for part in parts),
        class_names=tuple(f"{part.name} {c}" for part in by_label for c in part.class_names),
        about="; ".join(f"{part.name}: {part.about}" for part in parts if part.about),
        differs="; ".join(f"{part.name}: {part.differs}" for part in parts if part.differs),
    )


def _offsets(parts: Sequence[Dataset], by_label: Sequence[Dataset]) -> list[int]:
    """The first label of each part."""
    before = {part.name: sum(p.num_classes for p in by_label[:i]) for i, part in enumerate(by_label)}
    return [before[part.name] for part in parts]


def _sources(parts: Sequence[Dataset]) -> Tensor:
    """Part k is source k; a part with several sources gets several numbers."""
    source, first = [], 0
    for part in parts:
        source.append(part.source + first)
        first += int(part.source.max()) + 1
    return torch.cat(source)


def _drawn(part: Dataset, samples_per_class: tuple[int, int], seed: int) -> Tensor:
    """Sorted indices of the images drawn from each class of the training part and of the test part."""
    chosen = []
    for test, count in enumerate(samples_per_class):
        for c in range(part.num_classes):
            members = torch.nonzero((part.y == c) & (part.is_test == bool(test)))[:, 0]
            if len(members) < count:
                kind = "test" if test else "training"
                raise ValueError(
                    f"samples_per_class={tuple(samples_per_class)}: class {c} of {part.name!r} has only "
                    f"{len(members)} {kind} images; give a smaller number, or null for all images"
                )
            chosen.append(shuffled(members, seed, "combine", part.name, test, c)[:count])
    return torch.cat(chosen).sort().values
