"""Logs of runs: a line for each round, each round once, and TensorBoard's events where it is installed."""

import sys
from types import ModuleType

import pandas as pd
import pytest

from pfl_core.runs import RunSpec, execute, sweep
from pfl_core.runs import log as module
from pfl_core.runs.log import COLUMNS, RunLog, last_scores, scores

SPEC = RunSpec(method={"name": "fedavg"}, model={"name": "mlp"}, clients=5, rounds=4, eval_every=2)


@pytest.fixture
def log(tmp_path):
    with RunLog(tmp_path / "logs", SPEC, "0123") as log:
        yield log


def logged(folder):
    (path,) = folder.glob("*.csv")
    return pd.read_csv(path)


def test_a_line_for_each_round_as_soon_as_it_is_done(store, log):
    counts = []

    def watch(series):
        log.update(series)
        counts.append(len(logged(log.path.parent)))

    record = execute(SPEC, store, watch=watch)
    assert counts == [1, 2, 3, 4]
    found = logged(log.path.parent)
    assert tuple(found) == ("round", *COLUMNS) and list(found["round"]) == [1, 2, 3, 4]
    assert list(found["acc_mean"].isna()) == [True, False, True, False], "two rounds are evaluated"
    assert found["acc_mean"].iloc[-1] == pytest.approx(record.summary()["acc_mean"], rel=1e-5)
    assert found["train_loss"].notna().all() and found["loss"].iloc[-1] > 0


def test_a_continued_run_has_each_round_once(store, tmp_path, log):
    class Killed(Exception):
        pass

    def watch(series):
        log.update(series)
        if len(series["train_loss"][0]) == 3:
            raise Killed

    execute(SPEC, store, until=2, keep_state=True)
    with pytest.raises(Killed):  # after round 3, which is logged but not in the checkpoint
        execute(SPEC, store, watch=watch)
    with RunLog(tmp_path / "logs", SPEC, "0123") as again:
        execute(SPEC, store, watch=again.update)
    assert list(logged(tmp_path / "logs")["round"]) == [1, 2, 3, 4]


def test_a_log_that_cannot_be_written_costs_no_run_and_is_completed_later(store, tmp_path, log):
    blocked = tmp_path / "logs"
    blocked.touch()

    def watch(series):
        if len(series["train_loss"][0]) == 3:
            blocked.unlink()
        log.update(series)

    assert not execute(SPEC, store, watch=watch).partial
    assert list(logged(blocked)["round"]) == [1, 2, 3, 4]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_sweep_logs_every_run(store, tmp_path, jobs):
    specs = [RunSpec(method={"name": name}, model={"name": "mlp"}, clients=5, rounds=2) for name in ("local", "fedavg")]
    records = sweep(specs, jobs=jobs, store=store, log=tmp_path / "logs")
    names = {f"{record.spec.method['name']}-{record.key}.csv" for record in records}
    assert {path.name for path in (tmp_path / "logs").iterdir() if path.suffix == ".csv"} == names


def test_the_progress_bar_shows_the_last_loss_and_accuracy(store):
    seen = []
    record = execute(SPEC, store, watch=lambda series: seen.append(last_scores(SPEC, series)))
    assert list(seen[0]) == ["loss"] and seen[1].keys() == {"loss", "acc"}
    assert seen[2]["acc"] == seen[1]["acc"], "round 3 is not evaluated"
    assert seen[3]["acc"] == f"{record.summary()['acc_mean']:.4g}"


def test_a_method_is_scored_where_it_reports(store):
    spec = RunSpec(method={"name": "local"}, model={"name": "mlp"}, clients=5, rounds=2)
    record = execute(spec, store)
    assert scores(spec, record.series)["acc_mean"].iloc[-1] == record.summary()["acc_mean"]


def test_events_for_tensorboard_where_it_is_installed(store, tmp_path, monkeypatch):
    """With a module in its place, which notes what it is given."""
    events = []

    class SummaryWriter:
        def __init__(self, folder):
            events.append(folder)

        def add_scalar(self, name, value, number):
            events.append((name, number))

        def flush(self):
            events.append("flush")

        def close(self):
            events.append("close")

    board = ModuleType("torch.utils.tensorboard")
    board.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    monkeypatch.setattr(module, "find_spec", lambda name: name == "tensorboard")
    with RunLog(tmp_path, SPEC, "0123") as log:
        log.events.mkdir()
        (log.events / "events.out.tfevents.1").touch()
        execute(SPEC, store, watch=log.update)
    assert events[0] == str(tmp_path / "fedavg-0123") and events.count("flush") == 4 and events[-1] == "close"
    assert [event for event in events if event[0] == "acc_mean"] == [("acc_mean", 2), ("acc_mean", 4)]
    assert not list(log.events.iterdir()), "the events of an interrupted process are deleted"
