"""FedSelect's settings have the values of its paper, and with the code's reading those of the released code."""

import pytest

from pfl_core.papers.fedselect.experiments import SIZES
from pfl_core.papers.fedselect.paper import PAPER
from pfl_core.papers.fedselect.settings import SETTINGS
from pfl_core.runs import build


@pytest.mark.realdata("cifar10")
def test_clients_have_100_training_images_at_preset_real():
    made = SETTINGS.spec("fedselect", preset="real")
    _, fed, _ = build(made)
    assert fed.splits["train"].sizes.tolist() == [100] * 10
    assert fed.splits["test"].sizes.tolist() == [200] * 10


def test_fedselect_has_the_stated_values_of_its_paper():
    """Clients, classes, images, rounds and epochs of the paper; the rate of the authors' code; batches of 25."""
    frame = SETTINGS.setting("paper", "cifar10")
    assert (frame.clients, frame.rounds, frame.participation) == (10, 200, 1.0)
    assert (frame.train.epochs, frame.train.batch_size, frame.train.lr) == (3, 25, 0.05)
    assert frame.train.momentum == frame.train.weight_decay == 0
    assert frame.partition["classes_per_client"] * frame.partition["train_per_class"] == 100
    assert frame.model["name"] == "resnet18"
    mini = SETTINGS.setting("paper", "mini_imagenet")
    assert (mini.clients, mini.partition["classes_per_client"], mini.partition["train_per_class"]) == (20, 10, 50)
    office = SETTINGS.setting("paper", "office_home")
    assert (office.clients, office.rounds, office.train.lr, office.model["pretrained"]) == (4, 30, 0.01, True)
    assert office.partition == {"name": "by_source", "pool": "joined", "test": 0.5}  # the seed says which half


def test_the_real_preset_has_the_papers_data_and_partition():
    for name, real in SETTINGS.settings["real"].items():
        full = SETTINGS.setting("paper", name)
        assert (real.data, real.partition) == (full.data, full.partition), name


def test_a_readings_training_applies_at_preset_paper_only():
    code = {p: SETTINGS.spec("fedselect", preset=p, reading="authors_code").train for p in ("paper", "real")}
    assert (code["paper"].epochs, code["paper"].augment) == (15, "crop_flip")
    assert (code["real"].epochs, code["real"].augment) == (3, "none")
    asked = SETTINGS.spec("fedselect", preset="paper", reading="authors_code", overrides={"epochs": 2}).train
    assert (asked.epochs, asked.augment) == (2, "crop_flip")


def test_given_fields_win_over_the_papers_settings():
    assert SETTINGS.spec("fedavg_ft", preset="ci").build_method().finetune_epochs == 3
    assert SETTINGS.spec("fedavg_ft", preset="ci", finetune_epochs=1).build_method().finetune_epochs == 1
    code = SETTINGS.spec("fedselect", preset="ci", reading="authors_code", p=0.5).build_method()
    assert (code.p, code.alpha, code.selection_scope) == (0.5, 0.8, "per_tensor")


@pytest.mark.parametrize("name", ["cifar10", "office_home"])
def test_the_released_codes_reading_has_its_training_and_its_network(name):
    """At preset paper; at other presets only its assignment of classes. Other options stay those of the data set."""
    code = SETTINGS.spec("fedselect", preset="paper", setting=name, reading="authors_code")
    text = SETTINGS.spec("fedselect", preset="paper", setting=name)
    assert (code.train.epochs, code.train.lr, code.train.batch_size, code.train.augment) == (15, 0.05, 32, "crop_flip")
    assert code.model == {**text.model, "stem": "imagenet"}
    assert code.partition == {**text.partition, **({"allow_duplicate_classes": True} if name == "cifar10" else {})}
    small = [SETTINGS.spec("fedselect", preset="quick", reading=reading) for reading in ("paper", "authors_code")]
    assert len({str((one.train, one.model)) for one in small}) == 1
    assert [one.partition.get("allow_duplicate_classes") for one in small] == [None, True]


def test_batches_divide_the_clients_images_wherever_there_is_batch_norm():
    """A last batch of 4 images made ResNet18 diverge; `cnn_small` has no batch norm and keeps the code's 32."""
    for name, frame in SETTINGS.settings["paper"].items():
        split, batch = frame.partition, frame.train.batch_size
        if name == "office_home":  # whole domains: no size divides them all
            assert (batch, frame.train.partial_batch) == (32, "merge")
        else:
            assert (split["classes_per_client"] * split["train_per_class"]) % batch == 0, name
    for size in SIZES["paper"]:
        assert size % SETTINGS.setting("paper", "cifar10").train.batch_size in (0, size), size
    assert {frame.train.batch_size for frame in SETTINGS.settings["real"].values()} == {32}


def test_the_codes_batches_of_32_are_also_run():
    made = next(
        one for one in PAPER.specs("07_paper_vs_code", "paper", (0,)) if one.setting == "cifar10, batch_size=32"
    )
    assert (made.train.batch_size, made.train.epochs, made.method) == (32, 3, {"name": "fedselect"})
