"""Which runs FedSelect's notebooks ask for."""

from dataclasses import replace

import pytest

from pfl_core.algorithms.fedselect.method import num_new
from pfl_core.papers.fedselect.experiments import (
    ALSO_TRIED_ON,
    AT_THE_LIMIT,
    CODE_TRAINING,
    DATASETS,
)
from pfl_core.papers.fedselect.paper import PAPER
from pfl_core.papers.fedselect.settings import BASELINES
from pfl_core.study.presets import PRESETS

MAIN = "01_main_comparison"
CODE = "07_paper_vs_code"
DEAL = "cifar10, allow_duplicate_classes=True"
ALONE = {  # beside the method's options: setting -> deal, epochs, augmentation, stem, batch, rate at preset paper
    "cifar10": (False, 3, "none", "no_pool", 25, 0.05),
    DEAL: (True, 3, "none", "no_pool", 25, 0.05),
    "cifar10, epochs=15": (False, 15, "none", "no_pool", 25, 0.05),
    "cifar10, augment=crop_flip": (False, 3, "crop_flip", "no_pool", 25, 0.05),
    "cifar10, stem=imagenet": (False, 3, "none", "imagenet", 25, 0.05),
    "cifar10, batch_size=32": (False, 3, "none", "no_pool", 32, 0.05),
}


def test_the_real_comparison_has_the_corrupted_set_with_every_seed():
    specs = PAPER.specs(MAIN, "real", (0, 1), {})
    clean, corrupted = ([one for one in specs if one.setting == name] for name in ("cifar10", "cifar10_c"))
    assert [(one.method, one.seed) for one in corrupted] == [(one.method, one.seed) for one in clean]
    assert {(one.seed, one.data["corrupt"]) for one in corrupted} == {(0, True), (1, True)}


def test_the_search_has_validation_images_that_no_client_has_and_trains_on_those_of_the_comparison():
    for (preset, setting), searches in PAPER.searches.items():
        frame = PAPER.settings.setting(preset, setting).partition
        assert frame["val_per_class"] == frame["train_per_class"], (preset, setting)
        asked = [one for one in PAPER.specs(MAIN, preset, [0]) if one.setting == setting]
        for search in searches:
            values = {name: grid[0] for name, grid in search.grid.items()}
            tried = search.spec(PAPER.settings, preset, setting, values)
            same = {k: v for k, v in tried.method.items() if k not in search.grid}
            assert same in [{k: v for k, v in one.method.items() if k not in search.grid} for one in asked]


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
    dealt = one.partition.get("allow_duplicate_classes", False)
    return dealt, one.train.epochs, one.train.augment, one.model.get("stem"), one.train.batch_size, one.train.lr


def test_what_the_released_code_changes_in_training_is_run_alone_at_preset_paper():
    made = [one for one in PAPER.specs(CODE, "paper", [0]) if one.method["name"] == "fedselect"]
    assert {one.setting: training(one) for one in made if one.method == {"name": "fedselect"}} == ALONE
    code = {one.setting: one for one in made if one.method == {"name": "fedselect", "reading": "authors_code"}}
    assert {name: training(one) for name, one in code.items()} == {
        "cifar10": (True, 15, "crop_flip", "imagenet", 32, 0.05),
        "cifar10, code with clip_norm=3.5": (True, 15, "crop_flip", "imagenet", 32, 0.05),
        "cifar10, code at lr 0.01": (True, 15, "crop_flip", "imagenet", 32, 0.01),
    }
    assert [one.train.clip_norm for one in code.values()] == [None, 3.5, None]


@pytest.mark.parametrize("preset", PRESETS)
def test_all_options_of_the_code_together_have_its_class_deal(preset):
    """And the clipped run beside it; the paper's text, and every option of the method alone, keep distinct classes."""
    made = [one for one in PAPER.specs(CODE, preset, [0]) if one.method["name"] == "fedselect" and one.setting != DEAL]
    dealt = [one.partition.get("allow_duplicate_classes", False) for one in made]
    assert dealt == [one.method.get("reading") == "authors_code" for one in made]
    clipped = [one for one in made if one.train.clip_norm is not None]
    assert [(one.train.clip_norm, one.method.get("reading")) for one in clipped] == (
        [] if preset == "ci" else [(3.5, "authors_code")]
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_an_option_of_training_is_tried_on_rivals_with_everything_else_the_same(preset):
    """But for the rate, of which a search may have chosen one for each method."""
    made = PAPER.specs(CODE, preset, [0])
    settings = {one.setting for one in made if one.method == {"name": "fedselect"}} - {"cifar10"}
    assert settings == {f"cifar10, {name}" for name in shown(preset)}
    for name in settings:
        tried = {one.method["name"]: one for one in made if one.setting == name}
        assert set(tried) == {"fedselect", *ALSO_TRIED_ON}
        at_one_rate = [replace(one, train=replace(one.train, lr=0.1)) for one in tried.values()]  # each has its own
        assert len({str((training(one), one.data, one.rounds)) for one in at_one_rate}) == 1


def shown(preset):
    """What is run alone at a preset, as its settings name it."""
    names = {"partition": "allow_duplicate_classes=True", "epochs": "epochs=15", "augment": "augment=crop_flip"}
    names |= {"model": "stem=imagenet", "batch_size": "batch_size=32"}
    return [names[name] for name in CODE_TRAINING[preset]]


@pytest.mark.parametrize(("preset", "alone"), [("ci", 1), ("quick", 2), ("real", 3), ("paper", 5)])
def test_each_run_of_the_readings_is_asked_for_once(preset, alone):
    """At the smaller presets what their data and networks allow: the deal, the epochs, and on 32x32 the crops."""
    made = PAPER.specs(CODE, preset, [0])
    assert len({str(one.identity()) for one in made}) == len(made)
    own = {one.setting for one in made if one.method == {"name": "fedselect"}}
    assert len(own) == 1 + alone and own == set(list(ALONE)[: 1 + alone])


SCOPED = ["01_main_comparison", "02_personalization_limit", "03_ablations", "04_training_size", "05_mask_overlap"]


@pytest.mark.parametrize("notebook", SCOPED)
def test_resnet18_is_also_ranked_tensor_by_tensor(notebook):
    """Every run of FedSelect whose masks grow, or are drawn, has the other scope beside it, but for claim 6's ends."""
    made = [one for one in PAPER.specs(notebook, "paper", [0]) if one.method["name"] == "fedselect"]
    made = [one for one in made if one.method.get("masks") != "layers"]
    scopes = {"global": set(), "per_tensor": set()}
    for one in made:
        fields = {k: v for k, v in one.method.items() if k != "selection_scope"}
        if fields.get("p") != 1 and "buffer_policy" not in fields:
            scopes[one.build_method().selection_scope].add(str((fields, one.setting, one.train, one.data)))
    assert scopes["global"] == scopes["per_tensor"] != set()
    small = PAPER.specs(notebook, "real", [0])
    assert {one.model["name"] for one in small} == {"cnn_small"}
    assert not any("selection_scope" in one.method for one in small)


def test_what_overrides_replace_is_not_run_alone_under_a_wrong_name():
    own = {one.setting for one in PAPER.specs(CODE, "paper", [0], {"epochs": 1, "lr": 0.1})}
    alone = ("allow_duplicate_classes=True", "augment=crop_flip", "stem=imagenet", "batch_size=32", "twice the epochs")
    assert own == {"cifar10", *(f"cifar10, {name}" for name in (*alone, "code with clip_norm=3.5"))}
    own = {one.setting for one in PAPER.specs(CODE, "paper", [0], {"clip_norm": 1.0})}
    assert not any("clip_norm" in name for name in own)


@pytest.mark.parametrize("size", [4_810, 136_874, 11_181_642], ids=["mlp", "cnn_small", "resnet18"])
def test_the_comparison_at_the_limit_has_an_update_that_ends_at_it(size):
    """So the inclusive one grows once more, in the networks of presets quick, real and paper."""
    made = [one for one in PAPER.specs(CODE, "paper", [0]) if one.method.items() >= AT_THE_LIMIT.items()]
    strict, inclusive = (one.build_method() for one in made)
    assert (strict.limit_comparison, inclusive.limit_comparison) == ("strict", "inclusive")
    first = num_new(0, size, strict)
    assert first == strict.alpha * size == num_new(0, size, inclusive)
    assert num_new(first, size, strict) == 0 < num_new(first, size, inclusive)
