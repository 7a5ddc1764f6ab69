"""This project beside other implementations of the same rounds: python -m tests.benchmarks.peers --help

Every round trains the same network on the same samples, on one thread. A table compares each implementation with a bare
PyTorch loop; the sides run in turn, and a ratio is the median over the turns. Nothing is fetched: checkouts of PFLlib,
FL-bench and the authors' FedSelect are given by options or environment variables, and Flower is measured if it is
installed. What is missing is left out, by name, also packages that a checkout needs.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import io
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from pfl_core import algorithm
from pfl_core.federation import Federation
from pfl_core.models import build
from pfl_core.seeding import generator
from pfl_core.training import Training
from pfl_core.vision import torchvision
from tests.benchmarks.conftest import BATCH, bare_round, processor_time, random_federation

LR, CLASSES = 0.01, 10
OURS, BARE = "this project", "bare loop"
Turn = Callable[[], object]


class MissingError(Exception):
    """An implementation that is not on this machine; the message says what is missing."""


@dataclass(frozen=True)
class Case:
    """A round to measure: ``clients`` clients with ``samples`` samples each, one local epoch, batches of 32."""

    method: str
    network: str
    shape: tuple[int, ...]
    clients: int
    samples: int  # a multiple of the batch size, because PFLlib drops the last, smaller batch
    passes: int = 1  # of the bare loop: as many as the method makes

    @property
    def title(self) -> str:
        return f"{self.method}, {self.network}, {self.clients} x {self.samples}"

    def model(self) -> nn.Module:
        return build(self.network, self.shape, CLASSES, 0, **({"stem": "no_pool"} if "resnet" in self.network else {}))

    def federation(self, threads: int = 1) -> Federation:
        train = Training(lr=LR, epochs=1, batch_size=BATCH)
        return random_federation(self.model(), self.shape, CLASSES, self.clients, self.samples, train, threads=threads)


CASES = (
    Case("fedavg", "lenet_star", (1, 28, 28), 20, 608),
    Case("ditto", "lenet_star", (1, 28, 28), 20, 608, passes=2),
    Case("fedavg", "mlp", (8,), 10, 3200),
    Case("fedselect", "resnet18", (3, 32, 32), 10, 128, passes=2),
)


# ---- the sides ------------------------------------------------------------------------------------------------------


def bare(case: Case) -> Turn:
    fed, model = case.federation(), case.model()
    start = copy.deepcopy(model.state_dict())
    return lambda: bare_round(model, start, fed, passes=case.passes)


def ours(case: Case, threads: int = 1) -> Turn:
    fed, method = case.federation(threads), algorithm.build(case.method, {}, "paper")
    state, clients = method.init(fed, fed.theta0), torch.arange(case.clients)
    if case.method == "fedselect":
        personal = torch.rand(case.clients, fed.num_entries, generator=generator(0, "personal")) < 1 / 3
        state = replace(state, personal=personal)
    fed.keep_trained = False  # as under the engine
    return lambda: method.round(fed, state, clients, 1)


class Options(SimpleNamespace):
    """Arguments of PFLlib. Versions differ; an argument that is not given is 0."""

    def __getattr__(self, name: str) -> int:
        if name.startswith("__"):
            raise AttributeError(name)
        return 0


def pfllib(case: Case, checkout: Path | None, files: Path | None = None) -> Turn:
    """PFLlib's clients and server. Its clients read their samples in each round, from memory or from ``files``."""
    folder = _checkout(checkout, "PFLlib", "--pfllib or PFLLIB", "system/flcore")
    name = {"fedavg": "clientAVG", "ditto": "clientDitto"}[case.method]
    with _importing(folder / "system"):
        base = _module("flcore.clients.clientbase")
        client_class = getattr(_module(f"flcore.clients.{name.lower()}"), name)
        server_class = _module("flcore.servers.serverbase").Server
    fed = case.federation()
    data = [list(zip(*fed.splits["train"].client(k), strict=True)) for k in range(case.clients)]
    read = base.read_client_data if files else lambda dataset, k, *args, **more: data[k]

    rates = {"local_learning_rate": LR, "learning_rate_decay_gamma": 1.0, "mu": 0.1}
    passes = {f"{part}local_{of}": 1 for part in ("", "p") for of in ("epochs", "steps")}
    options = Options(
        model=case.model(), device="cpu", dataset="peers", num_classes=CLASSES, batch_size=BATCH, **rates, **passes
    )
    clients = [
        client_class(options, k, len(data[k]), 0, train_slow=False, send_slow=False) for k in range(case.clients)
    ]
    server = object.__new__(server_class)  # its constructor needs a whole experiment
    server.__dict__.update(vars(Options(clients=clients, selected_clients=clients, global_model=case.model())))
    server.__dict__.update(current_num_join_clients=len(clients), client_drop_rate=0.0, time_threthold=np.inf)
    if files:
        write_pfllib_files(fed, files)

    def turn() -> None:
        base.read_client_data = read
        with contextlib.chdir(files / "system") if files else contextlib.nullcontext():
            server.send_models()
            for client in clients:
                if case.method == "ditto":
                    client.ptrain()
                client.train()
            server.receive_models()
            server.aggregate_parameters()

    return turn


def write_pfllib_files(fed: Federation, folder: Path) -> None:
    """The clients' samples as PFLlib stores them. Its working directory is ``folder``/system."""
    for part in ("system", "dataset/peers/train"):
        (folder / part).mkdir(parents=True)
    for k in range(fed.num_clients):
        x, y = fed.splits["train"].client(k)
        file = folder / "dataset" / "peers" / "train" / f"{k}.npz"
        np.savez_compressed(file, data=np.array({"x": x.numpy(), "y": y.numpy()}, dtype=object))


def fl_bench(case: Case, checkout: Path | None) -> Turn:
    """FL-bench's client, which trains one client after the other, and the mean of its server."""
    folder = _checkout(checkout, "FL-bench", "--flbench or FLBENCH", "src/client")
    torchvision()  # some builds of it need help
    with _importing(folder):
        client_class = getattr(
            _module(f"src.client.{case.method}"), {"fedavg": "FedAvgClient", "ditto": "DittoClient"}[case.method]
        )
        server_class = _module("src.server.fedavg").FedAvgServer
    fed, model = case.federation(), case.model()
    data = [fed.splits["train"].client(k) for k in range(case.clients)]
    tests = Options(client=Options(), server=Options())  # no evaluation
    common = Options(
        batch_size=BATCH, local_epoch=1, buffers="global", reset_optimizer_on_global_epoch=True, test=tests
    )
    indices = torch.arange(case.clients * case.samples).view(case.clients, -1).tolist()
    client = client_class(
        model=copy.deepcopy(model),
        optimizer_cls=partial(torch.optim.SGD, lr=LR),
        lr_scheduler_cls=None,
        args=Options(common=common, ditto=Options(pers_epoch=1, lamda=0.1)),
        dataset=InMemory(*map(torch.cat, zip(*data, strict=True))),
        data_indices=[{"train": index, "val": [], "test": []} for index in indices],
        device=torch.device("cpu"),
        return_diff=False,
    )
    server = object.__new__(server_class)  # its constructor needs a whole experiment
    names = [name for name, _ in model.named_parameters()]
    vars(server).update(model=model, public_model_params={name: model.state_dict()[name] for name in names})
    personal = [copy.deepcopy(model.state_dict()) for _ in range(case.clients)]

    def turn() -> None:
        packages = {}
        for k in range(case.clients):
            package = {"client_id": k, "local_epoch": 1, "optimizer_state": {}, "lr_scheduler_state": {}}
            package |= {"regular_model_params": server.public_model_params, "personal_model_params": {}}
            packages[k] = client.train(package | {"personalized_model_params": personal[k]})
            personal[k] = packages[k].get("personalized_model_params", personal[k])
        server.aggregate_client_updates(packages)

    return turn


class InMemory(torch.utils.data.Dataset):
    """Samples as FL-bench's clients read them: one after the other."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]

    def train(self) -> None:
        """FL-bench switches its transforms here; there are none."""

    eval = train


def authors(case: Case, checkout: Path | None) -> Turn:
    """A round of the FedSelect of its authors: alternating passes, new masks, the mean of shared entries."""
    folder = _checkout(checkout, "the authors' FedSelect", "--fedselect or FEDSELECT", "lottery_ticket.py")
    with _importing(folder):
        optimizers, tickets, server = (_module(n) for n in ("pflopt.optimizers", "lottery_ticket", "broadcast"))
    fed, model = case.federation(), case.model()
    start = copy.deepcopy(model.state_dict())
    stream = generator(0, "personal")
    masks = [
        {name: (torch.rand(p.shape, generator=stream) < 1 / 3).to(p.dtype) for name, p in model.named_parameters()}
        for _ in range(case.clients)
    ]
    loaders = [
        DataLoader(list(zip(*fed.splits["train"].client(k), strict=True)), BATCH, shuffle=True)
        for k in range(case.clients)
    ]

    def turn() -> None:
        total, count, states, grown = {}, {}, [], []
        with contextlib.redirect_stdout(io.StringIO()):
            for mask, loader in zip(masks, loaders, strict=True):
                model.load_state_dict(start)
                model.train()
                optimizer = optimizers.MaskLocalAltSGD(model.parameters(), mask, lr=LR)
                optimizers.local_alt(model, nn.CrossEntropyLoss(), optimizer, loader, torch.device("cpu"))
                count = server.add_masks(count, mask)
                total = server.add_server_weights(total, model.state_dict(), mask)
                states.append(copy.deepcopy(model.state_dict()))
                grown.append(tickets.delta_update(0.05, states[-1], start, mask, bound=1.0, invert=True))
            total = server.div_server_weights(total, count)
            for mask, state in zip(masks, states, strict=True):
                server.broadcast_server_to_client_initialization(total, mask, state)

    return turn


def flower(case: Case, turns: int) -> tuple[float, list[float]]:
    """Seconds to the first round of a simulation of Flower with one worker, and those of each later round."""
    try:
        from flwr.client import ClientApp, NumPyClient
        from flwr.common import ndarrays_to_parameters
        from flwr.server import ServerApp, ServerAppComponents, ServerConfig
        from flwr.server.strategy import FedAvg
        from flwr.simulation import run_simulation

        importlib.import_module("ray")
    except ImportError as error:
        raise MissingError(f"Flower: {error}; pip install 'flwr[simulation]'") from None

    class Client(NumPyClient):
        def __init__(self, k: int) -> None:
            self.k = k

        def fit(self, parameters: list[np.ndarray], config: dict) -> tuple[list[np.ndarray], int, dict]:
            torch.set_num_threads(1)
            # imported by name, so that the worker process keeps the samples from round to round
            federation = importlib.import_module("tests.benchmarks.peers").cached_federation(*astuple(case))
            model, (x, y) = federation.network, federation.splits["train"].client(self.k)
            arrays = map(torch.from_numpy, parameters)
            model.load_state_dict(dict(zip(model.state_dict(), arrays, strict=True)))
            train_plainly(model, x, y)
            return [value.numpy() for value in model.state_dict().values()], len(y), {}

    marks = [time.perf_counter()]

    class Timed(FedAvg):
        def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
            client_manager.wait_for(case.clients)
            marks.append(time.perf_counter())
            return super().configure_fit(server_round, parameters, client_manager)

        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            if failures:
                raise RuntimeError(f"Flower: {len(failures)} clients failed: {failures[0]}")
            merged = super().aggregate_fit(server_round, results, failures)
            marks.append(time.perf_counter())
            return merged

    def server(context: Any) -> Any:
        first = ndarrays_to_parameters([value.numpy() for value in case.model().state_dict().values()])
        strategy = Timed(fraction_evaluate=0.0, initial_parameters=first)
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=turns + 1))

    app = ClientApp(client_fn=lambda context: Client(int(context.node_config["partition-id"])).to_client())
    one = {"init_args": {"num_cpus": 1}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    logging.getLogger("flwr").setLevel(logging.ERROR)
    run_simulation(ServerApp(server_fn=server), app, num_supernodes=case.clients, backend_config=one)
    seconds = [end - begin for begin, end in zip(marks[1::2], marks[2::2], strict=True)]
    return marks[2] - marks[0] - statistics.median(seconds[1:]), seconds[1:]  # the first round starts the workers


@cache
def cached_federation(*case: Any) -> Federation:
    return Case(*case).federation()


def train_plainly(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """One epoch of SGD."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for index in torch.randperm(len(y)).split(BATCH):
        optimizer.zero_grad()
        cross_entropy(model(x[index]), y[index]).backward()
        optimizer.step()


# ---- checkouts ------------------------------------------------------------------------------------------------------


def _checkout(folder: Path | None, name: str, how: str, inside: str) -> Path:
    if folder is None:
        raise MissingError(f"{name}: no checkout given ({how})")
    if not (folder / inside).exists():
        raise MissingError(f"{name}: {folder} has no {inside}")
    return folder.resolve()


@contextlib.contextmanager
def _importing(folder: Path) -> Iterator[None]:
    """Modules of the checkout can be imported, and only those: the names of two checkouts may be equal."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in set(sys.modules) - before if _lies_in(sys.modules[name], folder)]:
            del sys.modules[name]


def _lies_in(module: ModuleType, folder: Path) -> bool:
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]  # a package without file has a path
    return any(place and Path(place).is_relative_to(folder) for place in places)


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingError(f"{name} cannot be imported: {error}") from None


# ---- the table ------------------------------------------------------------------------------------------------------


def measure(
    case: Case,
    pfllib_checkout: Path | None,
    fl_bench_checkout: Path | None,
    authors_checkout: Path | None,
    files: Path,
    turns: int,
) -> tuple[list, list]:
    """Rows (case, side, seconds of a round, ratio to the bare loop), and what is left out of this case.

    ``files``: an empty folder for the samples of PFLlib.
    """
    makers: dict[str, Callable[[], Turn]] = {BARE: lambda: bare(case), OURS: lambda: ours(case)}
    if case.method == "fedselect":
        makers["the authors' FedSelect"] = lambda: authors(case, authors_checkout)
    else:
        makers["PFLlib, samples in memory"] = lambda: pfllib(case, pfllib_checkout)
        makers["PFLlib as shipped"] = lambda: pfllib(case, pfllib_checkout, files)
        makers["FL-bench"] = lambda: fl_bench(case, fl_bench_checkout)
    sides, left_out = {}, []
    for name, make in makers.items():
        try:
            sides[name] = make()
        except MissingError as error:
            left_out.append(str(error))
    for turn in sides.values():  # warm up
        turn()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    walls = []
    for _ in range(turns):
        for name, turn in sides.items():
            began = time.perf_counter()
            seconds[name].append(processor_time(turn))
            walls += [time.perf_counter() - began] if name == BARE else []
    rows = [
        (case.title, name, statistics.median(taken), statistics.median(map(_ratio, taken, seconds[BARE])))
        for name, taken in seconds.items()
    ]
    if case.method == "fedavg":
        rows.append((case.title, *all_cores(case, turns, statistics.median(walls))))
        try:
            start, taken = flower(case, turns)
            ratio = statistics.median(taken) / statistics.median(walls)
            name = f"Flower's simulation, wall clock ({start:.0f} s to start)"
            rows.append((case.title, name, statistics.median(taken), ratio))
        except MissingError as error:
            left_out.append(str(error))
    return rows, left_out


def all_cores(case: Case, turns: int, bare_wall: float) -> tuple[str, float, float]:
    """This project's clients on all cores: name of the row, seconds of a round by the clock, ratio to the bare loop."""
    cores = os.cpu_count() or 1
    turn, seconds = ours(case, cores), []
    turn()
    for _ in range(turns):
        began = time.perf_counter()
        turn()
        seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds)
    return f"{OURS}, wall clock, {cores} cores", median, median / bare_wall


def _ratio(seconds: float, bare_seconds: float) -> float:
    return seconds / bare_seconds


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.peers", description=__doc__.split("\n\n")[0])
    for name, what in (("pfllib", "PFLlib"), ("flbench", "FL-bench"), ("fedselect", "the authors' FedSelect")):
        default = os.environ.get(name.upper())
        parser.add_argument(
            f"--{name}",
            type=Path,
            metavar="DIR",
            default=Path(default) if default else None,
            help=f"a checkout of {what} (default: the environment variable {name.upper()})",
        )
    parser.add_argument("--turns", type=int, default=5, help="rounds of each side (default: 5)")
    parser.add_argument("--only", choices=sorted({case.method for case in CASES}), help="only the cases of this method")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    missing: dict[str, None] = {}
    print("| round | side | seconds | ratio |", "| --- | --- | --- | --- |", sep="\n")
    for case in CASES:
        if args.only in (None, case.method):
            with tempfile.TemporaryDirectory() as files:
                rows, left_out = measure(case, args.pfllib, args.flbench, args.fedselect, Path(files), args.turns)
            missing |= dict.fromkeys(left_out)
            for title, side, seconds, ratio in rows:
                print(f"| {title} | {side} | {seconds:.3f} | {ratio:.2f} |", flush=True)
    print(*(f"left out: {what}" for what in missing), sep="\n")


if __name__ == "__main__":
    main()
