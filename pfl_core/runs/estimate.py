"""Estimates the time, memory and disk that missing runs need on this machine.

The time is taken from stored runs of the same kind: equal except for the method's options, the seed and the rounds.
Without such a run, it is the FLOPs of the run divided by the speed of stored runs with the same network and training
steps of the same size. Without these, it is the FLOPs divided by the speed of larger and smaller steps, plus a fixed
time for each step. The sum over a paper's runs at `real` is accurate to a factor of 1.5, a single run to 2 or 3.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from torch import Tensor

from pfl_core import algorithm, models
from pfl_core.federation import Federation, Split
from pfl_core.federation.federation import ROW_BUDGET
from pfl_core.runs import Record, RunSpec, Store, assign, load_data
from pfl_core.runs.execute import sample_flops
from pfl_core.runs.index import indexed
from pfl_core.runs.spec import options

SPEED = 1e10  # FLOPs per second, assumed if no run is stored; committed runs have 0.9 to 6.0e10, depending on network
STEP_SECONDS = 1.5e-3  # of a training step apart from its FLOPs; measured: 1 ms on an idle core, 2 ms on a shared one
COPIES = 5  # copies of its state that a method holds at its peak; measured: FedSelect 6, Local 3 (ResNet18, 10 clients)
BYTES_PER_CLIENT = 70  # size of a record per round and client: ten numbers of seven characters


@dataclass(frozen=True)
class Survey:
    """How many runs of a notebook are stored, missing, or cannot be computed on this machine."""

    stored: int = 0
    missing: dict[str, RunSpec] = field(default_factory=dict)  # key -> spec
    num_blocked: int = 0  # runs that cannot be computed, usually because their data are not on this machine
    blocked: dict[str, int] = field(default_factory=dict)  # reason -> number of these runs

    @classmethod
    def of(cls, specs: Iterable[RunSpec], store: Store, drawn: bool = True, until: int | None = None) -> Survey:
        """``drawn``: whether any record that a figure may show counts, else only what a run would not compute again.

        ``until``: the rounds that are wanted of each run, default all.
        """
        keys = {spec.key(): spec for spec in specs}
        missing: dict[str, RunSpec] = {}
        blocked: Counter[str] = Counter()
        for key, spec in keys.items():
            try:
                record = store.display_record(spec) if drawn else store.locate(spec)[1]
                wanted = min(until or spec.rounds, spec.rounds)
                if record is None or record.rounds < wanted:
                    spec.checksums()
                    missing[key] = dataclasses.replace(spec, rounds=wanted)
            except (FileNotFoundError, ValueError) as error:
                blocked[str(error)] += 1
        return cls(len(keys) - len(missing) - blocked.total(), missing, blocked.total(), dict(blocked))


@dataclass(frozen=True)
class Cost:
    """The estimated cost of several runs."""

    seconds: float = 0.0  # sum over the runs, each on one core
    # seconds of the longest run on one core, if its clients train one by one, and if they train in one computation
    longest: float = 0.0
    longest_batched: float = 0.0
    worker: int = 0  # peak memory of a worker process, bytes
    disk: int = 0  # bytes of the records
    runs: int = 0
    computed: int = 0  # runs whose time was computed from FLOPs, because no run of their kind is stored
    speed_source: str = ""  # text: which runs the FLOPs per second were measured on

    def wall(self, jobs: int) -> float:
        """Wall time in seconds on ``jobs`` cores. With fewer runs than cores, clients train in parallel, too."""
        threads = jobs // max(1, min(jobs, self.runs))
        return max(self.seconds / jobs, self.longest / threads, self.longest_batched)

    def memory(self, jobs: int) -> int:
        """Bytes with ``jobs`` parallel runs."""
        return self.worker * min(jobs, self.runs)

    @property
    def basis(self) -> str:
        """Text: what the estimated time is based on."""
        if not self.computed:
            return "from stored runs of the same kind"
        share = f"{self.computed} of {self.runs} runs have no stored run of the same kind"
        return f"from FLOPs and {self.speed_source} ({share})"


@dataclass(frozen=True)
class Timings:
    """Measured times of stored runs. Runs in the data folder have priority over committed runs of other machines.

    Speeds are FLOPs per second. Those of (network, size of a step) include a step's fixed time; those of (network,
    None) and ("", None), all networks, leave it out.
    """

    kinds: dict[str, tuple[float, float]]  # kind of run -> seconds and bytes per round
    speeds: dict[tuple[str, int | None], float]
    speed_source: str

    @classmethod
    def of(cls, store: Store) -> Timings:
        """Means over the records of a store."""
        return cls.from_runs(indexed(store, "timings", partial(_timing, store.root)))

    @classmethod
    def from_runs(cls, runs: Sequence[Mapping[str, Any]]) -> Timings:
        """``runs``: what ``_timing`` returns for each record."""
        local, committed = ([run for run in runs if run["local"] is here] for here in (True, False))
        speeds = {("", None): SPEED} | _speeds(runs) | _speeds_by_size(committed) | _speeds_by_size(local)
        origin = " and ".join(name for name, some in (("stored", local), ("committed", committed)) if some)
        speed_source = f"the speed of {origin} runs" if origin else "an assumed speed of 10 GFLOPs per second"
        return cls(_kinds(committed) | _kinds(local), speeds, speed_source)

    def seconds(self, spec: RunSpec, frame: Frame) -> float:
        """Seconds of a round: samples × FLOPs per sample / speed, plus steps × STEP_SECONDS and what a client's step of
        the method takes, if the speed is of others.

        The samples are clients × samples of a client × epochs × passes. Clients that train in one batched computation
        share their steps.
        """
        entry, clients = algorithm.methods().get(spec.method["name"]), frame.sampled(spec)
        passes, own = (entry.passes, entry.step_seconds) if entry else (1.0, 0.0)
        each = frame.samples * spec.train.epochs * passes  # samples of a client
        batch = min(spec.train.batch_size, frame.samples)
        if speed := self.speeds.get((spec.model["name"], _size(frame.flops * batch))):
            return clients * each * frame.flops / speed
        steps = (1 if frame.batched else clients) * each / batch
        speed = self.speeds.get((spec.model["name"], None), self.speeds["", None])
        return clients * each * frame.flops / speed + steps * STEP_SECONDS + clients * each / batch * own


def _size(flops: float) -> int:
    """A training step's FLOPs as the nearest power of two."""
    return round(math.log2(flops))


def _timing(root: Path, record: Record, path: Path) -> dict[str, Any]:
    """What `Timings` needs of a run; "seconds" and "bytes" are those of a round, "flops" and "steps" of all."""
    local, samples = path.parent == root, record.samples_trained()
    batch = min(record.spec.train.batch_size, statistics.mean(map(sum, record.clients["train"])))
    return {
        "local": local,
        "kind": _kind(record.spec),
        "seconds": record.core_seconds / record.rounds,
        "bytes": (path.stat().st_size if local else _record_bytes(record.spec)) / record.rounds,
        "network": record.spec.model["name"],
        "rounds": record.rounds,
        "flops": record.flops * samples,
        "steps": samples / batch,
    }


def _kinds(runs: Iterable[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """Mean seconds and bytes per round, by kind of run."""
    runs_of = _grouped((run["kind"], run) for run in runs)
    return {
        kind: (statistics.mean(run["seconds"] for run in same), statistics.mean(run["bytes"] for run in same))
        for kind, same in runs_of.items()
    }


def _speeds_by_size(runs: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int | None], float]:
    """FLOPs of all runs with one network and size of a step, by their seconds."""
    runs_of = _grouped(
        ((run["network"], _size(run["flops"] / run["steps"])), run)
        for run in runs
        if run["flops"] > 0  # False for NaN
    )
    return {
        key: sum(run["flops"] for run in same) / sum(run["rounds"] * run["seconds"] for run in same)
        for key, same in runs_of.items()
    }


def _speeds(runs: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int | None], float]:
    """Median FLOPs per second by network, and of all runs, without the fixed time of steps: at most half of a run."""
    speeds_of: dict[tuple[str, int | None], list[float]] = {}
    for run in runs:
        if run["flops"] > 0:
            seconds = run["rounds"] * run["seconds"]
            speed = run["flops"] / (seconds - min(run["steps"] * STEP_SECONDS, seconds / 2))
            speeds_of.setdefault((run["network"], None), []).append(speed)
            speeds_of.setdefault(("", None), []).append(speed)
    return {key: statistics.median(speeds) for key, speeds in speeds_of.items()}


def _grouped(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def estimate(specs: Iterable[RunSpec], timings: Timings) -> Cost:
    """The cost of computing these runs."""
    total = Cost()
    for spec in specs:
        frame, measured = _frame(_without_method(spec)), timings.kinds.get(_kind(spec))
        # of one round
        seconds, size = measured or (timings.seconds(spec, frame), _record_bytes(spec) / spec.rounds)
        total = Cost(
            seconds=total.seconds + spec.rounds * seconds,
            longest=max(total.longest, 0.0 if frame.batched else spec.rounds * seconds),
            longest_batched=max(total.longest_batched, spec.rounds * seconds if frame.batched else 0.0),
            worker=max(total.worker, frame.worker_bytes(spec)),
            disk=total.disk + int(spec.rounds * size),
            runs=total.runs + 1,
            computed=total.computed + (measured is None),
            speed_source=timings.speed_source,
        )
    return total


def _kind(spec: RunSpec) -> str:
    """The parts of a spec that determine how long a round takes, as JSON."""
    plain = spec.identity() | {"method": spec.method["name"]}
    return json.dumps({name: plain[name] for name in plain if name not in ("seed", "rounds")}, sort_keys=True)


def _record_bytes(spec: RunSpec) -> float:
    return BYTES_PER_CLIENT * spec.rounds * spec.clients / spec.eval_every


def _without_method(spec: RunSpec) -> str:
    """The spec as JSON with method "local": the cache key of `_frame`, which does not depend on the method."""
    plain = spec.to_json() | {"method": {"name": "local"}, "seed": 0, "rounds": 1, "paper": "", "preset": ""}
    return json.dumps(plain, sort_keys=True)


@dataclass(frozen=True)
class Frame:
    """The clients and the network of a run, independent of the method."""

    samples: float  # mean number of training samples per client
    flops: int  # forward and backward pass of one sample
    process: int  # bytes of a worker with its data, without models
    fed: Federation  # the clients, with two samples each
    batched: bool  # whether clients train together in one batched computation

    def sampled(self, spec: RunSpec) -> int:
        """Number of clients in a round."""
        return len(spec.schedule.clients(self.fed.num_clients, 0, 0))

    def worker_bytes(self, spec: RunSpec) -> int:
        """Bytes of a worker: process and data, copies of the method's state, and a chunk of the clients' rows."""
        row = self.fed.num_entries * self.fed.theta0.element_size()
        try:
            state = spec.build_method().init(self.fed, self.fed.theta0.to("meta"))
            state_bytes = sum({id(t): t.numel() * t.element_size() for t in _tensors(state)}.values())
        except (
            RuntimeError,
            NotImplementedError,
        ):  # init reads values, which meta tensors lack: assume a row per client
            state_bytes = self.fed.num_clients * row
        return self.process + COPIES * state_bytes + min(ROW_BUDGET, self.sampled(spec) * row)


@cache
def _frame(plain: str) -> Frame:
    """Partitions the data, but preprocesses only two samples: those stand in for the data of every client."""
    spec = RunSpec.from_json(json.loads(plain))
    dataset = load_data(spec)
    assigned = assign(spec, dataset)
    sizes = [len(index) for index in assigned.train]
    few = assigned.train[max(range(len(sizes)), key=sizes.__getitem__)][:2]  # two samples of the largest client
    x, y = dataset.prepare(dataset.x[few]), dataset.y[few]
    tiny = Split.of([(x, y)] * len(sizes))
    shape = tuple(x.shape[1:])
    # only the shapes matter, so pretrained weights are not loaded
    network = {name: value for name, value in spec.model.items() if name != "pretrained"}
    net = models.build(network["name"], shape, dataset.num_classes, 0, **options(network))
    samples = sum(len(index) for part in (assigned.train, assigned.val, assigned.test) for index in part)
    fed = Federation(net, {"train": tiny, "test": tiny}, seed=0, rounds=1, train=spec.train, device=spec.device)
    return Frame(
        samples=statistics.mean(sizes),
        flops=sample_flops(json.dumps(network), shape, dataset.num_classes),
        process=_peak_memory() + samples * x[0].numel() * x.element_size(),
        fed=fed,
        batched=fed.batched,
    )


def _tensors(value: Any) -> list[Tensor]:
    """All tensors in nested dataclasses, mappings, lists and tuples."""
    if isinstance(value, Tensor):
        return [value]
    if dataclasses.is_dataclass(value):
        value = vars(value)
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def _peak_memory() -> int:
    """Peak memory of this process in bytes; 0 on Windows, which has no module ``resource``."""
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
