"""The runs behind each section of FedPeWS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pfl_core.papers.fedpews.settings import BEST, COLUMNS, SETTINGS
from pfl_core.runs import RunSpec
from pfl_core.study.settings import Methods

on = SETTINGS.specs

FOUR = [  # Figure 5; λ = 5 and the fixed masks are ours to add
    ("fedavg", {}),
    ("fedpews", {"lam": 0.0, "tau": 0.124}),
    ("fedpews", {"lam": 5.0, "tau": 0.124}),
    ("fedpews_fixed", {"tau": 0.124}),
]
READINGS = {  # Figure 5's λ = 0 under the options of A1 and A3 to A5, and with the gradient as Eq. 6 prints it
    "default": {},
    "score gradient of Eq. 6": {"score_gradient": "product"},
    "straight through the sigmoid (A4)": {"straight_through": "draw_and_sigmoid"},
    "Eq. 6, straight through the sigmoid": {"score_gradient": "product", "straight_through": "draw_and_sigmoid"},
    "weights belong to the neuron they feed (A1)": {"expand_rule": "row"},
    "random scores, one vector (A3)": {"score_init": "uniform"},
    "random scores, one a client (A3)": {"score_init": "uniform_per_client"},
    "one draw a step (A5)": {"draws": "one_per_step"},
    "one draw a round (A5)": {"draws": "one_per_round"},
}  # A2 (what is heard of the others) changes nothing at λ = 0, which multiplies it
LAMBDAS = (0.0, 0.1, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0, 1000.0)  # Tables 7 and 8
TAUS = (0.2, 0.4, 0.5, 0.6, 0.8)
ALPHAS = (0.1, 0.5, 1.0, 2.0, 5.0)  # Figure 8


def synthetic(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """FedPeWS, Tables 2 and 6, Figures 4, 5, 9 and 10."""
    made = []
    for setting, (rate, lam, lam_prox, tau) in COLUMNS.items():
        common = {"lr_server": rate}
        runs = [("fedavg", common), ("fedpews", {"lam": lam, "tau": tau, **common})]
        if preset != "real":  # it has fifteen minutes: Table 2 alone
            runs += [("fedprox", common), ("fedpews", {"base": "fedprox", "lam": lam_prox, "tau": tau, **common})]
        made += on(setting, preset, wanted, overrides, runs)
    return made + on("four clients", preset, wanted, overrides, FOUR)


def sensitivity(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """FedPeWS, Figure 6, Tables 7 and 8: the grid of λ and τ, on two data sets and (ours) on Synthetic-32K."""
    small = {"ci": ((0.0, 5.0), (0.2, 0.5)), "quick": ((0.0, 0.5, 5.0, 100.0), (0.2, 0.5, 0.8))}
    runs = grid(*small.get(preset, (LAMBDAS, TAUS)))
    settings = {"real": ("sensitivity",), "paper": (*BEST, "sensitivity")}.get(preset, tuple(BEST))
    return [s for setting in settings for s in on(setting, preset, wanted, overrides, runs)]


def grid(lams: Sequence[float], taus: Sequence[float]) -> Methods:
    """FedAvg, the fixed masks of each τ, and FedPeWS at each λ and τ: 56 cells in Table 7."""
    runs = [("fedavg", {}), *(("fedpews_fixed", {"tau": tau}) for tau in taus)]
    return runs + [("fedpews", {"lam": lam, "tau": tau}) for lam in lams for tau in taus]


def baselines(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """FedPeWS, Table 3: five baselines and the warm-up on two of them, on two data sets."""
    made = []
    for setting, (lam, tau) in list(BEST.items())[: 1 if preset == "ci" else None]:
        warm = {"lam": lam, "tau": tau}
        runs = [(name, {}) for name in ("fedavg", "fedprox", "scaffold", "fednova", "moon")]
        runs += [("fedpews", warm), ("fedpews", {"base": "fedprox", **warm})]
        made += on(setting, preset, wanted, overrides, runs)
    return made


def heterogeneity(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """FedPeWS, Figures 8, 12 and 13: Dirichlet splits, clients without common classes, many clients."""
    made, split = [], SETTINGS.setting(preset, "dirichlet").partition
    for alpha in (0.1, 5.0) if preset == "ci" else (0.1, 1.0, 5.0) if preset in ("quick", "real") else ALPHAS:
        part = {"partition": {**split, "alpha": alpha}, **overrides}
        made += on("dirichlet", preset, wanted, part, [("fedavg", {}), ("fedpews", {"lam": 5.0, "tau": 0.4})])
    prox = [("fedprox", {}), ("fedpews", {"base": "fedprox", "lam": 5.0, "tau": 0.2})]
    for clients in (5, 10):
        made += on("classes of cifar10", preset, wanted, {"clients": clients, **overrides}, prox)
    if preset == "paper":
        made += on("classes of cifar100", preset, wanted, overrides, prox)
    many = [("fedavg", {}), ("fedpews", {"lam": 0.5, "tau": 0.05})]
    return made + on("many clients", preset, wanted, overrides, many)


def masks(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """FedPeWS, Figure 11 (equal and unequal fixed masks) and Figures 14 and 15 (activations with and without them)."""
    lengths = [("fedpews_fixed", {"tau": 0.4, **shares}) for shares in ({}, {"shares": (0.25, 0.75)})]  # {}: equal
    probe = {"probe": 256, "probe_whole": True}
    probed = [("fedpews_fixed", {"tau": tau, **probe}) for tau in (0.2, 0.0)]  # without a warm-up it is FedAvg
    made = on("cifar_mnist", preset, wanted, overrides, lengths)
    return made + on("activations", preset, wanted, overrides, probed)


def readings(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """FedPeWS, Figure 5 without diversity (claim 3): FedAvg, and λ = 0 under each of READINGS."""
    tau = 0.5 if preset == "ci" else 0.124  # of three rounds 0.124 are none
    learned = [("fedpews", {"lam": 0.0, "tau": tau, **fields}) for fields in READINGS.values()]
    return on("four clients", preset, wanted, overrides, [("fedavg", {}), *learned])


EXPERIMENTS = {
    "01_synthetic": synthetic,
    "02_sensitivity_heatmaps": sensitivity,
    "03_baselines": baselines,
    "04_heterogeneity_and_scale": heterogeneity,
    "05_masks_and_activations": masks,
    "06_readings": readings,
}
SEEDS = {  # notebook ("": the others) -> preset -> seeds
    "": {"ci": (0,), "quick": (0, 1), "real": (0,), "paper": (0, 1, 2)},
    "01_synthetic": {"paper": (0, 1, 2, 3, 4)},
    "02_sensitivity_heatmaps": {"real": (0, 1, 2)},
    "06_readings": {"paper": (0, 1, 2, 3, 4)},
}
