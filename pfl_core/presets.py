"""Settings by paper, data set and preset: what differs between ``ci``, ``quick``, ``real`` and ``paper``.

A setting is everything of a run but its method and seed. Every paper value says where it comes from; the smaller
presets keep the paper's clients, partition and optimizer, and say what they shrink.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from pfl_core.algorithm import checked, did_you_mean
from pfl_core.runs.spec import Part, RunSpec
from pfl_core.training import Training

PRESETS = ("ci", "quick", "real", "paper")


@dataclass(frozen=True)
class Setting:
    """A run's frame; see RunSpec for the fields."""

    data: Part
    partition: Part
    model: Part
    train: Training
    clients: int
    rounds: int
    participation: float = 1.0
    sampling: str = "each_round"
    eval_every: int = 1
    novel: float = 0.0


# FedSelect, CVPR 2024. Stated: clients, classes per client, 100 training images a client, ResNet18, 200 rounds, 3 local
# epochs, plain SGD. From the authors' code: lr 0.05, batch 32, ImageNet constants. Ours: 100 test images per class and
# client; no max-pool in ResNet18 on 32x32 (with it 62 % of the parameters could never move); no augmentation.
_FEDSELECT = Setting(
    data={"name": "cifar10", "normalise": "imagenet"},
    partition={"name": "shards", "classes_per_client": 2, "train_per_class": 50, "test_per_class": 100},
    model={"name": "resnet18", "stem": "no_pool"},
    train=Training(lr=0.05, epochs=3, batch_size=32),
    clients=10,
    rounds=200,
)
_FEDSELECT_PAPER = {
    "cifar10": _FEDSELECT,
    "cifar10_c": replace(_FEDSELECT, data={**_FEDSELECT.data, "corrupt": True, "corrupt_severity": 3}),
    # 100 classes in 500/100 images; 20 % of the training images over 20 clients = 50 per class and client
    "mini_imagenet": replace(
        _FEDSELECT,
        data={"name": "mini_imagenet", "normalise": "imagenet", "resize": 84},
        partition={"name": "shards", "classes_per_client": 10, "train_per_class": 50, "test_per_class": 50},
        model={"name": "resnet18", "stem": "imagenet"},
        clients=20,
    ),
    # one client per domain, about 2,000 training images each (half of the domain); lr is our guess
    "office_home": replace(
        _FEDSELECT,
        data={"name": "office_home", "normalise": "imagenet", "resize": 224},
        partition={"name": "by_source"},
        model={"name": "resnet18", "stem": "imagenet", "pretrained": True},
        train=Training(lr=0.01, epochs=3, batch_size=32),
        clients=4,
        rounds=30,
    ),
}
# real: the paper's clients and images, a small network, 40 of 200 rounds, scored every second one
_FEDSELECT_REAL = replace(_FEDSELECT, model={"name": "cnn_small"}, rounds=40, eval_every=2)
# quick: handwritten digits of 8x8 pixels, which need no file, and a small dense net, which trains in seconds; the same
# clients with 20 images each (with 100 every method but FedAvg solves two digits), 40 rounds, larger steps
_FEDSELECT_QUICK = replace(
    _FEDSELECT,
    data={"name": "digits"},
    partition={"name": "shards", "classes_per_client": 2, "train_per_class": 10, "test_per_class": 25},
    model={"name": "mlp"},
    train=Training(lr=0.1, epochs=3, batch_size=10),
    rounds=40,
)
_FEDSELECT_CI = replace(
    _FEDSELECT_QUICK,
    partition={"name": "shards", "classes_per_client": 2, "train_per_class": 20, "test_per_class": 10},
    train=Training(lr=0.1, epochs=1, batch_size=10),
    rounds=5,
)

# FedPeWS. Stated (section 9 of its specification): data, clients, rounds, rates, batch sizes. Ours: one local epoch,
# the geometry of the synthetic sets, pixels scaled to [-1, 1], T = 500 for four clients (A10, 8.1, 8.3, Fig 5).
_PEWS = Setting(
    data={"name": "synthetic_32k"},
    partition={"name": "by_class"},
    model={"name": "fc_pews"},
    train=Training(lr=0.001, batch_size=32),
    clients=2,
    rounds=200,
)
_PEWS_SMALL = replace(_PEWS, data={"name": "synthetic_3200"}, train=Training(lr=0.01, batch_size=8))
_CIFAR_MNIST = Setting(
    data={"name": "cifar_mnist", "normalise": "half"},
    partition={"name": "by_source"},
    model={"name": "conv_pews"},
    train=Training(lr=0.01, batch_size=64),
    clients=2,
    rounds=300,
)
_FEDPEWS_PAPER = {
    "lr_server=1": _PEWS,
    "lr_server=0.5": replace(_PEWS, rounds=250),
    "lr_server=0.25": replace(_PEWS, rounds=400),
    "lr_server=0.1": replace(_PEWS_SMALL, rounds=500),
    "four clients": replace(_PEWS, clients=4, rounds=500),
    "activations": replace(_PEWS, rounds=250),
    "cifar_mnist": _CIFAR_MNIST,
    "path_oct_tissue": replace(_CIFAR_MNIST, data={"name": "path_oct_tissue", "normalise": "half"}, clients=3),
    "dirichlet": replace(_CIFAR_MNIST, partition={"name": "dirichlet", "alpha": 0.5}, clients=10),
    "classes of cifar10": replace(
        _CIFAR_MNIST,
        data={"name": "cifar10", "normalise": "half"},
        partition={"name": "by_class", "order": "shuffled"},
        clients=5,
    ),
    "classes of cifar100": replace(
        _CIFAR_MNIST,
        data={"name": "cifar100", "normalise": "half"},
        partition={"name": "by_class", "order": "shuffled"},
        clients=20,
    ),
    # the rate falls to a tenth at rounds 200 and 400
    "many clients": replace(
        _CIFAR_MNIST,
        partition={"name": "dirichlet", "alpha": 0.5},
        train=Training(lr=0.01, batch_size=64, milestones=(0.4, 0.8)),
        clients=200,
        rounds=500,
        participation=0.1,
    ),
}
# real: the paper's network on a quarter of the images, 40 rounds (many clients: all images, 100 rounds, scored every
# fifth; classes of CIFAR-10: 200 / 100 images each); the medical files are not here, so three real sources stand in for
# them; the synthetic settings are the paper's
_FEDPEWS_REAL = _FEDPEWS_PAPER | {
    name: replace(
        _FEDPEWS_PAPER[name],
        data={**_FEDPEWS_PAPER[name].data, "name": source, "samples_per_class": [100, 50]},
        rounds=40,
    )
    for name, source in (
        ("cifar_mnist", "cifar_mnist"),
        ("path_oct_tissue", "mnist+fashion_mnist+cifar10"),
        ("dirichlet", "cifar_mnist"),
    )
}
_FEDPEWS_REAL["many clients"] = replace(_FEDPEWS_PAPER["many clients"], rounds=100, eval_every=5)
_FEDPEWS_REAL["classes of cifar10"] = replace(
    _FEDPEWS_PAPER["classes of cifar10"],
    partition={"name": "by_class", "order": "shuffled", "train_per_class": 200, "test_per_class": 100},
    rounds=40,
)
# quick: a tenth of the synthetic points and larger steps; handwritten digits and a small dense net for the images
_PEWS_QUICK = replace(_PEWS_SMALL, train=Training(lr=0.02, batch_size=16), rounds=40)
_DIGITS = replace(
    _PEWS,
    data={"name": "digits"},
    partition={"name": "dirichlet", "alpha": 0.5},
    model={"name": "mlp", "hidden": [64, 32]},
    train=Training(lr=0.1, batch_size=8),
    clients=10,
    rounds=40,
)
_FEDPEWS_QUICK = {
    **{setting: _PEWS_QUICK for setting in ("lr_server=1", "lr_server=0.5", "lr_server=0.25", "lr_server=0.1")},
    "four clients": replace(_PEWS_QUICK, clients=4, rounds=60),
    "activations": _PEWS_QUICK,
    "cifar_mnist": replace(_PEWS_QUICK, rounds=20),
    "path_oct_tissue": replace(_PEWS_QUICK, clients=4, rounds=20),
    "dirichlet": _DIGITS,
    "classes of cifar10": replace(_DIGITS, partition={"name": "by_class", "order": "shuffled"}, clients=5),
    "many clients": replace(
        _DIGITS,
        train=Training(lr=0.1, batch_size=4, milestones=(0.4, 0.8)),
        clients=40,
        rounds=60,
        participation=0.1,
    ),
}
_FEDPEWS_CI = {name: replace(setting, rounds=3) for name, setting in _FEDPEWS_QUICK.items()}

# FedPeWS's targets, percent of the test samples: setting -> Tables 2 and 6
TARGETS = {"lr_server=1": 99.0, "lr_server=0.5": 90.0, "lr_server=0.25": 75.0, "lr_server=0.1": 99.0}

SETTINGS: dict[tuple[str, str], dict[str, Setting]] = {  # (paper, preset) -> data set of the paper -> setting
    ("fedselect", "paper"): _FEDSELECT_PAPER,
    ("fedselect", "real"): {
        "cifar10": _FEDSELECT_REAL,
        "cifar10_c": replace(_FEDSELECT_REAL, data=_FEDSELECT_PAPER["cifar10_c"].data),
    },
    ("fedselect", "quick"): {"cifar10": _FEDSELECT_QUICK},
    ("fedselect", "ci"): {"cifar10": _FEDSELECT_CI},
    ("fedpews", "paper"): _FEDPEWS_PAPER,
    ("fedpews", "real"): _FEDPEWS_REAL,
    ("fedpews", "quick"): _FEDPEWS_QUICK,
    ("fedpews", "ci"): _FEDPEWS_CI,
}

# A method's own settings where a paper uses others than the class's defaults: (paper, method) -> fields.
METHODS: dict[tuple[str, str], dict[str, Any]] = {
    ("fedselect", "fedavg_ft"): {"finetune_epochs": 3},  # not stated; as many as its local epochs (ours)
    ("fedpews", "fedavg"): {"client_weighting": "uniform"},
    ("pfedgate", "fedavg"): {"client_weighting": "samples"},
    ("pfedgate", "fedavg_ft"): {"client_weighting": "samples", "finetune_epochs": 1},
    ("star_pfl", "fedavg"): {"client_weighting": "samples"},
}
# Training that goes with a reading: (paper, reading) -> fields of Training.
READINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("fedselect", "authors_code"): {"epochs": 15, "lr": 0.05, "batch_size": 32, "augment": "crop_flip"},
}
TRAINING = {f.name for f in fields(Training)}


def target(spec: RunSpec) -> float | None:
    """The accuracy (percent) whose first round the paper's tables give for this run's column; None if they do not."""
    return TARGETS.get(spec.setting) if spec.paper == "fedpews" else None


def check_preset(preset: str) -> None:
    """Raise ValueError if there is no such preset."""
    if preset not in PRESETS:
        raise ValueError(f"unknown preset {preset!r}{did_you_mean(preset, PRESETS)}; choose from {', '.join(PRESETS)}")


def setting(paper: str, preset: str, dataset: str | None = None) -> Setting:
    """The frame of a paper's experiment; ``dataset`` is the paper's, default its first.

    Raises ValueError for an unknown paper, preset or data set.
    """
    check_preset(preset)
    papers = sorted({name for name, _ in SETTINGS})
    if paper not in papers:
        raise ValueError(f"no settings for paper {paper!r}{did_you_mean(paper, papers)}; there are {', '.join(papers)}")
    known = SETTINGS[paper, preset]
    name = dataset or next(iter(known))
    if name not in known:
        raise ValueError(f"{paper} has no data set {name!r} at preset {preset}; it has {', '.join(known)}")
    return known[name]


def spec(
    paper: str,
    method: str,
    *,
    preset: str,
    dataset: str | None = None,
    seed: int = 0,
    overrides: Mapping[str, Any] | None = None,
    **settings: Any,
) -> RunSpec:
    """A run of a paper's experiment: its frame, the paper's fields of the method, then ``settings`` of ours.

    ``overrides`` replaces fields of the frame (rounds, clients, participation, ...) or of its training (lr, epochs,
    ...) by name; parts take a name or a dictionary. Raises ValueError for unknown names.
    """
    name = dataset or next(iter(SETTINGS.get((paper, preset), [""])))
    frame = setting(paper, preset, dataset)
    part = {"name": method} | METHODS.get((paper, method), {}) | settings
    made = RunSpec(
        method=part,
        **{f.name: getattr(frame, f.name) for f in fields(frame)},
        seed=seed,
        paper=paper,
        preset=preset,
        setting=name,
    )
    training = READINGS.get((paper, settings.get("reading", "paper")), {}) if preset == "paper" else {}
    return override(made, {**training, **(overrides or {})})


def override(made: RunSpec, changes: Mapping[str, Any]) -> RunSpec:
    """``made`` with fields of the run or of its training replaced; raises ValueError for unknown names."""
    own = {f.name for f in fields(RunSpec)} - {"train"}
    for name in changes:
        if name not in own | TRAINING:
            known = ", ".join(sorted(own | TRAINING))
            raise ValueError(f"no setting {name!r}{did_you_mean(name, own | TRAINING)}; overrides may set {known}")
    train = replace(made.train, **checked(Training, {k: v for k, v in changes.items() if k in TRAINING}, "training"))
    rest = {k: {"name": v} if isinstance(v, str) and k in PARTS else v for k, v in changes.items() if k in own}
    return replace(made, train=train, **checked(RunSpec, rest, "run"))


PARTS = ("method", "data", "partition", "model")
