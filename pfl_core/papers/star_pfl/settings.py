"""Star-PFL's settings, preset by preset."""

from __future__ import annotations

from typing import Any

from pfl_core.papers.plans import varied
from pfl_core.study import search
from pfl_core.study.settings import PaperSettings, Setting
from pfl_core.training import Training

# From the paper: data, 20 clients, all of them in each round, values of α, 60 / 20 / 20 split, E = 10, both windows and
# thresholds (the method's defaults). From the authors' code: the Dirichlet split, batch size 32, plain SGD with
# learning rate 0.01. Not in the paper: 400 rounds (Table 3 needs at least 389, the code's default is 300); a split that
# follows the run's seed (`split_seed=5` is the authors'); pixels / 255.
_AXIAL = Setting(
    data={"name": "organamnist"},
    partition={"name": "paired_dirichlet", "alpha": 0.1},
    model={"name": "lenet_star"},
    train=Training(lr=0.01, epochs=10, batch_size=32),
    clients=20,
    rounds=400,
)
_SAGITAL = varied(_AXIAL, data={"name": "organsmnist"})
# Figure 2: groups of clients that hold one label. Not in the paper: four groups of three clients.
_LABELS = varied(_SAGITAL, partition={"name": "label_groups", "groups": 4}, clients=12, rounds=20)
_PAPER = {"axial": _AXIAL, "sagital": _SAGITAL, "traces": varied(_SAGITAL, rounds=200), "labels": _LABELS}

# real: MNIST stands in for Axial, Fashion-MNIST for Sagital; the paper's network, clients, split and training;
# 250 images a client, 60 rounds. The traces use as many images a client as Sagital has.
SAMPLED = "paired_sample"  # paired_dirichlet with a given number of images for each client
_REAL = {
    name: varied(
        _PAPER[name], data={"name": data}, partition={"name": SAMPLED, "images": images, "alpha": 0.1}, rounds=60
    )
    for name, data, images in (
        *(("axial", "mnist", 250), ("sagital", "fashion_mnist", 250), ("traces", "fashion_mnist", 1261)),
    )
}
_REAL["labels"] = varied(_LABELS, data={"name": "fashion_mnist"}, partition={"images": 500}, rounds=10)
# quick: Fashion-MNIST at 14x14 pixels, part of the package, for all tasks; 100 images a client, a small network with
# batch norm, a larger learning rate, 5 local epochs, which still fill a client's window. Chosen with Local, FedAvg and
# FedBN alone, at this learning rate, before any other method was run. Criteria: the best of them stays below 95 %; the
# best and the worst differ by more than twice the deviation over seeds.
_QUICK = varied(
    _AXIAL,
    data={"name": "fashion_small"},
    partition={"name": SAMPLED, "images": 100, "alpha": 0.1},
    model={"name": "lenet_small"},
    lr=0.05,
    epochs=5,
    rounds=10,
)
_SMALL = {
    "axial": _QUICK,
    "sagital": _QUICK,
    "traces": varied(_QUICK, rounds=20),
    "labels": varied(_QUICK, partition={**_LABELS.partition, "images": 100}, clients=12),
}
# ci: all handwritten digits, six clients, three rounds
_TINY = varied(_QUICK, data={"name": "digits"}, partition=_AXIAL.partition, lr=0.1, epochs=2, clients=6, rounds=3)
_CI = {name: varied(_TINY, rounds=6 if name == "traces" else 3) for name in _SMALL}
_CI["labels"] = varied(_TINY, partition=_LABELS.partition, clients=8, rounds=2)

# Method -> fields that differ from the class's defaults. LotteryFL: the public code has two targets. For MNIST-like
# data it keeps a tenth, but in Table 3 LotteryFL sends 68 % on average, so the other target, one half, is used.
METHOD_FIELDS: dict[str, dict[str, Any]] = {
    "fedavg": {"client_weighting": "samples"},
    "lotteryfl": {"target_density": 0.5},
}

SETTINGS = PaperSettings(
    "star_pfl",
    {"paper": _PAPER, "real": _REAL, "quick": _SMALL, "ci": _CI},
    method_fields=METHOD_FIELDS,  # the baselines train as Star-PFL does
    searched=search.read(search.searched_path("star_pfl")),
)

BASELINES = ("local", "fedavg", "fedbn", "fedap", "lotteryfl")  # Tables 2 and 3
