"""Small federations, and reference training in plain PyTorch."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pfl_core import Algorithm, Federation, Split, State, Training
from pfl_core.seeding import generator

NUM_CLASSES, WIDTH = 3, 6


def mlp(bn: bool = False, seed: int = 0) -> nn.Sequential:
    """6 features -> 5 neurons -> 3 classes."""
    norm = {"bn1": nn.BatchNorm1d(5)} if bn else {}
    return seeded(
        OrderedDict(fc1=nn.Linear(WIDTH, 5)) | norm | OrderedDict(relu1=nn.ReLU(), head=nn.Linear(5, 3)), seed
    )


def cnn(bn: bool = True, seed: int = 0) -> nn.Sequential:
    """1 x 4 x 4 images -> 3 channels -> 4 neurons -> 3 classes."""
    norm = {"bn1": nn.BatchNorm2d(3)} if bn else {}
    first = OrderedDict(conv1=nn.Conv2d(1, 3, 3, padding=1)) | norm
    rest = OrderedDict(relu1=nn.ReLU(), pool1=nn.MaxPool2d(2), flatten=nn.Flatten(), fc1=nn.Linear(12, 4))
    return seeded(first | rest | OrderedDict(relu2=nn.ReLU(), head=nn.Linear(4, 3)), seed)


def seeded(layers: dict[str, nn.Module], seed: int) -> nn.Sequential:
    """A chain whose parameters come from a keyed stream."""
    model = nn.Sequential(OrderedDict(layers))
    for name, p in model.named_parameters():
        if p.dim() > 1:
            scale = p[0].numel() ** -0.5
            p.data = scale * torch.randn(p.shape, generator=generator(seed, "weights", name))
        elif "bn" not in name:
            p.data = 0.1 * torch.randn(p.shape, generator=generator(seed, "weights", name))
    return model


def samples(n: int, shape: tuple[int, ...] = (WIDTH,), *, seed: int = 0, key: int = 0, spread: float = 0.5):
    """An easy task: one cluster for each class, (x [n, *shape] float64, y [n])."""
    centres = torch.randn(NUM_CLASSES, *shape, generator=generator(seed, "centres"), dtype=torch.float64)
    stream = generator(seed, "samples", key)
    y = torch.randint(0, NUM_CLASSES, (n,), generator=stream)
    return centres[y] + spread * torch.randn(n, *shape, generator=stream, dtype=torch.float64), y


def federation(
    model: nn.Module | None = None,
    sizes: tuple[int, ...] = (12, 9, 14, 10),
    *,
    shape: tuple[int, ...] = (WIDTH,),
    seed: int = 0,
    rounds: int = 3,
    dtype: torch.dtype = torch.float32,
    test: int = 8,
    spread: float = 0.5,
    stacked: bool | None = None,
    threads: int = 1,
    **training,
) -> Federation:
    """One client for each size; rate 0.1, batches of 4, one epoch unless ``training`` says otherwise."""
    train = [samples(n, shape, key=k, spread=spread) for k, n in enumerate(sizes)]
    held_out = [samples(test, shape, key=100 + k, spread=spread) for k in range(len(sizes))]
    return Federation(
        model or mlp(),
        {"train": Split.of(train), "test": Split.of(held_out)},
        seed=seed,
        rounds=rounds,
        train=Training(**{"lr": 0.1, "batch_size": 4, **training}),
        dtype=dtype,
        batched=stacked,
        threads=threads,
    )


def linear_federation(parts: list[tuple[list[list[float]], list[int]]], **kwargs) -> Federation:
    """The model of the hand-computed rounds: logits = W x, W [2, 2] starts at 0; one full batch a client."""
    head = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(head.weight)
    data = Split.of([(torch.tensor(x, dtype=torch.float64), torch.tensor(y)) for x, y in parts])
    train = Training(**{"lr": 1.0, "batch_size": 100, **kwargs})
    model = nn.Sequential(OrderedDict(head=head))
    return Federation(model, {"train": data, "test": data}, seed=0, rounds=5, train=train, dtype=torch.float64)


def everyone(fed: Federation) -> Tensor:
    return torch.arange(fed.num_clients)


def steps(
    algorithm: Algorithm, fed: Federation, taking_part: int | Sequence[Sequence[int] | Tensor]
) -> list[tuple[State, State, dict]]:
    """(state before, state after, notes) of each round; ``taking_part``: who is in it, or the number of full rounds."""
    chosen = [everyone(fed)] * taking_part if isinstance(taking_part, int) else taking_part
    state, out = algorithm.init(fed, fed.theta0), []
    for t, clients in enumerate(chosen):
        new, notes = algorithm.round(fed, state, torch.as_tensor(clients), t)
        out.append((state, new, notes))
        state = new
    return out


def after(
    algorithm: Algorithm, fed: Federation, taking_part: int | Sequence[Sequence[int] | Tensor]
) -> list[tuple[State, dict]]:
    """State and notes after each of these rounds."""
    return [(state, notes) for _, state, notes in steps(algorithm, fed, taking_part)]


def some_rows(fed: Federation, clients: Tensor) -> Tensor:
    """A different model for each client, with statistics that batch norm accepts."""
    noise = torch.randn(len(clients), fed.num_entries, generator=generator(0, "rows")).to(fed.theta0)
    noise[:, fed.num_params :] = noise[:, fed.num_params :].abs()
    return fed.theta0 + 0.3 * noise


def coin(*shape: int, key: int = 0) -> Tensor:
    """A random mask."""
    return torch.rand(*shape, generator=generator(0, "coin", key)) < 0.5


def module_of(fed: Federation, model: nn.Module, theta_k: Tensor) -> nn.Module:
    """A separate module with the values of one row."""
    plain = copy.deepcopy(model).to(fed.theta0.dtype)
    plain.load_state_dict({k: v.clone() for k, v in fed.layout.unflatten(theta_k).items()}, strict=False)
    return plain.train()


def plain_sgd(
    fed: Federation, model: nn.Module, theta_k: Tensor, k: int, key, *, lr: float, epochs: int = 1, only=None, **options
) -> tuple[Tensor, list[float]]:
    """Local training by ``torch.optim.SGD`` over an ``nn.Module``; ``only``: names of the parameters to train."""
    plain, clip = module_of(fed, model, theta_k), options.pop("clip", None)
    params = [p for name, p in plain.named_parameters() if only is None or name in only]
    optimizer = torch.optim.SGD(params, lr=lr, **options)
    losses = []
    for batch in fed.batches(torch.tensor([k]), key, epochs=epochs):
        optimizer.zero_grad()
        loss = cross_entropy(plain(batch.x[0]), batch.y[0])
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(plain.parameters(), clip)
        optimizer.step()
        losses += [loss.item()] * len(batch.y[0])
    return fed.layout.flatten(dict(plain.state_dict())), losses


def one_line(match: str, error: type[Exception] = ValueError) -> AbstractContextManager:
    """Expects this error; its message is one line in which ``match`` is found."""
    return pytest.raises(error, match=re.compile(rf"\A(?=.*(?:{match}))[^\n]+\Z"))


def tree(folder: Path) -> dict[str, bytes]:
    """Content of every file below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def leaves(value: object, at: str = "state") -> Iterator[tuple[str, object]]:
    """(address, tensor or plain value) of everything inside a state."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), f"{at}.{field.name}")
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            yield from leaves(part, f"{at}[{i}]")
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from leaves(part, f"{at}[{name!r}]")
    else:
        yield at, value


def same_bits(one: object, other: object) -> bool:
    """Whether two states, records or tensors are bitwise equal; NaN equals NaN."""
    first, second = list(leaves(one)), list(leaves(other))
    return len(first) == len(second) and all(
        a == b and _same(x, y) for (a, x), (b, y) in zip(first, second, strict=True)
    )


def _same(x: object, y: object) -> bool:
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        if x.shape != y.shape or x.dtype != y.dtype:
            return False
        return _bytes(x) == _bytes(y)
    return x == y or (x != x and y != y)


def _bytes(x: Tensor) -> bytes:
    return x.detach().contiguous().numpy().tobytes()


def without_times(history) -> dict:
    return {name: series for name, series in history.series.items() if name != "seconds"}


def accuracy(history) -> list[float]:
    """Pooled accuracy of each scored round."""
    correct, count = (history.series[name][1] for name in ("correct", "count"))
    return [sum(c) / sum(n) for c, n in zip(correct, count, strict=True)]
