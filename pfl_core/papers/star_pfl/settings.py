"""Star-PFL's settings, preset by preset."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pfl_core.study import search
from pfl_core.study.settings import PaperSettings, Setting
from pfl_core.training import Training

# Stated (section 9 of its specification): data, clients, all of them in each round, alphas, 60 / 20 / 20, E = 10, both
# windows and thresholds (they are the method's defaults). From the authors' code: the split, batch 32, plain SGD with
# rate 0.01. Ours: 400 rounds, for Table 3 needs at least 389 (the code's default 300 could not show them); the split
# follows the run's seed (theirs is always 5: `split_seed`), pixels / 255.
_AXIAL = Setting(
    data={"name": "organamnist"},
    partition={"name": "paired_dirichlet", "alpha": 0.1},
    model={"name": "lenet_star"},
    train=Training(lr=0.01, epochs=10, batch_size=32),
    clients=20,
    rounds=400,
)
_SAGITAL = replace(_AXIAL, data={"name": "organsmnist"})
# Figure 2: groups of clients that hold one label; how many is not stated. Ours: four groups of three
_LABELS = replace(_SAGITAL, partition={"name": "label_groups", "groups": 4}, clients=12, rounds=20)
_PAPER = {"axial": _AXIAL, "sagital": _SAGITAL, "traces": replace(_SAGITAL, rounds=200), "labels": _LABELS}

# real: MNIST stands in for Axial and Fashion-MNIST for Sagital, with the paper's network, clients, split and training;
# 250 images a client and 15 rounds. The traces have as many images a client as Sagital, and 60 rounds.
STAND_INS = {"axial": "mnist", "sagital": "fashion_mnist", "traces": "fashion_mnist", "labels": "fashion_mnist"}
SAMPLED = "paired_sample"  # paired_dirichlet on so many images a client
_REAL = {
    name: replace(
        _PAPER[name],
        data={"name": STAND_INS[name]},
        partition={"name": SAMPLED, "images": images, "alpha": 0.1},
        rounds=rounds,
    )
    for name, images, rounds in (("axial", 250, 15), ("sagital", 250, 15), ("traces", 1261, 60))
}
_REAL["labels"] = replace(
    _LABELS, data={"name": STAND_INS["labels"]}, partition={**_LABELS.partition, "images": 500}, rounds=10
)
# quick: clothes of 14x14 pixels for everything, which come with the package; 150 images a client, a small net with
# batch norm, larger steps, half of the local epochs, which still fill a client's window. Chosen with Local, FedAvg
# and FedBN alone, all at this rate, before any other method was run: the best of them stays below 95 %, and the best
# and the worst differ by more than twice the deviation over seeds.
_QUICK = replace(
    _AXIAL,
    data={"name": "fashion_small"},
    partition={"name": SAMPLED, "images": 150, "alpha": 0.1},
    model={"name": "lenet_small"},
    train=Training(lr=0.05, epochs=5, batch_size=32),
    rounds=12,
)
_SMALL = {
    "axial": _QUICK,
    "sagital": _QUICK,
    "traces": replace(_QUICK, rounds=30),
    "labels": replace(_QUICK, partition={**_LABELS.partition, "images": 150}, clients=12, rounds=10),
}
# ci: all of the handwritten digits, six clients, three rounds
_TINY = replace(
    _QUICK,
    data={"name": "digits"},
    partition=_AXIAL.partition,
    train=Training(lr=0.1, epochs=2, batch_size=32),
    clients=6,
    rounds=3,
)
_CI = {name: replace(_TINY, rounds=6 if name == "traces" else 3) for name in _SMALL}
_CI["labels"] = replace(_TINY, partition=_LABELS.partition, clients=8, rounds=2)

# What a method has of its own here: method -> fields. LotteryFL: the public code's target for MNIST-like sets leaves a
# tenth, Table 3 hints at well above a half (68 % sent on average), so the code's other value; all of it is the default
METHOD_FIELDS: dict[str, dict[str, Any]] = {
    "fedavg": {"client_weighting": "samples"},
    "lotteryfl": {"target_density": 0.5},
}

SETTINGS = PaperSettings(
    "star_pfl",
    {"paper": _PAPER, "real": _REAL, "quick": _SMALL, "ci": _CI},
    method_fields=METHOD_FIELDS,  # the baselines train as Star-PFL does (section 7)
    searched=search.read(search.searched_path("star_pfl")),
)

BASELINES = ("local", "fedavg", "fedbn", "fedap", "lotteryfl")  # Tables 2 and 3
