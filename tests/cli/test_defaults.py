"""`pfl run METHOD` without options: every method learns, and its mechanism acts."""

import dataclasses

import pytest

from pfl_core import methods
from pfl_core.cli.specs import trial
from pfl_core.runs import execute
from pfl_core.runs.build import build

LEAD = 15  # points above a model that always answers with the client's most frequent class


@pytest.mark.parametrize("name", methods())
def test_a_method_learns_with_its_defaults(name, store):
    """In as few rounds as it can: scores are above the bound, and every mechanism acts."""
    spec = trial(name, {}, seed=0)
    step = max(1, spec.rounds // 10)
    spec = dataclasses.replace(spec, eval_every=step)
    _, fed, _ = build(spec)
    labels = [fed.labels(k, "test") for k in range(fed.num_clients)]
    most_frequent = sum(float(y.bincount().max()) / len(y) for y in labels) / len(labels)
    warnings: list[str] = []
    for until in range(step, spec.rounds + step, step):
        record = execute(spec, store, until=min(until, spec.rounds), keep_state=True, warn=warnings.append)
        learned = record.summary()["acc_mean"] > 100 * most_frequent + LEAD
        inert = [check for check in record.mechanism if not check.acts]
        if learned and not inert:
            break
    assert learned and not inert
    # the default network has no batch norm
    assert [text for text in warnings if not text.startswith("FedBN: no parameter stays with a client")] == []
    assert bool(warnings) == (name == "fedbn")
