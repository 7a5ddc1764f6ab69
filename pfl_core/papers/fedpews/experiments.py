"""The runs behind each notebook of FedPeWS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pfl_core.papers.fedpews.settings import BEST, COLUMNS, RATES, SETTINGS, TAU_FIGURE_5
from pfl_core.runs import RunSpec
from pfl_core.study.settings import Methods

Runs = list[tuple[str, dict[str, Any]]]  # a method's name and its fields

specs_in = SETTINGS.specs

FOUR_CLIENTS: Runs = [  # Figure 5; λ = 5 and the fixed masks are not in the paper
    ("fedavg", {}),
    ("fedpews", {"lam": 0.0, "tau": TAU_FIGURE_5}),
    ("fedpews", {"lam": 5.0, "tau": TAU_FIGURE_5}),
    ("fedpews_fixed", {"tau": TAU_FIGURE_5}),
]
# Figure 5's λ = 0 with the options A1 and A3 to A5 of the method page, and with the gradient of Eq. 6. A2 (what a
# client knows of the other masks) has no effect at λ = 0.
READINGS: dict[str, dict[str, str]] = {
    "default": {},
    "score gradient of Eq. 6": {"score_gradient": "product"},
    "straight through the sigmoid (A4)": {"straight_through": "draw_and_sigmoid"},
    "Eq. 6, straight through the sigmoid": {"score_gradient": "product", "straight_through": "draw_and_sigmoid"},
    "weights belong to the neuron they feed (A1)": {"expand_rule": "row"},
    "random scores, one vector (A3)": {"score_init": "uniform"},
    "random scores, one a client (A3)": {"score_init": "uniform_per_client"},
    "one draw a step (A5)": {"draws": "one_per_step"},
    "one draw a round (A5)": {"draws": "one_per_round"},
}
LAMBDAS = (0.0, 0.1, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0, 1000.0)  # Tables 7 and 8
PLAIN_RATES = (0.003, 0.009)  # of FedAvg beside the grid at preset real, in addition to the one that the search chose
TAUS = (0.2, 0.4, 0.5, 0.6, 0.8)
ALPHAS = (0.1, 0.5, 1.0, 2.0, 5.0)  # Figure 8


def synthetic(preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """FedPeWS, Tables 2 and 6, Figures 4, 5, 9 and 10."""
    specs: list[RunSpec] = []
    for setting, (rate, lam, lam_prox, tau) in COLUMNS.items():
        common = {"lr_server": rate}
        runs: Runs = [("fedavg", common), ("fedpews", {"lam": lam, "tau": tau, **common})]
        if preset != "real":  # at real only Table 2, to save time
            runs += [("fedprox", common), ("fedpews", {"base": "fedprox", "lam": lam_prox, "tau": tau, **common})]
        specs += specs_in(setting, preset, seeds, overrides, runs)
    return specs + specs_in("four clients", preset, seeds, overrides, FOUR_CLIENTS)


def sensitivity(preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """FedPeWS, Figure 6, Tables 7 and 8: the grid of λ and τ on two data sets; not in the paper: on Synthetic-32K."""
    small = {"ci": ((0.0, 5.0), (0.2, 0.5)), "quick": ((0.0, 0.5, 5.0, 100.0), (0.2, 0.5, 0.8))}
    runs = grid(*small.get(preset, (LAMBDAS, TAUS)))
    settings = {"real": ("sensitivity",), "paper": (*BEST, "sensitivity")}.get(preset, tuple(BEST))
    specs = [spec for setting in settings for spec in specs_in(setting, preset, seeds, overrides, runs)]
    # The search chooses rates by final accuracy. The number of rounds needs FedAvg at the rates of the other methods.
    for lr in PLAIN_RATES if preset == "real" else ():
        specs += specs_in(RATES, preset, seeds, {**overrides, "lr": lr}, [("fedavg", {})])
    return specs


def grid(lams: Sequence[float], taus: Sequence[float]) -> Methods:
    """FedAvg, fixed masks at each τ, and FedPeWS at each λ and τ: 56 cells in Table 7."""
    runs: Runs = [("fedavg", {}), *(("fedpews_fixed", {"tau": tau}) for tau in taus)]
    return runs + [("fedpews", {"lam": lam, "tau": tau}) for lam in lams for tau in taus]


def baselines(preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """FedPeWS, Table 3: five baselines and the warm-up on two of them, on two data sets."""
    specs: list[RunSpec] = []
    for setting, (lam, tau) in list(BEST.items())[: 1 if preset == "ci" else None]:
        warm = {"lam": lam, "tau": tau}
        runs: Runs = [(name, {}) for name in ("fedavg", "fedprox", "scaffold", "fednova", "moon")]
        runs += [("fedpews", warm), ("fedpews", {"base": "fedprox", **warm})]
        specs += specs_in(setting, preset, seeds, overrides, runs)
    return specs


def heterogeneity(preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """FedPeWS, Figures 8, 12 and 13: Dirichlet splits, clients without common classes, many clients."""
    specs: list[RunSpec] = []
    partition = SETTINGS.setting(preset, "dirichlet").partition
    few_alphas = {"ci": (0.1, 5.0), "quick": (0.1, 1.0, 5.0), "real": (0.1, 1.0, 5.0)}
    for alpha in few_alphas.get(preset, ALPHAS):
        changes = {"partition": {**partition, "alpha": alpha}, **overrides}
        specs += specs_in("dirichlet", preset, seeds, changes, [("fedavg", {}), ("fedpews", {"lam": 5.0, "tau": 0.4})])
    prox: Methods = [("fedprox", {}), ("fedpews", {"base": "fedprox", "lam": 5.0, "tau": 0.2})]
    for clients in (5, 10):
        specs += specs_in("classes of cifar10", preset, seeds, {"clients": clients, **overrides}, prox)
    if preset == "paper":
        specs += specs_in("classes of cifar100", preset, seeds, overrides, prox)
    many: Methods = [("fedavg", {}), ("fedpews", {"lam": 0.5, "tau": 0.05})]
    return specs + specs_in("many clients", preset, seeds, overrides, many)


def masks(preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """FedPeWS, Figure 11 (equal and unequal fixed masks) and Figures 14 and 15 (activations with and without them)."""
    lengths: Methods = [("fedpews_fixed", {"tau": 0.4}), ("fedpews_fixed", {"tau": 0.4, "shares": (0.25, 0.75)})]
    probe = {"probe": 256, "probe_whole": True}
    probed: Methods = [("fedpews_fixed", {"tau": tau, **probe}) for tau in (0.2, 0.0)]  # τ = 0 is FedAvg
    specs = specs_in("cifar_mnist", preset, seeds, overrides, lengths)
    return specs + specs_in("activations", preset, seeds, overrides, probed)


def readings(preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """FedPeWS, Figure 5 without diversity (claim 3): FedAvg, and λ = 0 under each of READINGS."""
    tau = 0.5 if preset == "ci" else TAU_FIGURE_5  # with three rounds it would give no warm-up
    learned = [("fedpews", {"lam": 0.0, "tau": tau, **fields}) for fields in READINGS.values()]
    return specs_in("four clients", preset, seeds, overrides, [("fedavg", {}), *learned])


EXPERIMENTS = {
    "01_synthetic": synthetic,
    "02_sensitivity_heatmaps": sensitivity,
    "03_baselines": baselines,
    "04_heterogeneity_and_scale": heterogeneity,
    "05_masks_and_activations": masks,
    "06_readings": readings,
}
SEEDS: dict[str, dict[str, tuple[int, ...]]] = {  # notebook ("": all others) -> preset -> seeds
    "": {"ci": (0,), "quick": (0, 1), "real": (0,), "paper": (0, 1, 2)},
    "01_synthetic": {"real": (0, 1, 2, 3, 4), "paper": (0, 1, 2, 3, 4)},
    "02_sensitivity_heatmaps": {"real": (0, 1, 2)},
    "05_masks_and_activations": {"real": (0, 1, 2, 3, 4)},
    "06_readings": {"paper": (0, 1, 2, 3, 4)},
}
