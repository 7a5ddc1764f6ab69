"""The training loop: client sampling, evaluation, notes, and continued runs."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch
from torch import Tensor

from pfl_core import Algorithm, Federation, Schedule, Split, State, run
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.fedselect.method import FedSelect
from pfl_core.engine import rounds
from tests.helpers import federation, mlp, one_line, same_bits, samples, without_times

TEN = (6,) * 10


# ---- who takes part -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("participation", "num_clients", "size"),
    [
        (1.0, 10, 10),
        (0.1, 10, 1),
        (0.3, 10, 3),
        (0.2, 14, 2),
        (0.7, 10, 7),
        (0.01, 10, 1),
        (0.29, 100, 29),
        (0.2, 539, 107),
    ],
)
def test_the_number_of_participants_is_rounded_down_but_at_least_one(participation, num_clients, size):
    """0.29 * 100 is 28.999... in floating point."""
    clients = Schedule(5, participation).clients(num_clients, 0, 0)
    assert len(clients) == size
    assert clients.tolist() == sorted(set(clients.tolist()))
    assert 0 <= clients.min()
    assert clients.max() < num_clients


def test_each_round_draws_different_clients_from_its_own_stream():
    schedule = Schedule(40, 0.3)
    drawn = [tuple(schedule.clients(10, 0, t).tolist()) for t in range(40)]
    assert len(set(drawn)) > 20
    assert drawn == [tuple(schedule.clients(10, 0, t).tolist()) for t in range(40)]
    assert drawn != [tuple(schedule.clients(10, 1, t).tolist()) for t in range(40)]
    often = torch.bincount(torch.tensor(drawn).flatten(), minlength=10)
    assert often.min() >= 4  # 12 expected
    assert often.max() <= 22


def test_drawing_once_keeps_the_same_clients():
    schedule = Schedule(40, 0.3, "once")
    assert len({tuple(schedule.clients(10, 0, t).tolist()) for t in range(40)}) == 1
    assert len({tuple(schedule.clients(10, seed, 0).tolist()) for seed in range(10)}) > 3


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"rounds": 0}, "run: rounds=0: input should be greater than or equal to 1"),
        ({"rounds": 1, "eval_every": 0}, "eval_every=0"),
        ({"rounds": 1, "participation": 0.0}, r"participation=0\.0: input should be greater than 0"),
        (
            {"rounds": 1, "participation": 10.0},
            r"participation=10\.0: .* or equal to 1; for 10 percent give 0\.1",
        ),
        ({"rounds": 1, "participation": math.nan}, "participation=nan: input should be a finite number"),
        ({"rounds": 1.5}, "run: rounds=1.5: input should be a valid integer"),
        ({"rounds": "many"}, "rounds='many': input should be a valid integer"),
        ({"rounds": 1, "eval_every": True}, "eval_every=True: input should be a valid integer"),
        ({"rounds": 1, "novel": None}, "novel=None: input should be a valid number"),
        ({"rounds": 1, "sampling": []}, r"sampling=\[\]: input should be 'each_round' or 'once'"),
        ({"rounds": 1, "sampling": "twice"}, "sampling='twice': input should be 'each_round' or 'once'"),
    ],
)
def test_bad_schedules_are_refused_in_one_line(setting, message):
    with one_line(message):
        Schedule(**setting)


# ---- when it is scored ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("eval_every", "scored"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (3, [3, 5]), (5, [5]), (9, [5])]
)
def test_evaluation_every_few_rounds_and_after_the_last(eval_every, scored):
    fed = federation(rounds=5)
    _, history = run(FedAvg(), fed, Schedule(5, eval_every=eval_every))
    for name in ("correct", "count", "loss", "correct_trained", "count_trained", "loss_trained"):
        assert history.series[name][0] == scored
    for name in ("train_loss", "upload", "seconds"):
        assert history.series[name][0] == [1, 2, 3, 4, 5]


def test_a_validation_split_is_scored_where_there_is_one():
    """Aggregated models are evaluated on the clients' validation data; the other columns do not change."""
    plain = federation()
    splits = plain.splits | {"val": Split.of([samples(5, key=200 + k) for k in range(4)])}
    fed = Federation(mlp(), splits, seed=0, rounds=3, train=plain.train)
    state, history = run(FedAvg(), fed, Schedule(2))
    _, without = run(FedAvg(), plain, Schedule(2))
    scores = fed.evaluate(state.shared.expand(4, -1), torch.arange(4), "val")
    assert history.series["count_val"][1] == [[5.0] * 4] * 2
    assert history.series["correct_val"][1][-1] == scores.correct.tolist()
    assert history.series["correct"] == without.series["correct"]
    assert not any(name.endswith("_val") for name in without.series)


# ---- a method that writes down how it is used -----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Spy(Algorithm):
    """Adds 1 to the shared vector each round; its notes and predictions are known to the test."""

    calls: list = dataclasses.field(default_factory=list, compare=False)

    def round(self, fed, state: State, clients: Tensor, t: int) -> tuple[State, dict]:
        self.calls.append(("round", t, clients.tolist()))
        notes = {
            "trained": fed.broadcast(state.shared, clients).clone(),
            "each": 10.0 * clients,
            "flag": clients > 1,
            "one": torch.tensor(2.5),
            "number": 7,
            "upload": 3,
        }
        return dataclasses.replace(state, shared=state.shared + 1), notes

    def adapt(self, fed, state: State, clients: Tensor, t: int) -> State:
        self.calls.append(("adapt", t, clients.tolist()))
        return dataclasses.replace(state, local=torch.full((fed.num_clients,), 100.0))

    def evaluation_models(self, fed, state: State, clients: Tensor, t: int) -> Tensor:
        self.calls.append(("models", t, clients.tolist(), state.shared[0].item(), state.local is not None))
        return fed.broadcast(state.shared, clients)

    def predict(self, fed, state: State, k: int, theta_k: Tensor, x: Tensor) -> Tensor:
        self.calls.append(("predict", k, theta_k[0].item()))
        scores = torch.zeros(len(x), 3)
        scores[:, k % 3] = 1.0
        return scores


def of(calls, kind):
    return [call[1:] for call in calls if call[0] == kind]


def test_rounds_are_called_in_order_with_their_clients():
    spy, fed = Spy(), federation(sizes=TEN)
    schedule = Schedule(3, 0.3)
    run(spy, fed, schedule)
    assert of(spy.calls, "round") == [(t, schedule.clients(10, 0, t).tolist()) for t in range(3)]


def test_notes_have_one_value_per_client_and_nan_for_absent_clients():
    fed = federation(sizes=TEN)
    schedule = Schedule(2, 0.3)
    _, history = run(Spy(), fed, schedule)
    for t in range(2):
        clients = schedule.clients(10, 0, t).tolist()
        for name, value in (("each", lambda k: 10.0 * k), ("flag", lambda k: float(k > 1)), ("upload", lambda k: 3)):
            row = history.series[name][1][t]
            assert len(row) == 10
            assert [row[k] for k in clients] == [value(k) for k in clients]
            assert all(math.isnan(row[k]) for k in range(10) if k not in clients)
        assert history.series["one"][1][t] == 2.5
        assert history.series["number"][1][t] == 7.0
        assert "trained" not in history.series


def test_absent_clients_are_evaluated_after_aggregation_only():
    fed = federation(sizes=TEN)
    schedule = Schedule(1, 0.3)
    _, history = run(Spy(), fed, schedule)
    clients = set(schedule.clients(10, 0, 0).tolist())
    assert history.series["count"][1][0] == [8.0] * 10
    trained = history.series["count_trained"][1][0]
    assert {k for k in range(10) if not math.isnan(trained[k])} == clients


def test_the_methods_prediction_is_used_for_both_evaluations():
    fed = federation(sizes=TEN)
    schedule = Schedule(1, 0.3)
    _, history = run(Spy(), fed, schedule)
    want = [float((fed.labels(k, "test") == k % 3).sum()) for k in range(10)]
    assert history.series["correct"][1][0] == want
    trained = history.series["correct_trained"][1][0]
    for k in schedule.clients(10, 0, 0).tolist():
        assert trained[k] == want[k]


def test_clients_that_never_took_part_adapt_before_they_are_scored():
    """An adapted state is used for evaluation only: the next round starts from the state that the last one returned."""
    spy, fed = Spy(), federation(sizes=TEN)
    schedule = Schedule(6, 0.3, eval_every=2)
    state, _ = run(spy, fed, schedule)
    seen, want = set(), []
    for t in range(6):
        seen |= set(schedule.clients(10, 0, t).tolist())
        absent = [k for k in range(10) if k not in seen]
        want += [(t, absent)] if absent and schedule.scores(t) else []
    assert want
    assert of(spy.calls, "adapt") == want
    assert state.local is None
    adapted = {t for t, *_ in want}
    assert all(was_adapted == (t in adapted) for t, _, _, was_adapted in of(spy.calls, "models"))


def test_no_client_adapts_under_full_participation():
    spy = Spy()
    run(spy, federation(), Schedule(3))
    assert not of(spy.calls, "adapt")


def test_evaluation_models_are_those_after_the_round():
    spy, fed = Spy(), federation()
    run(spy, fed, Schedule(2))
    first = fed.theta0[0].item()
    found = of(spy.calls, "models")
    assert [clients for _, clients, *_ in found] == [[0, 1, 2, 3]] * 2
    assert [value for _, _, value, _ in found] == pytest.approx([first + 1, first + 2])


def test_continued_runs_know_the_clients_of_earlier_rounds():
    fed, schedule = federation(sizes=TEN), Schedule(6, 0.3)
    whole = Spy()
    run(whole, fed, schedule)
    half = Spy()
    state, history = run(half, fed, schedule, until=3)
    run(half, fed, schedule, start=(state, history, 3))
    assert of(half.calls, "adapt") == of(whole.calls, "adapt")


# ---- interruption ---------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_not_modified():
    """The arguments can be used again for a second run."""
    schedule, fed = Schedule(4), federation(rounds=4)
    start = (*run(FedAvg(), fed, schedule, until=2), 2)
    kept = copy.deepcopy(start)
    one = run(FedAvg(), fed, schedule, start=start)
    assert same_bits(without_times(start[1]), without_times(kept[1]))
    assert same_bits(start[0], kept[0])
    assert same_bits(run(FedAvg(), fed, schedule, start=start)[0], one[0])


def test_a_finished_run_is_returned_as_it_is():
    schedule, fed = Schedule(2), federation()
    done = run(FedAvg(), fed, schedule)
    again = run(FedAvg(), fed, schedule, start=(*done, 2))
    assert same_bits(again[0], done[0])
    assert again[1].series["upload"][0] == [1, 2]


def test_each_round_is_reported_with_its_history():
    reports = []
    fed = federation()
    state, history = run(
        FedAvg(), fed, Schedule(3), on_round=lambda snap, hist: reports.append((snap, len(hist.series["upload"][0])))
    )
    assert [(snap.t, n) for snap, n in reports] == [(0, 1), (1, 2), (2, 3)]
    assert reports[-1][0].state is state
    assert all(snap.notes["seconds"] >= 0 for snap, _ in reports)
    assert len(history.series["seconds"][1]) == 3


def test_rounds_can_be_stepped_through():
    fed, algorithm = federation(), FedAvg()
    steps = rounds(algorithm, fed, Schedule(3), algorithm.init(fed, fed.theta0))
    first, second = next(steps), next(steps)
    assert (first.t, second.t) == (0, 1)
    whole, _ = run(algorithm, federation(), Schedule(3))
    assert same_bits(list(steps)[-1].state, whole)


def test_runs_side_by_side_do_not_disturb_each_other():
    """Two methods that alternate on one federation give the same results as one after the other."""
    fed = federation()
    turns = [rounds(a, fed, Schedule(3), a.init(fed, fed.theta0)) for a in (FedAvg(), FedSelect(p=0.3))]
    last = [pair for pair in zip(*turns, strict=True)][-1]
    for snapshot, algorithm in zip(last, (FedAvg(), FedSelect(p=0.3)), strict=True):
        state, history = run(algorithm, federation(), Schedule(3))
        assert same_bits(snapshot.state, state)
        assert snapshot.notes["correct"] == history.series["correct"][1][-1]
        assert snapshot.notes["correct_trained"] == history.series["correct_trained"][1][-1]


def test_a_run_resets_the_score_function():
    """A single round after a run must not evaluate as the run did."""
    fed = federation()
    state, _ = run(FedAvg(), fed, Schedule(2))
    _, notes = FedAvg().round(fed, state, torch.arange(4), 2)
    assert "trained" not in notes


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda s: (dataclasses.replace(s, shared=s.shared.mean()), {}), r"the shared model is \[\]; it must be \[e\]"),
        (lambda s: (dataclasses.replace(s, shared=s.shared[:1]), {}), r"the shared model is \[1\]; it must be \[e\]"),
        (
            lambda s: (dataclasses.replace(s, shared=s.shared.repeat(4, 1)), {}),
            r"is \[4, 53\]; it must be \[e\] = \[53\]",
        ),
        (lambda s: s, "Wrong.round.*must return the next state and a dictionary of notes"),
        (lambda s: (s, {"mine": torch.ones(3)}), r"Wrong.round.*mine is neither a number nor \[4\]"),
        (lambda s: (s, {"loss": 5.0}), "Wrong.round: loss is the engine's name; rename the note"),
    ],
)
def test_what_a_round_returns_is_checked(returned, message):
    @dataclasses.dataclass(frozen=True)
    class Wrong(Algorithm):
        def round(self, fed, state, clients, t):
            return returned(state)

    with pytest.raises(ValueError, match=message):
        run(Wrong(), federation(), Schedule(1))


def test_a_note_has_one_form_in_all_rounds():
    @dataclasses.dataclass(frozen=True)
    class Wrong(Algorithm):
        def round(self, fed, state, clients, t):
            return state, {"mine": 1.0 if t else torch.ones(4)}

    with pytest.raises(ValueError, match="mine is a number in some rounds and one by client in others"):
        run(Wrong(), federation(), Schedule(2))


def test_models_to_evaluate_of_another_shape_are_refused_in_one_line():
    @dataclasses.dataclass(frozen=True)
    class Wrong(FedAvg):
        def evaluation_models(self, fed, state, clients, t):
            return state.shared

    with pytest.raises(ValueError, match=r"the models to evaluate are \[53\]; they must be \[S, e\]"):
        run(Wrong(), federation(), Schedule(1))


def test_novel_clients_never_take_part_and_are_scored():
    schedule = Schedule(rounds=20, participation=0.5, novel=0.3)
    drawn = [schedule.clients(10, 0, t).tolist() for t in range(20)]
    assert {len(clients) for clients in drawn} == {3}
    assert len(set().union(*drawn)) == 7
    everyone = Schedule(rounds=20, novel=0.3).clients(10, 0, 5).tolist()
    assert set().union(*drawn) == set(everyone)
    assert everyone != Schedule(rounds=20, novel=0.3).clients(10, 1, 5).tolist()
    assert sorted([*everyone, *schedule.novel_clients(10, 0).tolist()]) == list(range(10))
    assert not len(Schedule(rounds=20, novel=0.05).novel_clients(10, 0)), "less than one client"
    with pytest.raises(ValueError, match=r"novel=1.0: input should be less than 1"):
        Schedule(rounds=1, novel=1.0)
