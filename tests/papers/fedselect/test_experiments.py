"""Which runs FedSelect's notebooks ask for."""

import pytest
import torch

from pfl_core.algorithms.fedselect.method import num_new
from pfl_core.papers.fedselect.experiments import AT_THE_LIMIT, DATASETS, LEARNING_RATES
from pfl_core.papers.fedselect.paper import PAPER
from pfl_core.papers.fedselect.settings import BASELINES
from pfl_core.runs import build
from pfl_core.runs.build import assign, load_data
from pfl_core.study.presets import PRESETS

MAIN = "01_main_comparison"
CODE = "07_paper_vs_code"
ALONE = {  # beside the method's options: setting -> epochs, augmentation, stem, learning rate at preset paper
    "cifar10": (3, "none", "no_pool", 0.05),
    "cifar10, epochs=15": (15, "none", "no_pool", 0.05),
    "cifar10, augment=crop_flip": (3, "crop_flip", "no_pool", 0.05),
    "cifar10, stem=imagenet": (3, "none", "imagenet", 0.05),
    "cifar10, batch_size=32": (3, "none", "no_pool", 0.05),
}


def test_the_real_comparison_has_the_corrupted_set_with_every_seed():
    specs = PAPER.specs(MAIN, "real", (0, 1), {})
    clean, corrupted = ([one for one in specs if one.setting == name] for name in ("cifar10", "cifar10_c"))
    assert [(one.method, one.seed) for one in corrupted] == [(one.method, one.seed) for one in clean]
    assert {(one.seed, one.data["corrupt"]) for one in corrupted} == {(0, True), (1, True)}


def test_learning_rates_are_chosen_on_images_that_no_client_trains_or_is_tested_on():
    """As many to train on as elsewhere, and as many again to choose by; all methods at each rate, FedSelect at the two
    limits that are fixed."""
    specs = PAPER.specs(MAIN, "quick", (0, 1), {})
    main = [one for one in specs if one.setting == "cifar10" and one.seed == 0]
    assert [one.method["alpha"] for one in main if "alpha" in one.method] == [0.3, 0.5, 0.05, 0.8]
    main = [one for one in main if one.method.get("alpha") not in (0.05, 0.8)]
    for rate in LEARNING_RATES:
        tried = [one for one in specs if one.setting == f"cifar10, lr={rate:g}"]
        assert [one.method for one in tried] == [one.method for one in main]
        assert {(one.train.lr, one.seed) for one in tried} == {(rate, 0)}
        of_all_seeds = [one for one in PAPER.specs(MAIN, "real", (0, 1), {}) if one.setting == tried[0].setting]
        assert [one.seed for one in of_all_seeds] == [0] * len(main) + [1] * len(main)
    fed, held = build(main[0])[1], build(tried[0])[1]
    assert (
        held.splits["train"].sizes.tolist() == held.splits["val"].sizes.tolist() == fed.splits["train"].sizes.tolist()
    )
    assigned = assign(tried[0], load_data(tried[0]))
    for parts in zip(assigned.train, assigned.val, assigned.test, strict=True):
        assert len(torch.cat(parts).unique()) == sum(map(len, parts))


@pytest.mark.parametrize("preset", PRESETS)
def test_one_run_of_table_2_leaves_nothing_shared(preset):
    """Of claim 6; at the default p the rounds are too few. Its network has no batch norm but at preset paper."""
    specs = PAPER.specs("02_personalization_limit", preset, (0,), {})
    full = [one for one in specs if one.method.get("alpha") == 1 and one.method.get("p") == 1]
    averaged = [one for one in specs if one.method.get("buffer_policy") == "average"]
    names = DATASETS if preset == "paper" else DATASETS[:1]
    assert [one.setting for one in full] == list(names)
    assert [one.setting for one in averaged] == [one.setting for one in full if one.model["name"] == "resnet18"]


@pytest.mark.parametrize(("preset", "changes"), [("quick", {}), ("real", {}), ("paper", {}), ("paper", {"epochs": 3})])
def test_every_method_of_the_workshops_comparison_has_the_same_local_epochs(preset, changes):
    """FedRep's are its own fields; FedSelect's search and Ditto's second model come on top."""
    for one in PAPER.specs("06_workshop_gradltn", preset, (0,), changes):
        if one.method["name"] == "fedrep":
            rule = one.build_method()
            assert rule.head_epochs + rule.body_epochs == one.train.epochs


@pytest.mark.parametrize(("preset", "changes"), [("ci", {}), ("paper", {}), ("quick", {"epochs": 5})])
def test_every_baseline_also_runs_with_twice_the_epochs(preset, changes):
    """Of its own, where it has some; but for Ditto, which trains two models as it is, and stands beside them so."""
    specs = PAPER.specs("07_paper_vs_code", preset, (0,), changes)
    once, twice = (
        {one.method["name"]: one for one in specs if one.setting == name and one.method["name"] != "fedselect"}
        for name in ("cifar10", "cifar10, twice the epochs")
    )
    assert once.keys() == set(BASELINES) and twice.keys() == once.keys() - {"ditto"}
    for name, one in twice.items():
        assert one.train.epochs == 2 * once[name].train.epochs
    assert {0.3, 0.5} <= {one.build_method().alpha for one in specs if one.method["name"] == "fedselect"}
    before, after = (vars(runs["fedrep"].build_method()) for runs in (once, twice))
    assert [after[part] for part in ("head_epochs", "body_epochs")] == [
        2 * before[part] for part in ("head_epochs", "body_epochs")
    ]


def training(one):
    return one.train.epochs, one.train.augment, one.model.get("stem"), one.train.lr


def test_what_the_released_code_changes_in_training_is_run_alone_at_preset_paper():
    made = [one for one in PAPER.specs(CODE, "paper", [0]) if one.method["name"] == "fedselect"]
    assert {one.setting: training(one) for one in made if one.method == {"name": "fedselect"}} == ALONE
    code = {
        one.setting: training(one) for one in made if one.method == {"name": "fedselect", "reading": "authors_code"}
    }
    assert code == {
        "cifar10": (15, "crop_flip", "imagenet", 0.05),
        "cifar10, code at lr 0.01": (15, "crop_flip", "imagenet", 0.01),
    }


@pytest.mark.parametrize(("preset", "alone"), [("ci", 0), ("quick", 1), ("real", 2), ("paper", 4)])
def test_each_run_of_the_readings_is_asked_for_once(preset, alone):
    """At the smaller presets what their data and networks allow: the epochs, and where images are 32x32 the crops."""
    made = PAPER.specs(CODE, preset, [0])
    assert len({str(one.identity()) for one in made}) == len(made)
    own = {one.setting for one in made if one.method == {"name": "fedselect"}}
    assert len(own) == 1 + alone and own == set(list(ALONE)[: 1 + alone])


def test_what_overrides_replace_is_not_run_alone_under_a_wrong_name():
    own = {one.setting for one in PAPER.specs(CODE, "paper", [0], {"epochs": 1, "lr": 0.1})}
    alone = ("augment=crop_flip", "stem=imagenet", "batch_size=32", "twice the epochs")
    assert own == {"cifar10", *(f"cifar10, {name}" for name in alone)}


@pytest.mark.parametrize("size", [4_810, 136_874, 11_181_642], ids=["mlp", "cnn_small", "resnet18"])
def test_the_comparison_at_the_limit_has_an_update_that_ends_at_it(size):
    """So the inclusive one grows once more, in the networks of presets quick, real and paper."""
    made = [one for one in PAPER.specs(CODE, "paper", [0]) if one.method.items() >= AT_THE_LIMIT.items()]
    strict, inclusive = (one.build_method() for one in made)
    assert (strict.limit_comparison, inclusive.limit_comparison) == ("strict", "inclusive")
    first = num_new(0, size, strict)
    assert first == strict.alpha * size == num_new(0, size, inclusive)
    assert num_new(first, size, strict) == 0 < num_new(first, size, inclusive)
