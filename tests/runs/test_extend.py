"""A stored run is continued to more rounds, with the same bits as a run made in one go."""

from __future__ import annotations

import pytest

from pfl_core import methods
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.runs import execute
from pfl_core.runs.extend import horizon_dependence
from pfl_core.training import Training
from tests.runs.conftest import bits
from tests.runs.test_execute import alone


class Mine(FedAvg):
    """A method of a user, which may use the number of rounds."""


def continued(store, short, long):
    """The long run, the rounds that it computed, and its lines for the user; the state of the short one is kept."""
    execute(short, store, keep_state=True)
    rounds, texts = [], []
    return execute(long, store, on_round=rounds.append, warn=texts.append), rounds, texts


@pytest.mark.parametrize("name", sorted(set(methods()) - {"fedpews", "fedpews_fixed"}))
def test_every_method_continues_to_more_rounds(name, spec, store):
    options = {"participation": 0.5, **methods()[name].ci}
    short, long = (spec(name, rounds=n, **options) for n in (2, 4))
    record, rounds, texts = continued(store, short, long)
    assert rounds == [3, 4] and any(short.key() in text for text in texts)
    assert bits(record) == bits(alone(long, store))
    assert store.checkpoint(short.key()).exists() and not store.checkpoint(long.key()).exists()


@pytest.mark.parametrize("rounds", [1, 3, 4])
def test_an_evaluation_of_the_last_round_alone_is_left_out(rounds, spec, store):
    """With an evaluation after every second round, a run of 1 or 3 rounds also has one after its last."""
    short, long = (spec(rounds=n, eval_every=2, partition={"name": "iid", "val": 0.2}) for n in (rounds, 6))
    record, computed, _ = continued(store, short, long)
    assert computed == list(range(rounds + 1, 7))
    assert bits(record) == bits(alone(long, store))
    assert list(record.series) == list(alone(long, store).series)


def test_the_longest_of_several_runs_is_continued(spec, store):
    for rounds in (1, 3, 2, 6):
        execute(spec(rounds=rounds), store, keep_state=True)
    execute(spec(rounds=4, seed=1), store, keep_state=True)
    computed = []
    record = execute(spec(rounds=5), store, on_round=computed.append)
    assert computed == [4, 5] and bits(record) == bits(alone(spec(rounds=5), store))


def test_a_stopped_run_is_continued_under_another_number_of_rounds(spec, store):
    execute(spec(rounds=9), store, until=3, keep_state=True)
    computed = []
    record = execute(spec(rounds=5), store, on_round=computed.append)
    assert computed == [4, 5] and bits(record) == bits(alone(spec(rounds=5), store))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"method": "fedpews", "tau": 0.5}, "tau=0.5"),
        ({"method": "fedselect", "reading": "authors_code"}, "aggregate_last_round"),
        ({"train": Training(lr=0.1, milestones=(0.5,))}, "learning rate"),
        ({"method": f"{__name__}:Mine"}, "define Mine.horizon_dependence"),
        ({"method": "fedpews", "tau": 0.0, "base": f"{__name__}:Mine"}, "define Mine.horizon_dependence"),
    ],
    ids=["warm-up", "last round", "milestones", "unknown", "unknown base"],
)
def test_a_run_that_depends_on_its_number_of_rounds_starts_over(options, reason, spec, store):
    short, long = (spec(**options, rounds=n) for n in (2, 4))
    assert reason in horizon_dependence(long)
    record, computed, texts = continued(store, short, long)
    assert computed == [1, 2, 3, 4] and any(reason in text and short.key() in text for text in texts)
    assert bits(record) == bits(alone(long, store))


@pytest.mark.parametrize(
    "changes", [{"seed": 1}, {"eval_every": 2}, {"lr_server": 0.5}, {"model": {"name": "mlp", "hidden": [7]}}]
)
def test_a_run_with_other_settings_is_not_continued(changes, spec, store):
    _, computed, texts = continued(store, spec(rounds=2), spec(rounds=4, **changes))
    assert computed == [1, 2, 3, 4] and not texts


def test_other_data_and_stale_runs_are_not_continued(spec, store, monkeypatch):
    execute(spec(rounds=2), store, keep_state=True)
    monkeypatch.setattr("pfl_core.runs.versions.ENGINE", 2)
    computed = []
    execute(spec(rounds=3), store, on_round=computed.append)
    assert computed == [1, 2, 3]
    monkeypatch.setattr("pfl_core.runs.RunSpec.checksums", lambda self: {"blobs": "1"})
    execute(spec(rounds=2, seed=1), store, keep_state=True)
    monkeypatch.setattr("pfl_core.runs.RunSpec.checksums", lambda self: {"blobs": "2"})
    execute(spec(rounds=3, seed=1), store, on_round=computed.append)
    assert computed == [1, 2, 3, 1, 2, 3]


def test_prefixes_are_not_skipped(spec, store):
    """A run for a prefix of 2 rounds does not start from a state after 3."""
    execute(spec(rounds=3), store, keep_state=True)
    execute(spec(rounds=5), store, saves=(2,), record=False)
    assert [path.name for path in store.root.glob("*.prefix")] == [f"{spec(rounds=5).key()}.2.prefix"]


def test_a_state_without_a_record_is_made_again(spec, store):
    """``record=False, keep_state=True``: the state of a stored run, whose record is not touched."""
    made = spec(rounds=3)
    execute(made, store)
    before = store.path(made.key()).read_bytes()
    assert execute(made, store, record=False, keep_state=True) is None
    assert store.path(made.key()).read_bytes() == before and store.checkpoint(made.key()).exists()
    computed = []
    execute(spec(rounds=4), store, on_round=computed.append)
    assert computed == [4]
