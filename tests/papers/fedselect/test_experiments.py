"""The runs of FedSelect's notebooks."""

from dataclasses import replace

import pytest

from pfl_core.algorithms.fedselect.method import num_new
from pfl_core.papers.fedselect.experiments import (
    AT_THE_LIMIT,
    CODE_TRAINING,
    DATASETS,
)
from pfl_core.papers.fedselect.paper import PAPER
from pfl_core.papers.fedselect.settings import BASELINES, VALIDATED
from pfl_core.study.presets import PRESETS

MAIN = "01_main_comparison"
CODE = "07_paper_vs_code"
DEAL = "cifar10, allow_duplicate_classes=True"
ALONE = {  # setting -> duplicate classes allowed, epochs, augmentation, stem, batch, rate at preset paper
    "cifar10": (False, 3, "none", "no_pool", 25, 0.05),
    DEAL: (True, 3, "none", "no_pool", 25, 0.05),
    "cifar10, epochs=15": (False, 15, "none", "no_pool", 25, 0.05),
    "cifar10, augment=crop_flip": (False, 3, "crop_flip", "no_pool", 25, 0.05),
    "cifar10, stem=imagenet": (False, 3, "none", "imagenet", 25, 0.05),
    "cifar10, batch_size=32": (False, 3, "none", "no_pool", 32, 0.05),
}


def test_the_real_comparison_has_the_corrupted_set_with_every_seed():
    specs = PAPER.specs(MAIN, "real", (0, 1), {})
    clean, corrupted = ([spec for spec in specs if spec.setting == name] for name in ("cifar10", "cifar10_c"))
    assert [(spec.method, spec.seed) for spec in corrupted] == [(spec.method, spec.seed) for spec in clean]
    assert {(spec.seed, spec.data["corrupt"]) for spec in corrupted} == {(0, True), (1, True)}


def test_the_search_has_at_least_as_many_validation_as_training_images():
    for place in PAPER.searches:
        frame = PAPER.settings.setting(*place).partition
        assert frame["val_per_class"] >= frame["train_per_class"], place


@pytest.mark.parametrize("preset", PRESETS)
def test_one_run_of_table_2_leaves_nothing_shared(preset):
    """For claim 6: at the default p the rounds are too few. Only preset paper has a network with batch norm."""
    specs = PAPER.specs("02_personalization_limit", preset, (0,), {})
    full = [spec for spec in specs if spec.method.get("alpha") == 1 and spec.method.get("p") == 1]
    averaged = [spec for spec in specs if spec.method.get("buffer_policy") == "average"]
    names = DATASETS if preset == "paper" else DATASETS[:1]
    assert [spec.setting for spec in full] == list(names)
    assert [spec.setting for spec in averaged] == [spec.setting for spec in full if spec.model["name"] == "resnet18"]


@pytest.mark.parametrize(("preset", "changes"), [("quick", {}), ("real", {}), ("paper", {}), ("paper", {"epochs": 3})])
def test_every_method_of_the_workshops_comparison_has_the_same_local_epochs(preset, changes):
    """FedRep's epochs are fields of the method; FedSelect's search and Ditto's second model are extra."""
    for spec in PAPER.specs("06_workshop_gradltn", preset, (0,), changes):
        if spec.method["name"] == "fedrep":
            rule = spec.build_method()
            assert rule.head_epochs + rule.body_epochs == spec.train.epochs


@pytest.mark.parametrize(("preset", "changes"), [("ci", {}), ("paper", {}), ("quick", {"epochs": 5})])
def test_every_baseline_also_runs_with_twice_the_epochs(preset, changes):
    """FedRep's epochs are fields of the method. Ditto, which trains two models, runs unchanged."""
    specs = PAPER.specs("07_paper_vs_code", preset, (0,), changes)
    once, twice = (
        {spec.method["name"]: spec for spec in specs if spec.setting == name and spec.method["name"] != "fedselect"}
        for name in ("cifar10", "cifar10, twice the epochs")
    )
    assert once.keys() == set(BASELINES) and twice.keys() == once.keys() - {"ditto"}
    for name, spec in twice.items():
        assert spec.train.epochs == 2 * once[name].train.epochs
    assert {0.3, 0.5} <= {spec.build_method().alpha for spec in specs if spec.method["name"] == "fedselect"}
    before, after = (vars(runs["fedrep"].build_method()) for runs in (once, twice))
    assert [after[part] for part in ("head_epochs", "body_epochs")] == [
        2 * before[part] for part in ("head_epochs", "body_epochs")
    ]


def training(spec):
    dealt = spec.partition.get("allow_duplicate_classes", False)
    return dealt, spec.train.epochs, spec.train.augment, spec.model.get("stem"), spec.train.batch_size, spec.train.lr


def test_training_options_of_the_released_code_are_run_alone_at_preset_paper():
    made = [spec for spec in PAPER.specs(CODE, "paper", [0]) if spec.method["name"] == "fedselect"]
    assert {spec.setting: training(spec) for spec in made if spec.method == {"name": "fedselect"}} == ALONE
    code = {spec.setting: spec for spec in made if spec.method == {"name": "fedselect", "reading": "authors_code"}}
    assert {name: training(spec) for name, spec in code.items()} == {
        "cifar10": (True, 15, "crop_flip", "imagenet", 32, 0.05),
        "cifar10, code with clip_norm=3.5": (True, 15, "crop_flip", "imagenet", 32, 0.05),
        "cifar10, code at lr 0.01": (True, 15, "crop_flip", "imagenet", 32, 0.01),
    }
    assert [spec.train.clip_norm for spec in code.values()] == [None, 3.5, None]


@pytest.mark.parametrize("preset", PRESETS)
def test_all_options_of_the_code_together_include_its_assignment_of_classes(preset):
    """The clipped run too. The paper's text and every single option of the method keep distinct classes."""
    made = [
        spec for spec in PAPER.specs(CODE, preset, [0]) if spec.method["name"] == "fedselect" and spec.setting != DEAL
    ]
    dealt = [spec.partition.get("allow_duplicate_classes", False) for spec in made]
    assert dealt == [spec.method.get("reading") == "authors_code" for spec in made]
    clipped = [spec for spec in made if spec.train.clip_norm is not None]
    assert [(spec.train.clip_norm, spec.method.get("reading")) for spec in clipped] == (
        [] if preset == "ci" else [(3.5, "authors_code")]
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_a_training_option_is_tried_on_other_methods_with_the_same_setting(preset):
    """Except for the rate, which a search may have chosen for each method."""
    made = PAPER.specs(CODE, preset, [0])
    settings = {spec.setting for spec in made if spec.method == {"name": "fedselect"}} - {"cifar10"}
    assert settings == {f"cifar10, {name}" for name in shown(preset)}
    for name in settings:
        tried = {spec.method["name"]: spec for spec in made if spec.setting == name}
        assert set(tried) == {"fedselect", "local", "fedavg_ft", "fedper"}
        at_one_rate = [replace(spec, train=replace(spec.train, lr=0.1)) for spec in tried.values()]  # rates may differ
        assert len({str((training(spec), spec.data, spec.rounds)) for spec in at_one_rate}) == 1


def shown(preset):
    """The options that are run alone at a preset, as named in the settings."""
    names = {"partition": "allow_duplicate_classes=True", "epochs": "epochs=15", "augment": "augment=crop_flip"}
    names |= {"model": "stem=imagenet", "batch_size": "batch_size=32"}
    return [names[name] for name in CODE_TRAINING[preset]]


@pytest.mark.parametrize(("preset", "alone"), [("ci", 1), ("quick", 2), ("real", 3), ("paper", 5)])
def test_which_options_of_the_released_code_a_preset_runs_alone(preset, alone):
    """Smaller presets have the options that their data and networks allow: classes, epochs, and crops on 32x32."""
    made = PAPER.specs(CODE, preset, [0])
    own = {spec.setting for spec in made if spec.method == {"name": "fedselect"}}
    assert own == set(list(ALONE)[: 1 + alone])


SCOPED = ["01_main_comparison", "02_personalization_limit", "03_ablations", "04_training_size", "05_mask_overlap"]


@pytest.mark.parametrize("notebook", SCOPED)
def test_resnet18_is_also_ranked_tensor_by_tensor(notebook):
    """Each run of FedSelect with growing or random masks is run in both scopes, except the ends of claim 6."""
    made = [spec for spec in PAPER.specs(notebook, "paper", [0]) if spec.method["name"] == "fedselect"]
    made = [spec for spec in made if spec.method.get("masks") != "layers"]
    scopes = {"global": set(), "per_tensor": set()}
    for spec in made:
        fields = {k: v for k, v in spec.method.items() if k != "selection_scope"}
        if fields.get("p") != 1 and "buffer_policy" not in fields:
            scopes[spec.build_method().selection_scope].add(str((fields, spec.setting, spec.train, spec.data)))
    assert scopes["global"] == scopes["per_tensor"] != set()
    small = PAPER.specs(notebook, "real", [0])
    assert {spec.model["name"] for spec in small} == {"cnn_small"}
    assert not any("selection_scope" in spec.method for spec in small)


def test_options_replaced_by_overrides_are_not_run_alone():
    own = {spec.setting for spec in PAPER.specs(CODE, "paper", [0], {"epochs": 1, "lr": 0.1})}
    alone = ("allow_duplicate_classes=True", "augment=crop_flip", "stem=imagenet", "batch_size=32", "twice the epochs")
    assert own == {"cifar10", *(f"cifar10, {name}" for name in (*alone, "code with clip_norm=3.5"))}
    own = {spec.setting for spec in PAPER.specs(CODE, "paper", [0], {"clip_norm": 1.0})}
    assert not any("clip_norm" in name for name in own)


@pytest.mark.parametrize("size", [4_810, 136_874, 11_181_642], ids=["mlp", "cnn_small", "resnet18"])
def test_the_inclusive_limit_is_tested_by_an_update_that_ends_at_it(size):
    """The inclusive one then grows once more, in the networks of presets quick, real and paper."""
    made = [spec for spec in PAPER.specs(CODE, "paper", [0]) if spec.method.items() >= AT_THE_LIMIT.items()]
    strict, inclusive = (spec.build_method() for spec in made)
    assert (strict.limit_comparison, inclusive.limit_comparison) == ("strict", "inclusive")
    first = num_new(0, size, strict)
    assert first == strict.alpha * size == num_new(0, size, inclusive)
    assert num_new(first, size, strict) == 0 < num_new(first, size, inclusive)


def test_masks_of_preset_real_come_from_the_runs_with_validation_images():
    """Only these show whether training converged, so only they decide claims 15 and 16."""
    assert {spec.setting for spec in PAPER.specs("05_mask_overlap", "real", [0])} == {VALIDATED}
    assert {spec.setting for spec in PAPER.specs("05_mask_overlap", "paper", [0])} == {"cifar10"}
