"""What missing runs would take on this machine: time, memory, disk.

Time comes from runs of the same kind (all equal but the method's options, the seed and the rounds) that this data
folder holds; where there is none, from a few training steps and forward passes with the very network, batch and device.
Good to about a factor of two: it answers "minutes or days?".
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from pfl_core import algorithm, models
from pfl_core.federation import Federation, LocalTraining, Split
from pfl_core.federation.federation import ROW_BUDGET
from pfl_core.runs import RunSpec, Store, assign, load_data
from pfl_core.runs.spec import options

STEPS = 3  # timed after one that warms up
COPIES = 5  # of its state that a method holds at its peak; FedSelect 6, Local 3 (ResNet18, 10 clients)
VALUES_PER_CLIENT = 10  # numbers that a record holds for each round and client, of VALUE_BYTES characters
VALUE_BYTES = 7


@dataclass(frozen=True)
class Survey:
    """Which of a notebook's runs are there."""

    stored: int = 0
    missing: dict[str, RunSpec] = field(default_factory=dict)  # key -> spec
    lacking: int = 0  # runs whose data are not on this machine
    reasons: dict[str, int] = field(default_factory=dict)  # why -> how many of them

    @classmethod
    def of(cls, specs: Iterable[RunSpec], store: Store) -> Survey:
        keys = {spec.key(): spec for spec in specs}
        missing: dict[str, RunSpec] = {}
        reasons: Counter[str] = Counter()
        for key, spec in keys.items():
            try:
                record = store.drawn(spec)
                if record is None or record.partial:
                    spec.checksums()
                    missing[key] = spec
            except (FileNotFoundError, ValueError) as error:
                reasons[str(error)] += 1
        return cls(len(keys) - len(missing) - reasons.total(), missing, reasons.total(), dict(reasons))


@dataclass(frozen=True)
class Cost:
    """Of several runs. seconds: one after another on one core; longest: of the longest; worker: bytes at its peak."""

    seconds: float = 0.0
    longest: float = 0.0
    worker: int = 0
    disk: int = 0  # bytes of the records
    runs: int = 0
    timed: int = 0  # runs whose time was measured on a few steps, not taken from stored ones

    def wall(self, jobs: int) -> float:
        """Seconds with so many runs at a time."""
        return max(self.seconds / jobs, self.longest)

    def memory(self, jobs: int) -> int:
        """Bytes, with so many runs at a time."""
        return self.worker * min(jobs, self.runs)

    @property
    def basis(self) -> str:
        if not self.timed:
            return "from stored runs of the same kind"
        return f"from timing a few steps ({self.timed} of {self.runs} runs have no stored run of their kind)"


def estimate(specs: Iterable[RunSpec], store: Store) -> Cost:
    """What it costs to make these runs."""
    known, total = _known(store), Cost()
    for spec in specs:
        probe = _probe(_frame(spec))
        seen = known.get(_kind(spec))
        seconds, disk = (spec.rounds * each for each in seen or (_round_seconds(spec, probe), _round_bytes(spec)))
        total = Cost(
            total.seconds + seconds,
            max(total.longest, seconds),
            max(total.worker, _worker_bytes(spec, probe)),
            total.disk + int(disk),
            total.runs + 1,
            total.timed + (seen is None),
        )
    return total


def _known(store: Store) -> dict[str, tuple[float, float]]:
    """Kind of run -> seconds and bytes of a round, medians over the records made in this data folder."""
    found: dict[str, list[tuple[float, float]]] = {}
    for record in store:
        path, rounds = store.path(record.key), record.rounds
        if path.exists():
            found.setdefault(_kind(record.spec), []).append((record.seconds / rounds, path.stat().st_size / rounds))
    return {kind: tuple(map(statistics.median, zip(*seen, strict=True))) for kind, seen in found.items()}


def _kind(spec: RunSpec) -> str:
    """What tells how long a round takes."""
    plain = spec.identity() | {"method": spec.method["name"]}
    return json.dumps({name: plain[name] for name in plain if name not in ("seed", "rounds")}, sort_keys=True)


def _frame(spec: RunSpec) -> str:
    """What tells how long a step takes: everything but the method, as JSON."""
    plain = spec.to_json() | {"method": {"name": "local"}, "seed": 0, "rounds": 1, "paper": "", "preset": ""}
    return json.dumps(plain, sort_keys=True)


@dataclass(frozen=True)
class Probe:
    """Measured on this machine for one frame."""

    step: float  # seconds of a training step
    forward: float  # seconds of a sample's forward pass
    steps: float  # training steps of a client's epoch, mean
    tested: float  # test samples of a client, mean
    process: int  # bytes of a worker with its data, before it holds any model
    fed: Federation  # the frame's clients with two samples each


@cache
def _probe(frame: str) -> Probe:
    """Deal the data out, but prepare a few samples only."""
    spec = RunSpec.from_json(json.loads(frame))
    dataset = load_data(spec)
    assigned = assign(spec, dataset)
    sizes = [len(index) for index in assigned.train]
    largest = assigned.train[max(range(len(sizes)), key=sizes.__getitem__)]
    few = largest[: STEPS * spec.train.batch_size]
    x, y = dataset.prepare(dataset.x[few]), dataset.y[few]
    tiny = Split.of([(x[:2], y[:2])] * len(sizes))
    net = models.build(spec.model["name"], tuple(x.shape[1:]), dataset.num_classes, 0, **options(spec.model))
    fed = Federation(net, {"train": tiny, "test": tiny}, seed=0, rounds=1, train=spec.train, device=spec.device)
    step, forward = _times(fed, x.to(spec.device), y.to(spec.device))
    samples = sum(len(index) for part in (assigned.train, assigned.val, assigned.test) for index in part)
    return Probe(
        step=step,
        forward=forward,
        steps=statistics.mean(-(-n // spec.train.batch_size) for n in sizes),
        tested=statistics.mean(len(index) for index in assigned.test),
        process=_peak_memory() + samples * x[0].numel() * x.element_size(),
        fed=fed,
    )


def _times(fed: Federation, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Seconds of a step, and of a sample's forward pass, with one thread."""
    threads, first = torch.get_num_threads(), torch.tensor([0])
    torch.set_num_threads(1)
    try:
        for n in (min(len(y), fed.train.batch_size), len(y)):  # the first call warms up
            began = perf_counter()
            out = fed.sgd(fed.theta0[None], first, LocalTraining(epochs=1), key=0, data=[(x[:n], y[:n])])
            step = (perf_counter() - began) / max(1, int(out.steps[0]))
        began = perf_counter()
        with torch.no_grad():
            fed.logits(fed.theta0, x).sum().item()
        return step, (perf_counter() - began) / len(y)
    finally:
        torch.set_num_threads(threads)


def _round_seconds(spec: RunSpec, probe: Probe) -> float:
    """Training passes of the sampled clients, and scores after aggregation (all) and before (the sampled)."""
    sampled = len(spec.schedule.clients(probe.fed.num_clients, 0, 0))
    entry = algorithm.methods().get(spec.method["name"])
    passes = getattr(entry, "passes", 1.0)  # over the data, for each local epoch
    training = sampled * spec.train.epochs * passes * probe.steps * probe.step
    scoring = (probe.fed.num_clients + sampled) * probe.tested * probe.forward / spec.eval_every
    return training + scoring


def _round_bytes(spec: RunSpec) -> float:
    return VALUES_PER_CLIENT * VALUE_BYTES * spec.clients / spec.eval_every


def _worker_bytes(spec: RunSpec, probe: Probe) -> int:
    """The process with its data, the method's state and what a round makes of it, and a chunk of the clients' rows."""
    sampled = len(spec.schedule.clients(probe.fed.num_clients, 0, 0))
    rows = min(ROW_BUDGET, sampled * probe.fed.num_entries * probe.fed.theta0.element_size())
    return probe.process + COPIES * _state_bytes(spec, probe.fed) + rows


def _state_bytes(spec: RunSpec, fed: Federation) -> int:
    """Of the method's first state, made without memory; one row for each client if it cannot be."""
    try:
        state = spec.build_method().init(fed, fed.theta0.to("meta"))
    except (RuntimeError, NotImplementedError):  # it wants numbers
        return fed.num_clients * fed.num_entries * fed.theta0.element_size()
    return sum({id(t): t.numel() * t.element_size() for t in _tensors(state)}.values())


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if dataclasses.is_dataclass(value):
        value = vars(value)
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def _peak_memory() -> int:
    """Bytes of this process at its peak; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
