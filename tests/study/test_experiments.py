"""Which runs notebooks ask for, and what becomes of them where a setting is replaced."""

import pytest

from pfl_core.algorithms.fedselect.method import num_new
from pfl_core.papers.fedselect.experiments import AT_THE_LIMIT
from pfl_core.study import experiments
from pfl_core.study.statistics import best_preset

NAME = "fedselect/02_personalization_limit"


@pytest.mark.parametrize("nothing", [None, {}, {"device": "cuda"}, {"clients": 4, "lr": 0.05}])
def test_overrides_that_change_nothing_leave_the_presets_runs(nothing):
    plain = experiments.specs(NAME, "ci")
    settings = {"clients": plain[0].clients, "lr": plain[0].train.lr} if nothing and "lr" in nothing else nothing
    made = experiments.specs(NAME, "ci", overrides=settings)
    assert [one.made_for for one in made] == ["ci"] * len(plain)


def test_runs_that_overrides_change_are_no_results_of_the_preset():
    made = experiments.specs(NAME, "real", overrides={"rounds": 41})
    assert {one.made_for for one in made} == {"real, changed"}
    split = PAPER.specs("04_heterogeneity_and_scale", "quick", overrides={"rounds": 40})
    assert {one.changed for one in split if one.setting == "dirichlet"} == {False}, "has 40 of its own"
    assert {one.changed for one in split if one.setting == "many clients"} == {True}, "has 60"


@pytest.mark.parametrize("name", ["seed", "method", "preset", "paper", "setting", "changed"])
def test_what_a_run_is_cannot_be_overridden(name):
    with pytest.raises(ValueError, match=f"no setting '{name}'"):
        experiments.specs(NAME, "ci", overrides={name: "fedavg"})


def test_claims_on_changed_runs_alone_are_judged_but_never_before_a_presets_own():
    frame = (
        PAPER.metrics_frame([])
        .reindex(range(2))
        .assign(preset=["real, changed", "quick"], rounds=3, setting="", dataset="")
    )
    assert best_preset(frame)["preset"].tolist() == ["quick"]
    assert best_preset(frame.iloc[:1])["preset"].tolist() == ["real, changed"]


CODE = "fedselect/07_paper_vs_code"
ALONE = {  # beside the method's options: setting -> epochs, augmentation, stem, learning rate at preset paper
    "cifar10": (3, "none", "no_pool", 0.05),
    "cifar10, epochs=15": (15, "none", "no_pool", 0.05),
    "cifar10, augment=crop_flip": (3, "crop_flip", "no_pool", 0.05),
    "cifar10, stem=imagenet": (3, "none", "imagenet", 0.05),
}


def training(one):
    return one.train.epochs, one.train.augment, one.model.get("stem"), one.train.lr


def test_what_the_released_code_changes_in_training_is_run_alone_at_preset_paper():
    made = [one for one in experiments.specs(CODE, "paper", [0]) if one.method["name"] == "fedselect"]
    assert {one.setting: training(one) for one in made if one.method == {"name": "fedselect"}} == ALONE
    code = {
        one.setting: training(one) for one in made if one.method == {"name": "fedselect", "reading": "authors_code"}
    }
    assert code == {
        "cifar10": (15, "crop_flip", "imagenet", 0.05),
        "cifar10, code at lr 0.01": (15, "crop_flip", "imagenet", 0.01),
    }


@pytest.mark.parametrize(("preset", "alone"), [("ci", 0), ("quick", 1), ("real", 2), ("paper", 3)])
def test_each_run_of_the_readings_is_asked_for_once(preset, alone):
    """At the smaller presets what their data and networks allow: the epochs, and where images are 32x32 the crops."""
    made = experiments.specs(CODE, preset, [0])
    assert len({str(one.identity()) for one in made}) == len(made)
    own = {one.setting for one in made if one.method == {"name": "fedselect"}}
    assert len(own) == 1 + alone and own == set(list(ALONE)[: 1 + alone])


def test_what_overrides_replace_is_not_run_alone_under_a_wrong_name():
    own = {one.setting for one in experiments.specs(CODE, "paper", [0], {"epochs": 1, "lr": 0.1})}
    assert own == {"cifar10", "cifar10, augment=crop_flip", "cifar10, stem=imagenet", "cifar10, twice the epochs"}


@pytest.mark.parametrize("size", [4_810, 136_874, 11_181_642], ids=["mlp", "cnn_small", "resnet18"])
def test_the_comparison_at_the_limit_has_an_update_that_ends_at_it(size):
    """So the inclusive one grows once more, in the networks of presets quick, real and paper."""
    made = [one for one in experiments.specs(CODE, "paper", [0]) if one.method.items() >= AT_THE_LIMIT.items()]
    strict, inclusive = (one.build_method() for one in made)
    assert (strict.limit_comparison, inclusive.limit_comparison) == ("strict", "inclusive")
    first = num_new(0, size, strict)
    assert first == strict.alpha * size == num_new(0, size, inclusive)
    assert num_new(first, size, strict) == 0 < num_new(first, size, inclusive)


def test_what_is_asked_for_twice_keeps_its_first_setting():
    """pFedGate 01 tries rates, its own among them: that run is the main one, not one of those that are tried."""
    made = PAPER.specs("01_main_comparison", "real", [0])
    settings = {(one.method["name"], one.train.lr): one.setting for one in made if one.method["name"] == "fedrep"}
    assert settings["fedrep", 0.1] == "fashion_mnist" and settings["fedrep", 0.3] == "fashion_mnist, lr=0.3"
    assert len({str(one.identity()) for one in made}) == len(made)
