"""What missing runs would take on this machine: time, memory, disk.

Time comes from stored runs of the same kind (all equal but the method's options, the seed and the rounds). Where there
is none, from FLOPs: what the run computes, divided by the speed of stored runs, those of the same network first.
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
from typing import Any

from torch import Tensor

from pfl_core import algorithm, models
from pfl_core.federation import Federation, Split
from pfl_core.federation.federation import ROW_BUDGET
from pfl_core.runs import Record, RunSpec, Store, assign, load_data
from pfl_core.runs.execute import sample_flops
from pfl_core.runs.spec import options

SPEED = 1e10  # FLOPs a second, assumed where no run is stored; committed runs: 0.9 to 6.0e10, by network
COPIES = 5  # of its state that a method holds at its peak; FedSelect 6, Local 3 (ResNet18, 10 clients)
BYTES_PER_CLIENT = 70  # of a record, for each round and client: ten numbers of seven characters


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
    computed: int = 0  # runs whose time was computed from FLOPs, for there is no stored run of their kind
    speed_of: str = ""  # where the speed comes from

    def wall(self, jobs: int) -> float:
        """Seconds with so many runs at a time."""
        return max(self.seconds / jobs, self.longest)

    def memory(self, jobs: int) -> int:
        """Bytes, with so many runs at a time."""
        return self.worker * min(jobs, self.runs)

    @property
    def basis(self) -> str:
        if not self.computed:
            return "from stored runs of the same kind"
        share = f"{self.computed} of {self.runs} runs have no stored run of their kind"
        return f"from FLOPs at {self.speed_of} ({share})"


@dataclass(frozen=True)
class Timings:
    """What stored runs took. Runs of this data folder win over committed ones, which another machine may have made."""

    kinds: dict[str, tuple[float, float]]  # kind of run -> seconds and bytes of a round
    speeds: dict[str, float]  # network, and "" for all -> FLOPs a second
    speed_of: str

    @classmethod
    def of(cls, store: Store) -> Timings:
        """Medians over the records of a store."""
        own, committed = [], []
        for record in store:
            (own if store.path(record.key).exists() else committed).append(record)
        speeds = _speeds(own) or _speeds(committed)
        where = "stored" if _speeds(own) else "committed"
        speed_of = f"the speed of {where} runs" if speeds else "an assumed 10 GFLOPs a second"
        return cls(_kinds(committed, store) | _kinds(own, store), speeds or {"": SPEED}, speed_of)

    def seconds(self, spec: RunSpec, frame: Frame) -> float:
        """Of a round, from FLOPs."""
        passes = getattr(algorithm.methods().get(spec.method["name"]), "passes", 1.0)  # in each local epoch
        samples = frame.sampled(spec) * frame.samples * spec.train.epochs * passes
        return samples * frame.flops / self.speeds.get(spec.model["name"], self.speeds[""])


def _kinds(records: Iterable[Record], store: Store) -> dict[str, tuple[float, float]]:
    seen: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        size = store.path(record.key).stat().st_size if store.path(record.key).exists() else _record_bytes(record.spec)
        seen.setdefault(_kind(record.spec), []).append((record.seconds / record.rounds, size / record.rounds))
    return {kind: tuple(map(statistics.median, zip(*pairs, strict=True))) for kind, pairs in seen.items()}


def _speeds(records: Iterable[Record]) -> dict[str, float]:
    seen: dict[str, list[float]] = {}
    for record in records:
        speed = record.flops * record.samples_trained() / record.seconds
        if speed > 0:  # not NaN
            seen.setdefault(record.spec.model["name"], []).append(speed)
            seen.setdefault("", []).append(speed)
    return {network: statistics.median(speeds) for network, speeds in seen.items()}


def estimate(specs: Iterable[RunSpec], timings: Timings) -> Cost:
    """What it costs to make these runs."""
    total = Cost()
    for spec in specs:
        frame, seen = _frame(_without_method(spec)), timings.kinds.get(_kind(spec))
        second, size = seen or (timings.seconds(spec, frame), _record_bytes(spec) / spec.rounds)
        total = Cost(
            total.seconds + spec.rounds * second,
            max(total.longest, spec.rounds * second),
            max(total.worker, frame.worker_bytes(spec)),
            total.disk + int(spec.rounds * size),
            total.runs + 1,
            total.computed + (seen is None),
            timings.speed_of,
        )
    return total


def _kind(spec: RunSpec) -> str:
    """What decides how long a round takes."""
    plain = spec.identity() | {"method": spec.method["name"]}
    return json.dumps({name: plain[name] for name in plain if name not in ("seed", "rounds")}, sort_keys=True)


def _record_bytes(spec: RunSpec) -> float:
    return BYTES_PER_CLIENT * spec.rounds * spec.clients / spec.eval_every


def _without_method(spec: RunSpec) -> str:
    """The run as JSON, with the simplest method."""
    plain = spec.to_json() | {"method": {"name": "local"}, "seed": 0, "rounds": 1, "paper": "", "preset": ""}
    return json.dumps(plain, sort_keys=True)


@dataclass(frozen=True)
class Frame:
    """The clients and the network of a run, whatever its method."""

    samples: float  # training samples of a client, mean
    flops: int  # of one sample's forward and backward pass
    process: int  # bytes of a worker with its data, before it holds any model
    fed: Federation  # the clients with two samples each

    def sampled(self, spec: RunSpec) -> int:
        """Clients of a round."""
        return len(spec.schedule.clients(self.fed.num_clients, 0, 0))

    def worker_bytes(self, spec: RunSpec) -> int:
        """The process with its data, the method's state and copies of it, and a chunk of the clients' rows."""
        row = self.fed.num_entries * self.fed.theta0.element_size()
        try:
            state = spec.build_method().init(self.fed, self.fed.theta0.to("meta"))
            held = sum({id(t): t.numel() * t.element_size() for t in _tensors(state)}.values())
        except (RuntimeError, NotImplementedError):  # the method needs the values themselves: a row for each client
            held = self.fed.num_clients * row
        return self.process + COPIES * held + min(ROW_BUDGET, self.sampled(spec) * row)


@cache
def _frame(plain: str) -> Frame:
    """Divides the data, but prepares two samples of each client only."""
    spec = RunSpec.from_json(json.loads(plain))
    dataset = load_data(spec)
    assigned = assign(spec, dataset)
    sizes = [len(index) for index in assigned.train]
    few = assigned.train[max(range(len(sizes)), key=sizes.__getitem__)][:2]
    x, y = dataset.prepare(dataset.x[few]), dataset.y[few]
    tiny = Split.of([(x, y)] * len(sizes))
    shape = tuple(x.shape[1:])
    network = {name: value for name, value in spec.model.items() if name != "pretrained"}  # needs no weights
    net = models.build(network["name"], shape, dataset.num_classes, 0, **options(network))
    samples = sum(len(index) for part in (assigned.train, assigned.val, assigned.test) for index in part)
    return Frame(
        samples=statistics.mean(sizes),
        flops=sample_flops(json.dumps(network), shape, dataset.num_classes),
        process=_peak_memory() + samples * x[0].numel() * x.element_size(),
        fed=Federation(net, {"train": tiny, "test": tiny}, seed=0, rounds=1, train=spec.train, device=spec.device),
    )


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
