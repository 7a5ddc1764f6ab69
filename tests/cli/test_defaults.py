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
    first = max(1, spec.rounds // 8)
    spec = dataclasses.replace(spec, eval_every=first)
    _, fed, _ = build(spec)
    labels = [fed.labels(k, "test") for k in range(fed.num_clients)]
    most_frequent = sum(float(y.bincount().max()) / len(y) for y in labels) / len(labels)
    warnings: list[str] = []
    for until in (first, 2 * first, 4 * first, spec.rounds):
        execute(spec, store, until=until, keep_state=True, warn=warnings.append)
        record = store.get(store.key_of(spec), spec)
        learned = record.summary()["acc_mean"] > 100 * most_frequent + LEAD
        inert = [check for check in record.mechanism if not check.acts]
        if learned and not inert:
            break
    assert learned and not inert
    # the default network has no batch norm
    assert [text for text in warnings if not text.startswith("FedBN: no parameter stays with a client")] == []
    assert bool(warnings) == (name == "fedbn")
