"""FedPeWS's settings by preset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pfl_core.papers.plans import varied
from pfl_core.study import search
from pfl_core.study.methods import NAMES
from pfl_core.study.settings import PaperSettings, Setting
from pfl_core.training import Training

# Paper: data, clients, rounds, rates, batch sizes.
# Not in the paper: one local epoch, the geometry of the synthetic sets, pixels scaled to [-1, 1], T = 500 for four
# clients (Figure 5), images scored every fifth round (no table counts the rounds to a target there).
_PEWS = Setting(
    data={"name": "synthetic_32k"},
    partition={"name": "by_class"},
    model={"name": "fc_pews"},
    train=Training(lr=0.001, batch_size=32),
    clients=2,
    rounds=200,
)
_PEWS_SMALL = varied(_PEWS, data={"name": "synthetic_3200"}, lr=0.01, batch_size=8)
_CIFAR_MNIST = Setting(
    data={"name": "cifar_mnist", "normalise": "half"},
    partition={"name": "by_source"},
    model={"name": "conv_pews"},
    train=Training(lr=0.01, batch_size=64),
    clients=2,
    rounds=300,
    eval_every=5,
)
_CLASSES = {"name": "by_class", "order": "shuffled"}
_PAPER = {
    "lr_server=1": _PEWS,
    "lr_server=0.5": varied(_PEWS, rounds=250),
    "lr_server=0.25": varied(_PEWS, rounds=400),
    "lr_server=0.1": varied(_PEWS_SMALL, rounds=500),
    "four clients": varied(_PEWS, clients=4, rounds=500),
    "sensitivity": _PEWS,  # not in the paper: Table 7's grid on a task where training converges
    "activations": varied(_PEWS, rounds=250),
    "cifar_mnist": _CIFAR_MNIST,
    "path_oct_tissue": varied(_CIFAR_MNIST, data={"name": "path_oct_tissue", "normalise": "half"}, clients=3),
    "dirichlet": varied(_CIFAR_MNIST, partition={"name": "dirichlet", "alpha": 0.5}, clients=10),
    **{
        f"classes of {name}": varied(
            _CIFAR_MNIST, data={"name": name, "normalise": "half"}, partition=_CLASSES, clients=n
        )
        for name, n in (("cifar10", 5), ("cifar100", 20))
    },
    # the rate falls to a tenth at rounds 200 and 400
    "many clients": varied(
        _CIFAR_MNIST,
        partition={"name": "dirichlet", "alpha": 0.5},
        milestones=(0.4, 0.8),
        clients=200,
        rounds=500,
        participation=0.1,
        eval_every=1,  # Figure 13 is a running mean over rounds
    ),
}
# real: the paper's network on a quarter of the images, 150 rounds at three times the rate, chosen by trials of seed 0
# at rates 0.03 and 0.1 before the grid was run. FedAvg's validation accuracy then stays between 64 and 68 % from
# round 65 on; FedPeWS's at λ = 2 still swings by 5 points in the last fifth (200 images; a line through it changes by
# -1.4 points at τ = 0.5 and +2.2 at τ = 0.8, so one seed cannot say whether it still rises). Classes of CIFAR-10:
# the same rounds, 200 / 100 images a class. The medical files are not available: three clients with one real source
# each are the stand-in. Table 2's settings and many clients are the paper's. Not in the paper: a tenth of each
# client's training images or points for validation, on which no run trains, to show whether training converged.
_VAL: dict[str, Any] = {"val": 0.1}
_FEWER_STEPS = {  # setting -> its data: a quarter of the images, half of the rounds
    "cifar_mnist": "cifar_mnist",
    "path_oct_tissue": "mnist+fashion_mnist+cifar10",
    "dirichlet": "cifar_mnist",
}
_REAL = _PAPER | {
    name: varied(
        _PAPER[name],
        data={**_PAPER[name].data, "name": source, "samples_per_class": [100, 50]},
        partition=_VAL,
        lr=0.03,
        rounds=150,
    )
    for name, source in _FEWER_STEPS.items()
}
_REAL["classes of cifar10"] = varied(
    _PAPER["classes of cifar10"], partition={"train_per_class": 200, "test_per_class": 100, **_VAL}, lr=0.03, rounds=150
)
for _name in ("sensitivity", "four clients", "activations"):
    _REAL[_name] = varied(_PAPER[_name], partition=_VAL)
TAU_FIGURE_5 = 0.124  # four clients
RATES = "sensitivity, rates"  # FedAvg of that grid at other learning rates
_REAL[RATES] = _REAL["sensitivity"]
# quick: a tenth of the synthetic points and larger steps; handwritten digits and a small dense net for the images
_PEWS_QUICK = varied(_PEWS_SMALL, lr=0.02, batch_size=16, rounds=40)
_DIGITS = varied(
    _PEWS,
    data={"name": "digits"},
    partition={"name": "dirichlet", "alpha": 0.5},
    model={"name": "mlp", "hidden": [64, 32]},
    lr=0.1,
    batch_size=8,
    clients=10,
    rounds=40,
)
_QUICK = {
    **{setting: _PEWS_QUICK for setting in ("lr_server=1", "lr_server=0.5", "lr_server=0.25", "lr_server=0.1")},
    "four clients": varied(_PEWS_QUICK, clients=4, rounds=60),
    "activations": _PEWS_QUICK,
    "cifar_mnist": varied(_PEWS_QUICK, rounds=20),
    "path_oct_tissue": varied(_PEWS_QUICK, clients=4, rounds=20),
    "dirichlet": _DIGITS,
    "classes of cifar10": varied(_DIGITS, partition=_CLASSES, clients=5),
    "many clients": varied(_DIGITS, batch_size=4, milestones=(0.4, 0.8), clients=40, rounds=60, participation=0.1),
}
_CI = {name: varied(setting, rounds=3) for name, setting in _QUICK.items()}


def method_title(method: str, base: str = "fedavg") -> str:
    """A method's name in figures: "FedProx + PeWS" for learned masks on FedProx."""
    return f"{NAMES[base]} + PeWS" if method == "fedpews" else NAMES[method]


# Target accuracies of Tables 2 and 6, in percent, by setting.
TARGETS = {
    "lr_server=1": 99.0,
    "sensitivity": 99.0,
    RATES: 99.0,
    "lr_server=0.5": 90.0,
    "lr_server=0.25": 75.0,
    "lr_server=0.1": 99.0,
}

# The warm-up then has an eighth of the paper's steps (CIFAR-10 by class: a fiftieth), so the masks' rate is eight times
# the paper's 0.1. At 0.1 the masks with λ = 0.5 were still random at the switch (2 to 48 % of their entries flipped in
# a round; bound 2 %). What was known when this was chosen: criteria.md.
MASK_RATE = 0.8


def with_method(method: Mapping[str, Any], preset: str, name: str) -> dict[str, Any]:
    """The masks' rate where the steps are fewer than the paper's."""
    is_faster = preset == "real" and name in (*_FEWER_STEPS, "classes of cifar10") and method["name"] == "fedpews"
    return {"lr_mask": MASK_RATE} if is_faster else {}


SETTINGS = PaperSettings(
    "fedpews",
    {"paper": _PAPER, "real": _REAL, "quick": _QUICK, "ci": _CI},
    method_fields={"fedavg": {"client_weighting": "uniform"}},
    with_method=with_method,
    searched=search.read(search.searched_path("fedpews")),
)


class Column(NamedTuple):
    """One setting (column) of Tables 2 and 6."""

    lr_server: float
    lam: float  # λ with base FedAvg
    lam_fedprox: float  # λ with base FedProx
    tau: float


COLUMNS = {
    "lr_server=1": Column(1.0, 5.0, 0.1, 0.125),
    "lr_server=0.5": Column(0.5, 2.0, 0.1, 0.2),
    "lr_server=0.25": Column(0.25, 1.0, 1.0, 0.1875),
    "lr_server=0.1": Column(0.1, 2.0, 1.0, 0.1),
}
BEST = {  # λ and τ for Table 3, which does not state them: the best cells of Tables 7 and 8
    "cifar_mnist": (2.0, 0.5),
    "path_oct_tissue": (10.0, 0.2),
}
