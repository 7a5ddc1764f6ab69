"""RunSpec: which specs are the same run, which are different runs, and which are invalid."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from pfl_core.runs import RunSpec, build
from pfl_core.training import Training
from tests.helpers import one_line
from tests.runs.outside import HERE

# ---- to JSON and back -----------------------------------------------------------------------------------------------


def specs_to_write() -> dict[str, RunSpec]:
    thirds = Training(lr=1 / 3, momentum=0.9, milestones=(1 / 3, 2 / 3), clip_norm=10.0, augment="crop_flip")
    return {
        "defaults": RunSpec(method={"name": "fedavg"}),
        "reading": RunSpec(method={"name": "fedselect", "reading": "authors_code", "alpha": 1 / 3}),
        "long numbers": RunSpec(
            method={"name": "fedavg", "lr_server": 0.1234567891}, train=thirds, participation=1 / 7
        ),
        "whole numbers": RunSpec(method={"name": "fedavg"}, partition={"name": "dirichlet", "alpha": 1.0}),
        "tags": RunSpec(method={"name": "local"}, paper="fedselect", preset="ci", seed=3, device="cpu"),
    }


@pytest.mark.parametrize("name", specs_to_write())
def test_a_spec_survives_json(name):
    spec = specs_to_write()[name]
    text = json.dumps(spec.to_json())
    again = RunSpec.from_json(json.loads(text))
    assert again == spec
    assert again.train.milestones == spec.train.milestones
    assert json.dumps(again.to_json()) == text
    assert again.key() == spec.key()


def test_to_json_returns_a_copy():
    spec = RunSpec(method={"name": "fedavg"}, model={"name": "mlp", "hidden": [3]})
    spec.to_json()["model"]["hidden"].append(4)
    assert spec.model == {"name": "mlp", "hidden": [3]}


# ---- identity -------------------------------------------------------------------------------------------------------

FEDAVG = {"name": "fedavg"}
SAME_RUN = {
    "method defaults": ({"method": {"name": "fedselect"}}, {"method": {"name": "fedselect", "p": 0.05, "alpha": 0.3}}),
    "the paper's reading": ({"method": {"name": "fedselect"}}, {"method": {"name": "fedselect", "reading": "paper"}}),
    "a reading's own value": (
        {"method": {"name": "fedselect", "reading": "authors_code"}},
        {"method": {"name": "fedselect", "reading": "authors_code", "tie_rule": "threshold"}},
    ),
    "partition defaults": (
        {"partition": {"name": "shards"}},
        {"partition": {"val": 0.0, "pool": "official", "classes_per_client": 2, "name": "shards"}},
    ),
    "model defaults": ({"model": {"name": "mlp"}}, {"model": {"name": "mlp", "hidden": [64]}}),
    "tuple or list": ({"model": {"name": "mlp", "hidden": (8, 4)}}, {"model": {"name": "mlp", "hidden": [8, 4]}}),
    "data defaults": ({"data": {"name": "digits"}}, {"data": {"name": "digits", "normalise": "unit", "resize": None}}),
    "no corruption": ({"data": {"name": "digits"}}, {"data": {"name": "digits", "corrupt": False}}),
    "how the data come here": (
        {"data": {"name": "digits"}},
        {"data": {"name": "digits", "offline": False, "folder": "elsewhere"}},
    ),
    "whole rate": ({"train": Training(lr=1)}, {"train": Training(lr=1.0)}),
    "whole share": ({"participation": 1}, {"participation": 1.0}),
    "whole option": (
        {"partition": {"name": "dirichlet", "alpha": 1}},
        {"partition": {"name": "dirichlet", "alpha": 1.0}},
    ),
    "numbers of numpy": ({"seed": 2, "rounds": 3}, {"seed": np.int64(2), "rounds": np.int64(3)}),
    "tags": ({"paper": "fedselect", "preset": "ci"}, {"paper": "", "preset": "paper"}),
}


@pytest.mark.parametrize("case", SAME_RUN)
def test_one_run_has_one_key_however_it_is_written(case):
    one, other = (RunSpec(**{"method": FEDAVG, **fields}) for fields in SAME_RUN[case])
    assert one.identity() == other.identity()
    assert one.key() == other.key()


OTHER_RUN = {
    "method": {"name": "fedavg_ft"},
    "data": {"name": "digits", "normalise": "half"},
    "partition": {"name": "shards", "classes_per_client": 4},
    "model": {"name": "mlp"},
    "train": Training(lr=0.06),
    "clients": 5,
    "rounds": 21,
    "participation": 0.5,
    "sampling": "once",
    "eval_every": 2,
    "novel": 0.2,
    "seed": 1,
    "device": "cuda",
}
OTHER_TRAINING = {
    "lr": 0.06,
    "epochs": 2,
    "batch_size": 31,
    "momentum": 0.1,
    "weight_decay": 0.1,
    "clip_norm": 1.0,
    "milestones": (0.5,),
    "decay": 0.2,
    "augment": "crop_flip",
    "partial_batch": "merge",
    "precision": "bf16",
}
TAGS = {"paper", "preset", "setting", "changed", "metrics"}


def test_every_field_but_the_tags_makes_another_run():
    assert set(OTHER_RUN) | TAGS == {f.name for f in dataclasses.fields(RunSpec)}, "name a change for the new field"
    plain = RunSpec(method=FEDAVG)
    keys = {name: dataclasses.replace(plain, **{name: value}).key() for name, value in OTHER_RUN.items()}
    assert len({plain.key(), *keys.values()}) == len(keys) + 1, keys


def test_every_field_of_training_makes_another_run():
    assert set(OTHER_TRAINING) == {f.name for f in dataclasses.fields(Training)}, "name a change for the new field"
    keys = {
        name: RunSpec(method=FEDAVG, train=Training(**{name: value})).key() for name, value in OTHER_TRAINING.items()
    }
    assert len({RunSpec(method=FEDAVG).key(), *keys.values()}) == len(keys) + 1, keys


@pytest.mark.parametrize(
    "change", [{"alpha": 0.31}, {"lr_shared": 0.05}, {"tie_rule": "threshold"}, {"reading": "authors_code"}]
)
def test_every_option_of_a_method_makes_another_run(change):
    assert RunSpec(method={"name": "fedselect", **change}).key() != RunSpec(method={"name": "fedselect"}).key()


def test_the_key_is_sixteen_hex_digits_and_stays():
    spec = RunSpec(method=FEDAVG)
    assert re.fullmatch("[0-9a-f]{16}", spec.key())
    assert spec.key() == RunSpec(method=FEDAVG).key()


# ---- what is no run -------------------------------------------------------------------------------------------------

ENDLESS: list = []
ENDLESS.append(ENDLESS)
BAD = {
    "method": ({"method": {"name": "fedawg"}}, "fedawg"),
    "method without a name": ({"method": {"alpha": 0.3}}, "name"),
    "method's option": ({"method": {"name": "fedselect", "alpa": 0.3}}, "alpa.*did you mean 'alpha'"),
    "method's value": ({"method": {"name": "fedselect", "alpha": 30}}, "alpha=30"),
    "method's type": ({"method": {"name": "fedselect", "alpha": "much"}}, "alpha='much'"),
    "method's choice": ({"method": {"name": "fedselect", "tie_rule": "coin"}}, "tie_rule='coin'"),
    "reading": ({"method": {"name": "fedavg", "reading": "ours"}}, "ours"),
    "no method": ({"method": {"name": f"{HERE}:blobs"}}, "blobs.*subclass"),
    "module": ({"method": {"name": "no_such_module:Mine"}}, "no_such_module"),
    "partition": ({"partition": {"name": "shard"}}, "shard"),
    "partition without a name": ({"partition": {"classes_per_client": 2}}, "name"),
    "partition's option": ({"partition": {"name": "shards", "classes": 2}}, "classes"),
    "model": ({"model": {"name": "lenet"}}, "lenet"),
    "model's option": ({"model": {"name": "mlp", "widths": [3]}}, "widths"),
    "data": ({"data": {"name": "no_such_data"}}, "no_such_data"),
    "data without a name": ({"data": {"normalise": "unit"}}, "name"),
    "data's option": ({"data": {"name": "digits", "sise": 8}}, "sise"),
    "data's value": ({"data": {"name": "digits", "resize": -1}}, "resize=-1"),
    "data's type": ({"data": {"name": "digits", "resize": True}}, "resize=True"),
    "data's choice": ({"data": {"name": "digits", "normalise": "cifar"}}, "normalise='cifar'.*'cifar10'"),
    "data's own option": ({"data": {"name": "office_home", "test_share": "half"}}, "test_share='half'"),
    "samples of a combination": (
        {"data": {"name": "cifar_mnist", "samples_per_class": [4, -1]}},
        r"samples_per_class=\[4, -1\]: item 1",
    ),
    "corruption": ({"data": {"name": "digits", "corrupt": "fog"}}, "fog"),
    "corruption's type": ({"data": {"name": "digits", "corrupt": 1}}, "corrupt=1: .*boolean"),
    "severity": ({"data": {"name": "digits", "corrupt": True, "corrupt_severity": 9}}, "9"),
    "seed of the partition": ({"partition": {"name": "iid", "seed": "one"}}, "seed='one'"),
    "no seed of the partition": ({"partition": {"name": "iid", "seed": None}}, "seed=None"),
    "variant's type": ({"partition": {"name": "dirichlet", "variant": 3}}, "variant=3"),
    "model's value": ({"model": {"name": "mlp", "hidden": [0]}}, r"hidden=\[0\]: item 0"),
    "reading's type": ({"method": {"name": "fedavg", "reading": []}}, r"no reading \[\]"),
    "NaN": ({"partition": {"name": "dirichlet", "alpha": math.nan}}, "alpha=nan.*finite"),
    "infinity": ({"method": {"name": "fedavg", "lr_server": math.inf}}, "lr_server=inf.*finite"),
    "beyond single precision": ({"method": {"name": "fedavg", "lr_server": 1e39}}, "lr_server=1e.39.*single precision"),
    "a list beyond single precision": ({"method": {"name": "pfedgate", "keep_ratio": [0.1, 1e39]}}, "keep_ratio"),
    "a paper's folder": ({"paper": "../../elsewhere"}, "paper='../../elsewhere' is not a name"),
    "a preset's folder": ({"preset": "/elsewhere"}, "preset='/elsewhere' is not a name"),
    "an object": ({"data": {"name": "digits", "folder": Path("here")}}, "folder=.*Path.*an object of type .*Path"),
    "option without a name": ({"model": {"name": "mlp", 3: 4}}, "model: the option 3 is not text"),
    "a list that contains itself": ({"data": {"name": "digits", "resize": ENDLESS}}, "resize=.*Circular"),
    "training": ({"train": {"lr": 0.1}}, "train=.*is not a Training"),
    "seed": ({"seed": 1.5}, "seed=1.5"),
    "a truth value as a number": ({"clients": True}, "clients=True"),
    "meta device": ({"device": "meta"}, "device='meta'"),
    "clients": ({"clients": 0}, "clients=0"),
    "rounds": ({"rounds": 0}, "rounds=0"),
    "participation": ({"participation": 1.5}, "participation=1.5"),
    "sampling": ({"sampling": "twice"}, "twice"),
    "eval_every": ({"eval_every": 0}, "eval_every=0"),
    "device": ({"device": "abacus"}, "abacus"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_values_are_no_spec_or_stop_a_run_before_it_starts_with_one_line(case):
    """The second where the data, or this machine, must be looked at."""
    fields, match = BAD[case]
    with one_line(match):
        made = RunSpec(**{"method": FEDAVG, **fields})
        if case in ("data", "device", "meta device"):
            build(made)


@pytest.mark.parametrize(
    ("plain", "match"),
    [
        ({}, "method"),
        ({"method": "fedavg"}, "method='fedavg'"),
        ({"method": FEDAVG, "round": 3}, "round'.*did you mean 'rounds'"),
        ({"method": FEDAVG, "rounds": "many"}, "rounds='many'"),
        ({"method": FEDAVG, "rounds": 2.5}, "rounds=2.5"),
        ({"method": FEDAVG, "train": {"rate": 0.1}}, "rate"),
        ({"method": FEDAVG, "train": {"lr": "fast"}}, "lr='fast'"),
        ({"method": FEDAVG, "train": {"lr": -1}}, "lr=-1"),
        ({"method": FEDAVG, "train": {"lr": float("nan")}}, "lr=nan"),
        ({"method": FEDAVG, "train": {"augment": "mirror"}}, "mirror"),
        ({"method": FEDAVG, "train": 3}, "train"),
    ],
)
def test_bad_json_is_one_line(plain, match):
    with one_line(match):
        RunSpec.from_json(plain)


def test_the_label_has_method_options_data_and_seed():
    label = RunSpec(method={"name": "fedselect", "alpha": 0.5}, seed=4).label()
    assert all(part in label for part in ("fedselect", "alpha=0.5", "digits", "4")) and "\n" not in label
