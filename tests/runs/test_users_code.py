"""Code of a user in a run: it draws the same numbers in every run, and leaves the data as they are."""

from __future__ import annotations

import dataclasses
import importlib
import random
import sys

import numpy as np
import pytest
import torch

from pfl_core.runs import assign, build, execute, load_data
from pfl_core.runs.build import run_warnings
from tests.helpers import one_line, same_bits
from tests.runs import drawing
from tests.runs.conftest import bits
from tests.runs.test_execute import Interrupted, interrupt_at

HERE = drawing.__name__
execute_module = sys.modules[execute.__module__]
CASES = {
    "network": {"model": {"name": f"{HERE}:dropout"}},
    "gradient": {"method": f"{HERE}:NoisyGradient"},
    "gradient of one client at a time": {"method": f"{HERE}:NoisyGradient", "model": {"name": "lenet_small"}},
    "server": {"method": f"{HERE}:NoisyServer"},
    "data": {"data": {"name": f"{HERE}:samples"}},
    "partition": {"partition": {"name": f"{HERE}:deal"}},
}


def disturbed() -> None:
    torch.manual_seed(random.SystemRandom().getrandbits(32))
    np.random.seed(None)
    random.seed()


@pytest.fixture(params=CASES)
def made(request, spec):
    return spec(**CASES[request.param], rounds=4)


def test_equal_specs_give_equal_results(made, store, tmp_path, monkeypatch):
    """Whatever the state of the global generators and the number of threads; also after a kill."""
    monkeypatch.setattr(execute_module, "CHECKPOINT_SECONDS", 0.0)
    disturbed()
    one = bits(execute(made, store))
    for threads in (1, 3):
        disturbed()
        store.path(made.key()).unlink(missing_ok=True)
        assert bits(execute(made, store, key=store.key_of(made), threads=threads)) == one
    with pytest.raises(Interrupted):
        execute(made, store, on_round=interrupt_at(2))
    disturbed()
    assert bits(execute(made, store)) == one


def test_other_seeds_draw_other_numbers(spec, store):
    made = spec(partition={"name": f"{HERE}:deal"})
    parts = [assign(dataclasses.replace(made, seed=seed), load_data(made)).train[0] for seed in (0, 0, 1)]
    assert torch.equal(parts[0], parts[1]) and not torch.equal(parts[0], parts[2])


def test_a_module_draws_the_same_numbers_when_it_is_imported(spec):
    seen = []
    for _ in range(2):
        disturbed()
        sys.modules.pop(HERE)
        spec(f"{HERE}:NoisyServer")
        seen.append(sys.modules[HERE].AT_IMPORT)
    sys.modules[HERE] = drawing
    importlib.invalidate_caches()
    assert seen[0] == seen[1]


def test_the_data_set_in_memory_is_not_changed_by_a_partition(spec):
    made = spec(partition={"name": f"{HERE}:deal"})
    before = dataclasses.replace(load_data(made), x=load_data(made).x.clone(), y=load_data(made).y.clone())
    build(made)
    assert same_bits([load_data(made).x, load_data(made).y], [before.x, before.y])


def test_a_prediction_rule_gets_copies(spec, store):
    made = spec(f"{HERE}:PredictsInPlace")
    assert bits(execute(made, store))[1:] == bits(execute(spec("fedavg"), store))[1:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": {"name": f"{HERE}:now"}}, "now' .*second call"),
        ({"method": f"{HERE}:Whitens"}, "Whitens .*in place"),
        ({"model": {"name": f"{HERE}:lazy"}}, "lazy layers"),
    ],
)
def test_what_cannot_be_repeated_is_refused_in_one_line(change, message, spec, store):
    with one_line(message):
        execute(spec(**change), store)


def test_a_run_whose_flops_cannot_be_counted_is_stored(spec, store):
    with pytest.warns(UserWarning, match=r"FLOPs .*no light"):
        record = execute(spec(model={"name": f"{HERE}:uncounted"}), store)
    assert store.get(record.key).flops == 0 and np.isnan(record.summary()["train_tflop"])


def test_the_head_of_a_users_network_is_printed(spec):
    made = spec(model={"name": f"{HERE}:dropout"})
    algorithm, fed, _ = build(made)
    assert f"network {HERE}:dropout: 172 trainable parameters, 0 frozen; head: 4" in run_warnings(made, algorithm, fed)
