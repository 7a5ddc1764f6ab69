"""Shared by the benchmarks: one thread, the bare PyTorch loop, and how the two are compared.

Only ratios within one run count: both sides take turns, and each ratio is the median over the turns. Times are those of
the processor, so that other programs on the machine count less. At the end the table is printed as Markdown.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pfl_core.algorithm import Algorithm
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.federation import Federation, Split
from pfl_core.models import build
from pfl_core.seeding import generator
from pfl_core.training import Training

NETWORKS = {  # name -> (input shape, turns)
    "lenet_star": ((1, 28, 28), 10),
    "conv_pews": ((3, 32, 32), 5),
    "resnet18": ((3, 32, 32), 5),
}
CLIENTS, SAMPLES, BATCH, CLASSES = 10, 100, 32, 10


@dataclass(frozen=True)
class Row:
    """A line of the table; seconds are those of one turn."""

    what: str
    against: str
    bare: float
    project: float
    ratio: float
    bound: float


ROWS: list[Row] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not ROWS:
        return
    terminalreporter.section("measured, for tests/benchmarks/README.md")
    terminalreporter.line("| measured | reference | reference, s | this project, s | ratio | bound of the test |")
    terminalreporter.line("| --- | --- | --- | --- | --- | --- |")
    for row in ROWS:
        numbers = f"{row.bare:.3f} | {row.project:.3f} | {row.ratio:.2f} | {row.bound:.2f}"
        terminalreporter.line(f"| {row.what} | {row.against} | {numbers} |")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def compare(benchmark) -> Callable[..., None]:
    """``compare(what, against, bare, project, turns=5, bound=1.1)``: project's time / bare's, the median over turns,
    is at most ``bound``.

    Both run once before they are measured, if ``warm_up``. ``timer``: default the processor's time of this process.
    """

    def measure(
        what: str,
        against: str,
        bare: Callable,
        project: Callable,
        *,
        turns: int,
        bound: float,
        warm_up: bool = True,
        timer: Callable[[], float] = time.process_time,
    ) -> None:
        seconds: list[float] = []
        benchmark._timer = timer

        def before() -> None:
            began = timer()
            bare()
            seconds.append(timer() - began)

        if warm_up:
            bare()
            project()
        benchmark.pedantic(project, setup=before, rounds=turns)
        if benchmark.disabled:
            pytest.skip("nothing is measured with --benchmark-disable")
        taken = benchmark.stats.stats.data
        ratio = statistics.median(one / other for one, other in zip(taken, seconds, strict=True))
        row = Row(what, against, statistics.median(seconds), statistics.median(taken), ratio, bound)
        ROWS.append(row)
        benchmark.extra_info.update(vars(row))
        assert ratio <= bound

    return measure


@pytest.fixture
def beside_fedavg(compare) -> Callable[..., None]:
    """``beside_fedavg(what, algorithm, fed, bound=2)``: its round ``t`` with all clients costs so many of FedAvg's."""

    def measure(
        what: str,
        algorithm: Algorithm,
        fed: Federation,
        *,
        bound: float,
        t: int = 0,
        turns: int = 9,
        weighting: str = "uniform",
    ) -> None:
        clients, state = torch.arange(fed.num_clients), algorithm.init(fed, fed.theta0)
        for earlier in range(t):
            state, _ = algorithm.round(fed, state, clients, earlier)
        plain = FedAvg(client_weighting=weighting)
        start = plain.init(fed, fed.theta0)
        compare(
            what,
            "FedAvg's round",
            lambda: plain.round(fed, start, clients, t),
            lambda: algorithm.round(fed, state, clients, t),
            turns=turns,
            bound=bound,
        )

    return measure


@pytest.fixture
def beside_the_bare_loop(compare) -> Callable[..., None]:
    """``beside_the_bare_loop(what, fed, model, turns=5, bound=1.1)``: what FedAvg's round costs at most."""

    def measure(what: str, fed: Federation, model: nn.Module, *, turns: int, bound: float) -> None:
        algorithm, start, clients = FedAvg(), copy.deepcopy(model.state_dict()), torch.arange(fed.num_clients)
        state = algorithm.init(fed, fed.theta0)
        compare(
            f"FedAvg round, {what}",
            "the bare loop",
            lambda: bare_round(model, start, fed),
            lambda: algorithm.round(fed, state, clients, 0),
            turns=turns,
            bound=bound,
        )

    return measure


def random_federation(
    model: nn.Module,
    shape: tuple[int, ...],
    classes: int,
    clients: int,
    samples: int,
    train: Training,
    threads: int = 1,
) -> Federation:
    """Random inputs and labels, the same at every call."""
    stream = generator(0, "samples")
    x = torch.randn(clients, samples, *shape, generator=stream)
    y = torch.randint(0, classes, (clients, samples), generator=stream)
    split = Split.of(list(zip(x, y, strict=True)))
    return Federation(model, {"train": split, "test": split}, seed=0, rounds=9, train=train, threads=threads)


def processor_time(function: Callable[[], object]) -> float:
    began = time.process_time()
    function()
    return time.process_time() - began


def network(name: str) -> nn.Module:
    options = {"stem": "no_pool"} if name == "resnet18" else {}
    return build(name, NETWORKS[name][0], CLASSES, 0, **options)


@pytest.fixture
def federation() -> Callable[[str], Federation]:
    """10 clients x 100 random images, one epoch, batch 32."""

    def make(name: str) -> Federation:
        train = Training(lr=0.01, epochs=1, batch_size=BATCH)
        return random_federation(network(name), NETWORKS[name][0], CLASSES, CLIENTS, SAMPLES, train)

    return make


def bare_round(model: nn.Module, start: dict[str, Tensor], fed: Federation, passes: int = 1) -> dict[str, Tensor]:
    """A FedAvg round as plain PyTorch: load, train each client with torch.optim.SGD, average the state dicts."""
    total: dict[str, Tensor] = {}
    for k in range(fed.num_clients):
        model.load_state_dict(start)
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x, y = fed.splits["train"].client(k)
        for _ in range(passes):
            order = torch.randperm(len(y))
            for i in range(0, len(y), BATCH):
                index = order[i : i + BATCH]
                optimizer.zero_grad()
                cross_entropy(model(x[index]), y[index]).backward()
                optimizer.step()
        for name, value in model.state_dict().items():
            total[name] = value.clone() if k == 0 else total[name] + value
    return {name: value / fed.num_clients for name, value in total.items()}


def bare_forward(models: Sequence[nn.Module], batches: Sequence[Tensor]) -> None:
    """Each batch through its own module; nothing is scored."""
    with torch.no_grad():
        for model, x in zip(models, batches, strict=True):
            model.eval()(x)


def peak_extra(function: Callable[[], object]) -> int:
    """Bytes by which the process's memory grew while the function ran, at its peak (Linux only)."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not reset.exists():
        pytest.skip("peak memory is read from /proc")

    def kilobytes(field: str) -> int:
        (line,) = [line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith(field)]
        return int(line.split()[1])

    reset.write_text("5", encoding="utf-8")  # the peak starts anew
    before = kilobytes("VmRSS")
    result = function()
    after = kilobytes("VmHWM")
    del result
    return 1024 * max(after - before, 0)
