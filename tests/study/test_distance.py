"""The respects in which a run differs from the paper's setting."""

from dataclasses import replace

import pytest

from pfl_core.papers import PAPERS, paper
from pfl_core.study.distance import differences


@pytest.mark.parametrize("name", PAPERS)
def test_the_papers_own_runs_differ_in_nothing(name):
    own = paper(name)
    for notebook in own.experiments:
        for spec in own.specs(notebook, "paper", [0])[:20]:
            assert differences(spec, spec.rounds, own.settings) == [], spec.label()


@pytest.mark.parametrize(
    "changes, words",
    [
        (dict(rounds=60), ["rounds"]),
        (dict(batch_size=25, partial_batch="merge"), ["batch"]),
        (dict(lr=0.5, epochs=7), ["rate", "epochs"]),
        (dict(momentum=0.99), ["optimizer"]),
        (dict(clients=3), ["clients"]),
        (dict(model="cnn_small"), ["network"]),
        (dict(data="digits"), ["data"]),
        (dict(partition="iid"), ["partition"]),
    ],
)
def test_each_change_has_a_word(changes, words):
    settings = paper("fedselect").settings
    spec = replace(settings.spec("fedselect", preset="paper", overrides=changes), changed=True)
    assert differences(spec, spec.rounds, settings) == words


def test_unfinished_runs_and_options_of_a_component():
    settings = paper("fedselect").settings
    spec = settings.spec("local", preset="paper")
    assert differences(spec, spec.rounds - 1, settings) == ["rounds"]
    other = replace(spec, partition={**spec.partition, "classes_per_client": 7})
    assert differences(replace(other, changed=True), spec.rounds, settings) == ["partition"]
    assert differences(other, spec.rounds, settings) == []  # varied by a notebook


def test_strengths_that_a_search_chose_count():
    settings = paper("pfedgate").settings
    spec = settings.spec("pfedgate", preset="real", setting="fashion_mnist")
    assert "strengths" in differences(spec, spec.rounds, settings)
    fedavg = settings.spec("fedavg", preset="real", setting="fashion_mnist")
    assert "strengths" not in differences(fedavg, fedavg.rounds, settings)


def test_a_variant_is_compared_with_its_setting():
    settings = paper("fedpews").settings
    spec = settings.spec("fedavg", preset="real", setting="sensitivity, rates")
    assert "setting" not in differences(spec, spec.rounds, settings)
    assert differences(replace(spec, setting="nowhere"), spec.rounds, settings) == ["setting"]
