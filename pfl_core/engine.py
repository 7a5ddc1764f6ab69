"""The loop: sample clients, run a round, score, note. It knows no method by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from time import perf_counter

import torch
from torch import Tensor

from pfl_core.algorithm import Algorithm, State
from pfl_core.federation import Federation, Scores
from pfl_core.federation.types import Predict
from pfl_core.seeding import generator


@dataclass(frozen=True)
class Schedule:
    """How many rounds, who takes part, and when all clients are scored."""

    rounds: int
    participation: float = 1.0  # share of the clients in a round
    sampling: str = "each_round"  # "each_round" (uniform, without replacement) | "once" (one draw for all rounds)
    eval_every: int = 1  # the last round is always scored
    novel: float = 0.0  # share of the clients that never take part, and are scored after they adapt

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.eval_every < 1:
            raise ValueError(f"rounds={self.rounds}, eval_every={self.eval_every}: both must be at least 1")
        if not 0 < self.participation <= 1:
            raise ValueError(f"participation={self.participation} is outside (0, 1]; for 10 percent give 0.1")
        if not 0 <= self.novel < 1:
            raise ValueError(f"novel={self.novel} is outside [0, 1); for 20 percent give 0.2")
        if self.sampling not in ("each_round", "once"):
            raise ValueError(f"sampling={self.sampling!r} is unknown; choose each_round or once")

    def clients(self, num_clients: int, seed: int, t: int) -> Tensor:
        """The clients of round t, ascending: max(1, floor(participation N)) of the N that are not novel."""
        known = torch.arange(num_clients)
        if self.novel:
            order = torch.randperm(num_clients, generator=generator(seed, "novel"))
            known = order[int(self.novel * num_clients + 1e-9) :].sort().values
        size = max(1, int(self.participation * len(known) + 1e-9))
        if size == len(known):
            return known
        stream = generator(seed, "clients", t if self.sampling == "each_round" else 0)
        return known[torch.randperm(len(known), generator=stream)[:size].sort().values]

    def scores(self, t: int) -> bool:
        return (t + 1) % self.eval_every == 0 or t + 1 == self.rounds


@dataclass(frozen=True)
class Snapshot:
    """The state after round t and the notes of that round, each a number or one value per client [N]."""

    t: int
    state: State
    notes: dict[str, float | list[float]]


@dataclass
class History:
    """Notes of all rounds: metric -> (rounds from 1, values; a list per round where there is one per client)."""

    series: dict[str, tuple[list[int], list]] = field(default_factory=dict)

    def add(self, snapshot: Snapshot) -> None:
        for metric, value in snapshot.notes.items():
            rounds, values = self.series.setdefault(metric, ([], []))
            rounds.append(snapshot.t + 1)
            values.append(value)


def run(
    algorithm: Algorithm,
    fed: Federation,
    schedule: Schedule,
    *,
    start: tuple[State, History, int] | None = None,
    until: int | None = None,
    on_round: Callable[[Snapshot, History], None] | None = None,
) -> tuple[State, History]:
    """All rounds of one method, or those before round ``until``.

    ``start`` (state, history, next round) continues an interrupted run with the same bits; ``on_round`` is called after
    each round (progress, checkpoints). Warns of small batches under batch norm, see ``Federation.small_batches``.
    """
    if warning := fed.small_batches():
        warnings.warn(warning, stacklevel=2)
    state, history, first = start or (algorithm.init(fed, fed.theta0), History(), 0)
    history = History({metric: (list(times), list(values)) for metric, (times, values) in history.series.items()})
    for snapshot in islice(
        rounds(algorithm, fed, schedule, state, first), None if until is None else max(until - first, 0)
    ):
        history.add(snapshot)
        state = snapshot.state
        if on_round is not None:
            on_round(snapshot, history)
    return state, history


def rounds(
    algorithm: Algorithm, fed: Federation, schedule: Schedule, state: State, first: int = 0
) -> Iterator[Snapshot]:
    """Round after round from ``state``, to be stepped through."""
    seen = set().union(*(schedule.clients(fed.num_clients, fed.seed, t).tolist() for t in range(first)))
    for t in range(first, schedule.rounds):
        clients = schedule.clients(fed.num_clients, fed.seed, t)
        seen |= set(clients.tolist())
        due = schedule.scores(t)
        scoring = _Timed(lambda theta, chunk, predict: fed.evaluate(theta, chunk, predict=predict))
        fed.score = scoring if due else None
        began = perf_counter()
        state, info = algorithm.round(fed, state, clients, t)
        seconds, fed.score = perf_counter() - began - scoring.seconds, None  # scoring is no part of a round
        notes = {name: _per_client(value, clients, fed.num_clients) for name, value in _noted(info).items()}
        if due:
            trained = info.get("trained")
            if isinstance(trained, Tensor):
                trained = fed.evaluate(trained, clients, predict=_predict(algorithm, fed, state))
            if trained is not None:
                notes |= _columns(trained, clients, fed.num_clients, "_trained")
            for split, suffix in (("test", ""), ("val", "_val")):
                if split in fed.splits:
                    scores = _score_all(algorithm, fed, state, seen, t, split)
                    notes |= _columns(scores, torch.arange(fed.num_clients), fed.num_clients, suffix)
        yield Snapshot(t, state, {**notes, "seconds": seconds})


@dataclass
class _Timed:
    """A function, and the seconds that it took in all."""

    function: Callable
    seconds: float = 0.0

    def __call__(self, *arguments: object) -> object:
        began = perf_counter()
        try:
            return self.function(*arguments)
        finally:
            self.seconds += perf_counter() - began


def _predict(algorithm: Algorithm, fed: Federation, state: State) -> Predict | None:
    """The method's own prediction rule; None for the plain forward pass, which can take many clients at once."""
    own = type(algorithm).predict is not Algorithm.predict
    return partial(algorithm.predict, fed, state) if own else None


def _score_all(algorithm: Algorithm, fed: Federation, state: State, seen: set[int], t: int, split: str) -> Scores:
    """Every client with the model it would use now; clients that never took part adapt first."""
    everyone = torch.arange(fed.num_clients)
    absent = torch.tensor([k for k in everyone.tolist() if k not in seen], dtype=torch.int64)
    state = algorithm.adapt(fed, state, absent, t) if len(absent) else state
    parts = []
    for rows in fed.chunks(everyone):
        theta = algorithm.evaluation_models(fed, state, everyone[rows], t)
        parts.append(fed.evaluate(theta, everyone[rows], split, _predict(algorithm, fed, state)))
    return Scores.join(parts)


def _noted(info: dict) -> dict[str, float | Tensor]:
    return {name: value for name, value in info.items() if name != "trained"}


def _per_client(value: float | Tensor, clients: Tensor, num_clients: int) -> float | list[float]:
    """A number stays a number; a value for each sampled client becomes one for each client, NaN for the absent."""
    if not isinstance(value, Tensor):
        return float(value)
    if value.dim() == 0:
        return value.item()
    full = torch.full((num_clients,), torch.nan, dtype=torch.float64)
    full[clients] = value.to(full)
    return full.tolist()


def _columns(scores: Scores, clients: Tensor, num_clients: int, suffix: str = "") -> dict[str, list[float]]:
    return {
        f"{name}{suffix}": _per_client(getattr(scores, name), clients, num_clients)
        for name in ("correct", "count", "loss")
    }
