"""A user's module for the tests: data, a network, and methods that fail. Workers import it by name."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from pfl_core import Federation, State
from pfl_core.algorithms.local import Local
from pfl_core.data import Dataset
from pfl_core.partition import Partition
from pfl_core.runs.store import Series
from pfl_core.seeding import generator

HERE = __name__  # "tests.runs.outside": names are f"{HERE}:blobs"
TRAIN, TEST, CLASSES = 24, 8, 4  # images of each class


def three_are_scored(series: Series) -> bool:
    """A condition for the early end of a run."""
    return len(series["loss"][0]) >= 3


def blobs(colours: int = 1, flat: bool = False, about: str = "") -> Dataset:
    """Four classes of 4x4 images around a centre each; ``flat``: every pixel 128, so that only a change shows."""
    stream, n = generator(0, "blobs"), CLASSES * (TRAIN + TEST)
    y = torch.arange(n) % CLASSES
    centres = 255 * torch.rand(CLASSES, colours, 4, 4, generator=stream)
    x = (centres[y] + 40 * torch.randn(n, colours, 4, 4, generator=stream)).clamp(0, 255)
    x = torch.full_like(x, 128) if flat else x
    return Dataset(
        name="blobs",
        x=x.to(torch.uint8),
        y=y,
        source=y % 2,
        is_test=torch.arange(n) >= CLASSES * TRAIN,
        num_classes=CLASSES,
        class_names=tuple("abcd"),
        about=about,
    )


def write_npz(folder: Path, name: str, value: int) -> None:
    """A file of their own: 8 training and 8 test images of 4x4, all pixels ``value``, two classes."""
    folder.mkdir(exist_ok=True)
    images, labels = np.full((8, 4, 4), value, np.uint8), np.arange(8) % 2
    arrays = {f"{part}_images": images for part in ("train", "test")}
    np.savez(folder / f"{name}.npz", **arrays, **{f"{part}_labels": labels for part in ("train", "test")})
    os.utime(folder / f"{name}.npz", ns=(value * 10**9, value * 10**9))  # a moment for each value


def no_partition(dataset: Dataset, num_clients: int, seed: int) -> Partition:
    """A partition that fails in its own way."""
    return 1 / 0


def slow_net(in_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Takes its time between two layers, so that networks built in threads overlap."""
    first = nn.Linear(torch.Size(in_shape).numel(), 5)
    time.sleep(0.1)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(5, num_classes))


@dataclass(frozen=True)
class Raises(Local):
    """Fails in its second round, with two lines."""

    def round(self, fed: Federation, state: State, clients: Tensor, t: int) -> tuple[State, dict]:
        if t == 1:
            raise RuntimeError("first line\nsecond line")
        return super().round(fed, state, clients, t)


class TwoPartsError(Exception):
    """Cannot be unpickled: its arguments are not kept."""

    def __init__(self, first: str, *, second: str) -> None:
        super().__init__(first)


@dataclass(frozen=True)
class Leaves(Local):
    """Raises what a worker cannot send to its parent, or what is not an Exception."""

    error: str = "SystemExit"

    def round(self, fed: Federation, state: State, clients: Tensor, t: int) -> tuple[State, dict]:
        if self.error == "TwoPartsError":
            raise TwoPartsError("enough", second="more")
        raise {"SystemExit": SystemExit, "GeneratorExit": GeneratorExit}[self.error]("enough")


@dataclass(frozen=True)
class Dies(Local):
    """Takes its process down, by a signal and the next time by leaving; ``log`` gets a line each time."""

    log: str = ""
    parent: int = 0  # never this process

    def round(self, fed: Federation, state: State, clients: Tensor, t: int) -> tuple[State, dict]:
        assert os.getpid() != self.parent, "this must run in a worker"
        with Path(self.log).open("a+", encoding="utf-8") as file:
            file.seek(0)
            again = bool(file.read())
            file.write(f"{os.getpid()}\n")
        if again:
            os._exit(3)
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))  # Windows has no SIGKILL


@dataclass(frozen=True)
class Slow(Local):
    """A second a round, or as many as asked for."""

    seconds: float = 1.0

    def round(self, fed: Federation, state: State, clients: Tensor, t: int) -> tuple[State, dict]:
        time.sleep(self.seconds)
        return super().round(fed, state, clients, t)


@dataclass(frozen=True)
class Silent(Local):
    """Leaves out everything that a round may note, even the trained rows."""

    def round(self, fed: Federation, state: State, clients: Tensor, t: int) -> tuple[State, dict]:
        return super().round(fed, state, clients, t)[0], {}


@dataclass(frozen=True)
class Part:
    """A piece of a state that is no state itself."""

    total: Tensor
    inner: Part | None = None


@dataclass(frozen=True)
class NestedState(State):
    parts: tuple[Part, ...] = ()
    last: Part | None = None  # None until the first round has ended


@dataclass(frozen=True)
class DictState(State):
    """A state that no checkpoint can hold."""

    more: dict = field(default_factory=dict)


@dataclass(frozen=True)
class KeepsADict(Local):
    strength: float  # without default: each run names it

    def init(self, fed: Federation, theta0: Tensor) -> DictState:
        return DictState(local=super().init(fed, theta0).local)


@dataclass(frozen=True)
class Nested(Local):
    """Its state grows: tuples of records, and a record where there was nothing."""

    def init(self, fed: Federation, theta0: Tensor) -> NestedState:
        return NestedState(local=super().init(fed, theta0).local)

    def round(self, fed: Federation, state: NestedState, clients: Tensor, t: int) -> tuple[NestedState, dict]:
        new, notes = super().round(fed, state, clients, t)
        part = Part(new.local.sum(), state.last)
        return NestedState(local=new.local, parts=(*state.parts, part), last=part), notes
