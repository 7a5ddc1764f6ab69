"""The frame: a row per run, and its long forms by round and client."""

import json
import math
from dataclasses import replace

import pandas as pd
import pytest

from pfl_core.papers.fedselect.paper import PAPER
from pfl_core.runs import Record
from pfl_core.study.frame import (
    about,
    changed_fields,
    clients,
    frame,
    fresh,
    in_words,
    is_missing,
    rounds,
    row_of,
    variant,
)  # fmt: skip
from tests.runs.outside import HERE

ROUNDS = (1, 3, 5)
CORRECT = ((5, 10), (10, 15), (15, 20))  # of 20 test images, by round and client
TRAINED = ((6, 12), (12, 18), (18, 20))
UPLOAD = ((100, 50), (100, 30), (60, 20))


def record(method="fedselect", seed=0, dataset="cifar10", done=None, **asked):
    """Two clients with two classes each, scored in three of five rounds."""
    spec = PAPER.settings.spec(method, preset="ci", setting=dataset, seed=seed, overrides={"clients": 2}, **asked)
    series = {"count": [[20, 20]] * 3, "loss": [[1.5, 0.5]] * 3, "correct": CORRECT, "upload": UPLOAD}
    series |= {"count_trained": [[20, 20]] * 3, "correct_trained": TRAINED, "loss_trained": [[1.0, 0.5]] * 3}
    series = {name: (list(ROUNDS), [list(row) for row in rows]) for name, rows in series.items()}
    held = {"train": [[20, 20], [10, 10]], "test": [[10, 10], [10, 10]]}
    return Record(spec.key(), spec, series, clients=held, num_params=200, rounds_done=done, seconds=3.0)


def row(**asked):
    return row_of(record(**asked), PAPER)


# ---- the row of a run -----------------------------------------------------------------------------------------------


def test_a_row_has_the_method_its_fields_and_the_run_by_their_own_names():
    made = row(alpha=0.5, seed=3)
    assert (made["method"], made["alpha"], made["p"], made["masks"], made["reading"]) == (
        *("fedselect", 0.5, 0.05, "grown", "paper"),
    )
    run = {name: made[name] for name in ("clients", "rounds", "participation", "novel", "eval_every", "seed")}
    assert run == {"clients": 2, "rounds": 5, "participation": 1.0, "novel": 0.0, "eval_every": 1, "seed": 3}
    assert (made["preset"], made["setting"], made["dataset"], made["where"]) == ("ci", "cifar10", "digits", "digits")
    assert made["key"] == record(alpha=0.5, seed=3).key and made["data"] == "digits"
    assert not (made["partial"] or made["stale"]) and "network" in made["differs"]


def test_options_of_data_partition_model_and_training_have_a_prefix():
    made = row()
    assert (made["data_name"], made["data_normalise"], made["model_name"]) == ("digits", "unit", "mlp")
    assert (made["partition_classes_per_client"], made["partition_train_per_class"]) == (2, 20)
    assert (made["train_lr"], made["train_batch_size"], made["train_clip_norm"]) == (0.1, 10, None)


def test_a_row_is_json_data_and_the_frame_has_tuples_in_place_of_lists():
    made = json.loads(json.dumps(row(masks="layers", layers=["fc1", "head"])))
    table = frame([made, json.loads(json.dumps(row(method="fedavg")))])
    first, second = table.to_dict("records")
    assert made["layers"] == ["fc1", "head"] and first["layers"] == ("fc1", "head")
    assert first["changed"] == ("masks", "group") and second["changed"] == first["train_milestones"] == ()
    assert first["group"] == "fc1, head"  # no group of Table 3, so its layers' names
    assert first["alpha"] == 0.3 and is_missing(second["alpha"]) and is_missing(second["layers"])
    assert isinstance(first["seed"], int) and first["partial"] is False and first["skip_empty_pass"] is True


@pytest.mark.parametrize(
    ("method", "asked", "changed"),
    [
        ("fedselect", {}, []),
        ("fedselect", {"alpha": 0.3}, []),  # the default
        ("fedselect", {"alpha": 0.5, "ranking": "random"}, ["alpha", "ranking"]),
        ("fedselect", {"reading": "authors_code"}, ["reading"]),
        ("fedselect", {"reading": "authors_code", "alpha": 0.5}, ["reading", "alpha"]),
        ("fedavg_ft", {}, []),  # the paper's three epochs are not the class's
        ("fedavg_ft", {"finetune_epochs": 1}, ["finetune_epochs"]),
    ],
)
def test_changed_are_the_fields_that_differ_from_the_studys(method, asked, changed):
    assert sorted(row(method=method, **asked)["changed"]) == sorted(changed)


def test_a_field_without_default_counts_as_changed():
    spec = replace(record().spec, method={"name": f"{HERE}:KeepsADict", "strength": 2.0})
    assert changed_fields(spec, {}) == {"strength": 2.0}


def test_changed_fields_by_name_and_as_text():
    spec = record(alpha=0.5, masks="random").spec
    found = changed_fields(spec, PAPER.settings.fields_of(spec))
    assert found == {"alpha": 0.5, "masks": "random"} and variant(found) == "alpha=0.5;masks=random"
    assert variant({}) == "" and variant({"rounds": 5, "p": 1e-3}) == "rounds=5;p=0.001"


def test_fields_that_the_tables_name_otherwise_have_their_name_there():
    """Layer A of Table 3 is the first layer of this network."""
    made = row(masks="layers", layers=["fc1"])
    assert made["changed"] == ["masks", "group"] and made["group"] == "A" and made["layers"] == ("fc1",)


def test_runs_that_were_stopped_are_partial_and_say_so():
    made = row(done=4)
    assert (made["rounds"], made["partial"], made["data"]) == (4, True, "digits, 4 of 5 rounds")
    assert "rounds" in made["differs"].split(", ")


def test_runs_of_other_code_are_stale_and_changed_runs_no_results_of_their_preset():
    made = record()
    assert row_of(replace(made, key="0" * 16), PAPER)["stale"]
    assert row_of(replace(made, spec=replace(made.spec, changed=True)), PAPER)["preset"] == "ci, changed"


def test_metrics_of_the_last_round_and_of_the_run():
    made = row()
    assert (made["acc_mean"], made["acc_pooled"], made["acc_bottom_decile"]) == (87.5, 87.5, 75.0)
    assert (made["acc_mean_merged"], made["acc_mean_trained"], made["acc_mean_best"]) == (87.5, 95.0, 87.5)
    assert (made["uplink_fraction"], made["train_images"], made["seconds"]) == (0.2, 30.0, 3.0)
    assert made["rounds_to_95"] == 5.0 and made["roughness"] != made["roughness"], "one change in the second half"
    assert math.isnan(made["late_change"]) and made["failed"] == 0.0
    trained = row(eval_point="after_local_update")
    assert (trained["acc_mean"], trained["acc_mean_merged"]) == (95.0, 87.5), "where the method reports its scores"


def test_the_extra_metrics_of_a_study_are_columns_too():
    study = replace(PAPER, extra_metrics=(lambda record: {"doubled": 2 * record.rounds},))
    assert row_of(record(), study)["doubled"] == 10.0


def test_the_frame_of_a_study_has_its_own_runs():
    other = record()
    other = replace(other, spec=replace(other.spec, paper="fedpews"))
    table = PAPER.frame([record(), other, record("fedavg")])
    assert table["method"].tolist() == ["fedselect", "fedavg"] and PAPER.frame([]).empty


# ---- long forms -----------------------------------------------------------------------------------------------------


@pytest.fixture
def stored(store):
    """A store with two runs, and their frame."""
    runs = [record(alpha=0.5), record(eval_point="after_local_update")]
    for run in runs:
        store.put(run)
    return store, PAPER.frame(runs)


@pytest.mark.parametrize(
    ("metric", "own", "trained"),
    [
        ("acc_mean", [37.5, 62.5, 87.5], [45.0, 75.0, 95.0]),  # where the method reports it
        ("acc_mean_merged", [37.5, 62.5, 87.5], [37.5, 62.5, 87.5]),
        ("acc_mean_trained", [45.0, 75.0, 95.0], [45.0, 75.0, 95.0]),
        ("acc_bottom_decile", [25.0, 50.0, 75.0], [30.0, 60.0, 90.0]),
        ("acc_bottom_decile_trained", [30.0, 60.0, 90.0], [30.0, 60.0, 90.0]),
        ("upload", [75.0, 65.0, 40.0], [75.0, 65.0, 40.0]),  # mean over clients
    ],
)
def test_rounds(stored, metric, own, trained):
    store, runs = stored
    table = rounds(runs, metric, store)
    assert table["round"].tolist() == [*ROUNDS] * 2 and table["value"].tolist() == [*own, *trained]
    assert table["alpha"].tolist()[:3] == [0.5] * 3 and table["changed"].tolist()[3:] == [("eval_point",)] * 3
    assert {*runs.columns, "round", "value"} == set(table.columns)


def test_clients(stored):
    store, runs = stored
    table = clients(runs, store=store)
    assert table["client"].tolist() == [0, 1, 0, 1] and table["value"].tolist() == [75.0, 100.0, 90.0, 100.0]
    assert clients(runs, "upload", store)["value"].tolist() == [60.0, 20.0] * 2


def test_runs_without_the_metric_are_left_out(stored):
    store, runs = stored
    only = replace(record(seed=1), series=record().series | {"other": ([5], [[1.0, 3.0]])})
    store.put(only)
    both = pd.concat([runs, PAPER.frame([only])], ignore_index=True)
    assert rounds(both, "other", store)[["seed", "round", "value"]].values.tolist() == [[1, 5, 2.0]]
    assert clients(both, "other", store)["value"].tolist() == [1.0, 3.0]
    for long in (rounds, clients):
        with pytest.raises(ValueError, match="no run has this metric by round or client"):
            long(runs, "other", store)


def test_runs_that_are_no_longer_stored_are_an_error(store):
    runs = PAPER.frame([record()])
    with pytest.raises(FileNotFoundError, match=f"1 of these runs are no longer stored, such as {record().key}"):
        rounds(runs, "acc_mean", store)


# ---- stale runs -----------------------------------------------------------------------------------------------------


def kept(*runs):
    """The keys that ``fresh`` leaves."""
    return [row["key"] for row in fresh(PAPER.frame(runs).to_dict("records"))]


def stale(run, key="0" * 16):
    return replace(run, key=key)


def test_fresh_leaves_out_stale_runs_of_which_a_fresh_one_is_there():
    old, new, other = stale(record()), record(), record(seed=1)
    assert kept(old, new, other) == [new.key, other.key] and kept(new, old) == [new.key]
    assert kept(old, other) == [old.key, other.key], "the only one of its settings"


def test_fresh_keeps_runs_that_differ_in_the_value_of_a_field():
    first, second = record(alpha=0.5), record(alpha=0.8)
    assert kept(first, second, stale(record(seed=1))) == [first.key, second.key, "0" * 16]
    assert kept(first, stale(second)) == [first.key, "0" * 16]


def test_fresh_keeps_runs_of_another_length_or_preset():
    short, changed = record(done=4), replace(record(), spec=replace(record().spec, changed=True))
    assert kept(stale(short), record(seed=0)) == ["0" * 16, short.key]
    assert kept(stale(changed), record()) == ["0" * 16, changed.key]
    assert fresh([]) == []


@pytest.mark.parametrize("other", ["device", "version"])
def test_fresh_keeps_one_of_the_same_runs_of_two_devices_or_two_old_versions(other):
    run = record()
    on_gpu = replace(run.spec, device="cuda")
    both = {"device": (run, replace(run, spec=on_gpu, key=on_gpu.key())), "version": (stale(run), stale(run, "1" * 16))}
    assert len(kept(*both[other])) == 1


def test_about_has_what_all_runs_have_and_nothing_that_is_missing():
    runs = pd.DataFrame({"seed": [0, 1], "data": "digits", "clients": [5, 6], "train_lr": 0.1, "train_clip_norm": None})
    found = about(runs.assign(partition_alpha=[math.nan, 0.3], train_images=20.0))
    assert found["setting"].to_dict() == {"runs": "2", "seeds": "[0, 1]", "data": "digits", "train_lr": "0.1"}


def test_in_words():
    assert in_words("acc_mean") == "mean client accuracy" and in_words("train_images") == "train images"
