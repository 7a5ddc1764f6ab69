"""The training loop: sample clients, run a round, evaluate, record. Independent of the method."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Literal, TypeVar, cast

import torch
from torch import Tensor

from pfl_core.algorithm import Algorithm, State
from pfl_core.federation import Federation, Scores
from pfl_core.federation.federation import EVAL_BATCH
from pfl_core.federation.types import Predict
from pfl_core.layout import is_users_own
from pfl_core.options import Part, PositiveInt, Share, check_fields
from pfl_core.plugins import PACKAGE
from pfl_core.seeding import Key, generator, seeded

Result = TypeVar("Result")
Sampling = Literal["each_round", "once"]


@dataclass(frozen=True)
class Schedule:
    """Number of rounds, client sampling, and how often all clients are evaluated.

    Raises ValueError for a wrong type and for a value out of range.
    """

    rounds: PositiveInt  # communication rounds
    participation: Share = 1.0  # fraction of the clients in a round, e.g. 0.1
    sampling: Sampling = "each_round"  # "each_round" (uniform, without replacement) | "once" (one draw for all rounds)
    eval_every: PositiveInt = 1  # evaluate every so many rounds, and always after the last round
    novel: Part = 0.0  # fraction of the clients that never take part; they are evaluated after adaptation

    def __post_init__(self) -> None:
        check_fields(self, "run")

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

    def novel_clients(self, num_clients: int, seed: int) -> Tensor:
        """The clients that never take part, ascending."""
        order = torch.randperm(num_clients, generator=generator(seed, "novel"))
        return order[: int(self.novel * num_clients + 1e-9)].sort().values

    def scores(self, t: int) -> bool:
        """Whether all clients are evaluated after round t."""
        return (t + 1) % self.eval_every == 0 or t + 1 == self.rounds


@dataclass(frozen=True)
class Snapshot:
    """The state after round t and the notes of that round: a number each, or one value per client [N]."""

    t: int
    state: State
    notes: dict[str, float | list[float]]


SENT = {"upload", "upload_bits"}  # notes that are sums over the clients in summaries
SCORES = {name + suffix for name in ("correct", "count", "loss") for suffix in ("", "_trained", "_val")}  # metrics


@dataclass
class History:
    """Notes of all rounds: metric -> (rounds from 1, values). A value is a number or a list [N]."""

    series: dict[str, tuple[list[int], list]] = field(default_factory=dict)

    def add(self, snapshot: Snapshot) -> None:
        """Raises ValueError for a note that changes between a number and one by client."""
        for metric, value in snapshot.notes.items():
            rounds, values = self.series.setdefault(metric, ([], []))
            if values and isinstance(values[-1], list) is not isinstance(value, list):
                raise ValueError(f"the note {metric} is a number in some rounds and one by client in others")
            rounds.append(snapshot.t + 1)
            values.append(value)

    def until(self, number: int) -> History:
        """A copy with the rounds up to this number (from 1)."""
        lengths = {metric: sum(at <= number for at in rounds) for metric, (rounds, _) in self.series.items()}
        return History({name: (self.series[name][0][:n], self.series[name][1][:n]) for name, n in lengths.items() if n})

    def without_scores(self, number: int) -> History:
        """A copy without the scores of this round (from 1), which must be the last one."""
        series = {}
        for metric, (rounds, values) in self.series.items():
            drop = metric in SCORES and rounds[-1] == number
            if len(rounds) > drop:
                series[metric] = (rounds[: len(rounds) - drop], values[: len(values) - drop])
        return History(series)


def run(
    algorithm: Algorithm,
    fed: Federation,
    schedule: Schedule,
    *,
    start: tuple[State, History, int] | None = None,
    until: int | None = None,
    on_round: Callable[[Snapshot, History], bool | None] | None = None,
) -> tuple[State, History]:
    """Run all rounds of a method, or only those before round ``until``; returns the last state and the history.

    ``start`` = (state, history, next round) continues an interrupted run; the result is bitwise the same. ``on_round``
    is called after each round (progress, checkpoints); if it returns True, that round is the last. Warns of small
    batches under batch norm, see ``Federation.small_batches``, and of results that cannot be repeated.
    """
    for warning in filter(None, (fed.small_batches(), fed.traced.warning)):
        warnings.warn(warning, stacklevel=2)
    state, history, first = start or (guarded(algorithm, fed, lambda: algorithm.init(fed, fed.theta0)), History(), 0)
    history = History({metric: (list(times), list(values)) for metric, (times, values) in history.series.items()})
    num_rounds = None if until is None else max(until - first, 0)
    for snapshot in islice(rounds(algorithm, fed, schedule, state, first), num_rounds):
        history.add(snapshot)
        state = snapshot.state
        if on_round is not None and on_round(snapshot, history):
            break
    return state, history


def rounds(
    algorithm: Algorithm, fed: Federation, schedule: Schedule, state: State, first: int = 0
) -> Iterator[Snapshot]:
    """Iterate over the rounds, beginning with round ``first`` from ``state``."""
    seen = participants(fed, schedule, first)
    for t in range(first, schedule.rounds):
        clients = schedule.clients(fed.num_clients, fed.seed, t)
        seen |= set(clients.tolist())
        due = schedule.scores(t)
        # In rounds with evaluation, methods that do not return their trained rows score them with ``fed.score``.
        score = _TimedScore(fed, t)
        fed.score, fed.keep_trained = score if due else None, False
        began = perf_counter()
        try:
            made = guarded(algorithm, fed, partial(algorithm.round, fed, state, clients, t), "round", t)
        finally:
            fed.score, fed.keep_trained = None, True
        seconds = perf_counter() - began - score.seconds  # without the time of evaluation
        if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], dict)):
            raise ValueError(f"{type(algorithm).__name__}.round must return the next state and a dictionary of notes")
        state, info = made
        found = _notes(info, clients)
        if taken := found.keys() & {*SCORES, "seconds"}:
            raise ValueError(f"{type(algorithm).__name__}.round: {min(taken)} is the engine's name; rename the note")
        if wrong := [name for name, x in found.items() if isinstance(x, Tensor) and x.shape not in ((), clients.shape)]:
            raise ValueError(f"{type(algorithm).__name__}.round: {wrong[0]} is neither a number nor [{len(clients)}]")
        notes = {name: _per_client(value, clients, fed.num_clients) for name, value in found.items()}
        if due:
            # Before aggregation: sampled clients only. After aggregation: all clients.
            trained = info.get("trained")
            if isinstance(trained, Tensor):
                trained = guarded(algorithm, fed, partial(score, trained, clients, _predict(algorithm, fed, state)))
            if trained is not None:
                notes |= _columns(trained, clients, fed.num_clients, "_trained")
            for split, suffix in (("test", ""), ("val", "_val")):
                if split in fed.splits:
                    score_all = partial(_score_all, algorithm, fed, state, seen, t, split)
                    scores = guarded(algorithm, fed, score_all, "scores", t, split)
                    notes |= _columns(scores, torch.arange(fed.num_clients), fed.num_clients, suffix)
        yield Snapshot(t, state, {**notes, "seconds": seconds})


def guarded(algorithm: Algorithm, fed: Federation, function: Callable[[], Result], *key: Key) -> Result:
    """Call a step of a run. With a user's method or network, what it draws from global generators depends on the
    run's seed and the key alone, and ValueError is raised if it changes the clients' data.
    """
    if not (_is_users(algorithm) or fed.draws or is_users_own(fed.network)):
        return function()
    before = _data_versions(fed)
    out, drawn = None, True
    if fed.batched or fed.threads.num > 1:
        with seeded(fed.seed, "guarded", *key) as drew:
            out, drawn = function(), drew()
    if drawn:
        with fed.one_by_one(), seeded(fed.seed, "guarded", *key):
            out = function()
    if _data_versions(fed) != before:
        raise ValueError(
            f"{type(algorithm).__name__} or its network changes the clients' data in place; work on a copy (x.clone())"
        )
    return cast(Result, out)


def _data_versions(fed: Federation) -> list[int]:
    """Torch's counters of changes in place."""
    return [part._version for split in fed.splits.values() for part in (split.x, split.y)]


@dataclass
class _TimedScore:
    """``fed.evaluate`` on the test split, and the total seconds that it took."""

    fed: Federation
    t: int
    seconds: float = 0.0

    def __call__(self, theta: Tensor, clients: Tensor, predict: Predict | None) -> Scores:
        began = perf_counter()
        try:
            with self.fed.seeded("trained", self.t):
                return self.fed.evaluate(theta, clients, predict=predict)
        finally:
            self.seconds += perf_counter() - began


def _is_users(algorithm: Algorithm) -> bool:
    """Whether the method, or one that it has inside, comes from outside this package."""
    parts = (algorithm, *algorithm.inner_algorithms)
    return any(type(part).__module__.partition(".")[0] != PACKAGE for part in parts)


def _predict(algorithm: Algorithm, fed: Federation, state: State) -> Predict | None:
    """The method's prediction rule; None for the plain forward pass, which can evaluate many clients at once.

    A user's rule gets copies of the samples, not views of the data.
    """
    if type(algorithm).predict is Algorithm.predict:
        return None
    rule = partial(algorithm.predict, fed, state)
    return (lambda k, theta_k, x: rule(k, theta_k, x.clone())) if _is_users(algorithm) else rule


def participants(fed: Federation, schedule: Schedule, rounds: int) -> set[int]:
    """The clients that take part in at least one of the first ``rounds`` rounds."""
    return set().union(*(schedule.clients(fed.num_clients, fed.seed, t).tolist() for t in range(rounds)))


def adapted_state(algorithm: Algorithm, fed: Federation, state: State, seen: set[int], t: int) -> State:
    """The state with which all clients are evaluated after round t: clients not yet ``seen`` adapt first."""
    unseen = torch.tensor([k for k in range(fed.num_clients) if k not in seen], dtype=torch.int64)
    return algorithm.adapt(fed, state, unseen, t) if len(unseen) else state


def _score_all(algorithm: Algorithm, fed: Federation, state: State, seen: set[int], t: int, split: str) -> Scores:
    """Evaluate every client with the model that it would use now."""
    everyone = torch.arange(fed.num_clients)
    state = adapted_state(algorithm, fed, state, seen, t)
    parts = []
    for rows in fed.chunks(everyone):
        theta = algorithm.evaluation_models(fed, state, everyone[rows], t)
        parts.append(fed.evaluate(theta, everyone[rows], split, _predict(algorithm, fed, state)))
    return Scores.join(parts)


@torch.no_grad()
def class_scores(
    algorithm: Algorithm, fed: Federation, state: State, seen: set[int], t: int
) -> list[tuple[Tensor, Tensor]]:
    """Class scores [n_k, C] and labels [n_k] of every client's test samples, with the model that it would use now.

    Their softmax are the probabilities of the classes, as in the test loss.
    """

    def compute() -> list[tuple[Tensor, Tensor]]:
        adapted = adapted_state(algorithm, fed, state, seen, t)
        everyone, outputs = torch.arange(fed.num_clients), []
        for rows in fed.chunks(everyone):
            theta = algorithm.evaluation_models(fed, adapted, everyone[rows], t)
            for k, theta_k in zip(everyone[rows].tolist(), theta, strict=True):
                x, y = fed.splits["test"].client(k)
                parts = [algorithm.predict(fed, adapted, k, theta_k, part.clone()) for part in x.split(EVAL_BATCH)]
                outputs.append((torch.cat(parts).cpu(), y.cpu()))
        return outputs

    return guarded(algorithm, fed, compute, "scores", t, "test")


def _notes(info: dict, clients: Tensor) -> dict[str, float | Tensor]:
    """The result of a round without its trained rows. One number of SENT is what each of the clients [S] sends."""
    notes = {name: value for name, value in info.items() if name != "trained"}
    for name in SENT & notes.keys():
        if not isinstance(notes[name], Tensor) or notes[name].dim() == 0:
            notes[name] = torch.full((len(clients),), float(notes[name]), dtype=torch.float64)
    return notes


def _per_client(value: float | Tensor, clients: Tensor, num_clients: int) -> float | list[float]:
    """A number stays a number; values of the sampled clients [S] become a list [N] with NaN for the other clients."""
    if not isinstance(value, Tensor):
        return float(value)
    if value.dim() == 0:
        return value.item()
    full = torch.full((num_clients,), torch.nan, dtype=torch.float64)
    full[clients] = value.to(full)
    return full.tolist()


def _columns(scores: Scores, clients: Tensor, num_clients: int, suffix: str = "") -> dict[str, float | list[float]]:
    """The metrics correct, count and loss, one value per client."""
    return {
        f"{name}{suffix}": _per_client(getattr(scores, name), clients, num_clients)
        for name in ("correct", "count", "loss")
    }
