"""One federation for all methods, preset by preset. No paper has it: every value is a choice of this project.

Clients have four of ten classes and equally many images, take part in every round, and train three local epochs with
plain SGD. So no method's weights, momentum or sampling matter, and the methods differ in nothing but themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pfl_core.papers.plans import varied
from pfl_core.study import search
from pfl_core.study.settings import PaperSettings, Setting
from pfl_core.training import Training

# quick: data, partition and network of FedSelect's quick preset. That paper's settings say how they were chosen: with
# few methods, all of which stay below 95 % and differ by more than twice the deviation over seeds.
_QUICK = Setting(
    data={"name": "fashion_small"},
    partition={
        "name": "shards",
        "classes_per_client": 4,
        "train_per_class": 10,
        "test_per_class": 50,
        "val_per_class": 10,
    },
    model={"name": "mlp"},
    train=Training(lr=0.1, epochs=3, batch_size=10),
    clients=10,
    rounds=30,
    eval_every=5,
)
_CI = varied(
    _QUICK, data={"name": "digits"}, partition={"test_per_class": 20}, epochs=1, clients=5, rounds=3, eval_every=1
)
# real: 200 training images a client. Fashion-MNIST has a network with batch norm, so that FedBN differs from FedAvg.
_FASHION = varied(
    _QUICK,
    data={"name": "fashion_mnist", "normalise": "mnist"},
    partition={"train_per_class": 50, "test_per_class": 100, "val_per_class": 25},
    model={"name": "lenet_star"},
    batch_size=25,
    clients=20,
    rounds=50,
    eval_every=2,
)
_CIFAR = varied(_FASHION, data={"name": "cifar10", "normalise": "cifar10"}, model={"name": "cnn_small"})

# As many epochs of fine-tuning as local epochs. FedMask's values are those of pFedGate's settings for CIFAR-10.
FIELDS: dict[str, dict[str, Any]] = {"fedavg_ft": {"finetune_epochs": 3}, "fedmask": {"layers": 2, "lr_mask": 50.0}}
SMALL: dict[str, dict[str, Any]] = {"pfedgate": {"eval_batch_size": 8}}  # at ci and quick; about as in training
SHORT: dict[str, dict[str, Any]] = {  # at ci, where nothing is searched
    "fedap": {"pretrain_epochs": 2},
    "fedpews": {"tau": 0.5},
    "fedpews_fixed": {"tau": 0.5},
    "pfedgate": {"scale_bias_init": 3.0},
}
# FedMD's public images: another data set, so that no client's images are public.
PUBLIC: dict[str, dict[str, Any]] = {
    "digits": {"public": "fashion_small", "public_samples": 50},
    "fashion_small": {"public": "digits", "public_samples": 200},
    "fashion_mnist": {"public": "mnist", "public_normalise": "mnist", "public_samples": 500},
    "cifar10": {"public": "fashion_mnist", "public_normalise": "mnist", "public_samples": 500},
}


def with_method(method: Mapping[str, Any], preset: str, setting: str) -> dict[str, Any]:
    """The method's fields that differ from its defaults."""
    tables = [FIELDS]
    if preset in ("ci", "quick"):
        tables.append(SMALL)
    if preset == "ci":
        tables.append(SHORT)
    tables.append({"fedmd": PUBLIC[setting]})
    return {field: value for table in tables for field, value in table.get(method["name"], {}).items()}


SETTINGS = PaperSettings(
    "across",
    {
        "real": {"fashion_mnist": _FASHION, "cifar10": _CIFAR},
        "quick": {"fashion_small": _QUICK},
        "ci": {"digits": _CI},
    },
    with_method=with_method,
    searched=search.read(search.searched_path("across")),
)
