"""FedSelect's settings by preset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pfl_core.papers.plans import varied
from pfl_core.study import search
from pfl_core.study.settings import PaperSettings, Setting
from pfl_core.training import Training

# FedSelect, CVPR 2024.
# Paper: clients, classes per client, 100 training images per client, ResNet18, 200 rounds, 3 local epochs, plain SGD.
# Authors' code: lr 0.05, ImageNet constants.
# Not in the paper: 100 test images per class and client; no augmentation; no max-pool in ResNet18 on 32x32 (with it
# 62 % of the parameters could never move); batches of 25, which divide the clients' images. The released code's batches
# of 32 leave a last batch of 4. With it ResNet18's batch norm makes training diverge in the rounds that select the
# masks; notebook 07 also runs them.
_MAIN = Setting(
    data={"name": "cifar10", "normalise": "imagenet"},
    partition={"name": "shards", "classes_per_client": 2, "train_per_class": 50, "test_per_class": 100},
    model={"name": "resnet18", "stem": "no_pool"},
    train=Training(lr=0.05, epochs=3, batch_size=25),
    clients=10,
    rounds=200,
)
_PAPER = {
    "cifar10": _MAIN,
    "cifar10_c": varied(_MAIN, data={"corrupt": True, "corrupt_severity": 3}),
    # 100 classes, 500 / 100 images each; 20 % of the training images over 20 clients = 50 per class and client
    "mini_imagenet": varied(
        _MAIN,
        data={"name": "mini_imagenet", "normalise": "imagenet", "resize": 84},
        partition={"name": "shards", "classes_per_client": 10, "train_per_class": 50, "test_per_class": 50},
        model={"name": "resnet18", "stem": "imagenet"},
        clients=20,
    ),
    # one client per domain, about 2,000 training images each (half of the domain, by the seed); not in the paper: lr
    "office_home": varied(
        _MAIN,
        data={"name": "office_home", "normalise": "imagenet", "resize": 224},
        partition={"name": "by_source", "pool": "joined", "test": 0.5},
        model={"name": "resnet18", "stem": "imagenet", "pretrained": True},
        lr=0.01,
        batch_size=32,
        partial_batch="merge",
        clients=4,
        rounds=30,
    ),
}


def _workshop(setting: Setting, **images: int) -> dict[str, Setting]:
    """The workshop's experiments with two and four classes per client, and other numbers of images if given."""
    return {f"workshop s={s}": varied(setting, partition={"classes_per_client": s, **images}) for s in (2, 4)}


# The workshop version.
# Paper: ten clients, all in each round, 2 or 4 classes per client, 20 training and 100 test images per class, a
# pretrained ResNet18, 200 rounds, 5 local epochs. Section 3 uses the settings that each method's authors recommend.
# Not in the paper: one common rate, as above, and batches of 20, which divide the 40 or 80 images of a client.
_WORKSHOP = varied(_MAIN, model={"pretrained": True}, epochs=5, batch_size=20)
_PAPER |= _workshop(_WORKSHOP, train_per_class=20)
# Not in the paper: 50 validation images per class and client, as many as for training, which no client trains on.
# Training is the same as without them.
WITH_VALIDATION = ", with validation"
VALIDATED, CORRUPTED, FEW_IMAGES = (
    f"{name}{WITH_VALIDATION}" for name in ("cifar10", "cifar10_c", "cifar10, 20 images")
)
_PAPER[VALIDATED] = varied(_MAIN, partition={"val_per_class": 50})
_PAPER[CORRUPTED] = varied(_PAPER["cifar10_c"], partition={"val_per_class": 50})
_PAPER[FEW_IMAGES] = varied(_PAPER[VALIDATED], partition={"train_per_class": 10}, batch_size=20)  # Figure 3
# real: the paper's clients and images, a small network without batch norm and not pretrained, so the released code's
# batches of 32 can be used. 40 rounds, every second scored; with validation images 100 rounds, every fifth scored.
_REAL = {
    name: varied(_PAPER[name], model={"name": "cnn_small"}, batch_size=32, rounds=40, eval_every=2)
    for name in ("cifar10", "cifar10_c", "workshop s=2", "workshop s=4", VALIDATED, CORRUPTED, FEW_IMAGES)
}
for _name in (VALIDATED, CORRUPTED, FEW_IMAGES):
    _REAL[_name] = varied(_REAL[_name], rounds=100, eval_every=5)
# quick: Fashion-MNIST of 14x14 pixels, included in the package, and a small dense network, which trains in seconds. Ten
# clients as in the paper, but four classes each with ten images (workshop: two or four with five), because with two
# classes almost every baseline is right on 95 % or more. Chosen with Local, FedAvg, FedAvg + FT, FedPer, FedRep and
# Ditto only, before any other method was run: the best of them stays below about 95 %, and the best and the worst
# differ by more than twice the standard deviation over seeds. Not in the paper: ten validation images per class, which
# no client trains on, for the search of rates.
_QUICK = varied(
    _MAIN,
    data={"name": "fashion_small"},
    partition={"classes_per_client": 4, "train_per_class": 10, "test_per_class": 50, "val_per_class": 10},
    model={"name": "mlp"},
    lr=0.1,
    batch_size=10,
    rounds=40,
)
# ci: handwritten digits of 8x8 pixels, five rounds
_CI = varied(
    _QUICK,
    data={"name": "digits"},
    partition={"name": "shards", "classes_per_client": 2, "train_per_class": 20, "test_per_class": 10},
    epochs=1,
    rounds=5,
)

READINGS = {
    "authors_code": {
        "epochs": 15,
        "lr": 0.05,
        "batch_size": 32,
        "augment": "crop_flip",
        "model": {"stem": "imagenet"},  # torchvision's network unchanged on 32x32 images
        "partition": {"allow_duplicate_classes": True},  # a client may have a single class
    }
}
AT_ANY_SIZE = ("partition",)  # options of a reading at every preset; the others apply at preset paper only


def with_method(method: Mapping[str, Any], preset: str, setting: str) -> dict[str, Any]:
    """The partition of a method's reading, and at preset paper also its training and network."""
    options: dict[str, Any] = READINGS.get(method.get("reading", "paper"), {})
    if setting == "office_home":  # a client is a domain with all classes
        options = {name: value for name, value in options.items() if name != "partition"}
    return options if preset == "paper" else {k: v for k, v in options.items() if k in AT_ANY_SIZE}


SETTINGS = PaperSettings(
    "fedselect",
    {  # preset -> the paper's data set, or the workshop's experiment -> setting
        "paper": _PAPER,
        "real": _REAL,
        "quick": {"cifar10": _QUICK} | _workshop(varied(_QUICK, epochs=2), train_per_class=5),
        "ci": {"cifar10": _CI} | _workshop(varied(_CI, epochs=2)),
    },
    method_fields={"fedavg_ft": {"finetune_epochs": 3}},  # not in the paper: as many as the local epochs
    with_method=with_method,
    searched=search.read(search.searched_path("fedselect")),
)

# Table 1; the claims are about these
BASELINES = ("local", "fedavg", "fedavg_ft", "ditto", "fedpac", "fedrep", "fedper", "fedbabu", "lg_fedavg")
WORKSHOP_BASELINES = ("fedavg", "lotteryfl", "fedbabu", "fedrep", "fedper", "ditto", "lg_fedavg")  # its Table 1
LAYERS = {  # Table 3's layers A to D by network; not in the paper: its appendix that names them was not available
    "resnet18": {"A": "layer1", "B": "layer2", "C": "layer3", "D": "layer4"},
    "cnn_small": {"A": "conv1", "B": "conv2", "C": "fc1", "D": "head"},
    "mlp": {"A": "fc1", "D": "head"},
}
