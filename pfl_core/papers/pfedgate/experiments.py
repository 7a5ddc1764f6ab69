"""The runs behind each section of pFedGate (section 11 of its specification)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pfl_core.algorithm import methods
from pfl_core.papers.pfedgate.settings import BASELINES, GATE_PARTS, SETTINGS
from pfl_core.runs import RunSpec
from pfl_core.study.settings import Methods

on, setting = SETTINGS.specs, SETTINGS.setting

DATASETS = ("cifar10", "emnist", "femnist", "cifar100", "fashion_mnist", "mnist")  # the last two stand in
BUDGETS = (1.0, 0.5, 0.3)  # s of Table 1
TENTH = (*BUDGETS, 0.1)  # of Tables 10 and 12
SWEEP = (1.0, 0.9, 0.7, 0.5, 0.3, 0.2, 0.1)  # Figure 5
MIXED = (0.5, 0.1)
EXTRA = ("perfedavg",)  # Table 6, whose FedMD is in `public_sets`
RESTARTS = [  # ours: momentum starts anew in each round
    ("pfedgate", {"keep_ratio": 0.5, "keep_momentum": False}),
    *((name, {"keep_momentum": False}) for name in ("fedavg", "perfedavg")),
]
SPLITS = (2, 10, 20)  # B, beside 5; 20 is ours
ALPHAS = (0.4, 0.2, 0.1, 0.01)  # Table 12
EPOCHS = (1, 2, 4, 8)  # Table 11
SMALL_RATE = 0.05  # of the gate; without sigmoid nothing bounds M, so the rate matters most there
SLOW = f"lr_gate={SMALL_RATE:g}"
TUNED = [("fedavg_ft", {})]
# Ours: is it the mask or the scale that personalizes? Blocks of one size: every mask keeps the same share.
CONTROLS = [
    {"block_layout": "balanced", "mask": mask, **scales}
    for mask in ("learned", "small_blocks", "random")
    for scales in ({}, {"gate_override": 1.0})
]
TANGENT = {"sigmoid": False, "without_sigmoid": "tangent"}  # ours: a gate without sigmoid that starts like the full one

NO_DECAY = {"gate_weight_decay": 0.0}  # ours: a gate that only what it learns can move


def main_setting(preset: str) -> str:
    """Where the studies of one data set are made: CIFAR-10, or what stands for it; Fashion-MNIST at preset real."""
    return "fashion_mnist" if preset == "real" else "cifar10"


def studied(preset: str) -> tuple[str, ...]:
    """Where sparsity is studied: Tables 10 and 11 and Figure 5 are EMNIST's, Table 12 is CIFAR-10's."""
    return ("cifar10", "emnist") if preset == "paper" else (main_setting(preset),)


def split(preset: str) -> tuple[str, ...]:
    """Where B is studied: Table 13."""
    return ("cifar10", "femnist") if preset == "paper" else studied(preset)


def gates(budgets: Sequence[float | tuple[float, ...]], **options: Any) -> list[tuple[str, dict[str, Any]]]:
    """pFedGate at each budget; without other options also scored without gates and in other orders."""
    return [("pfedgate", {"keep_ratio": s, **(options or {"probe": True})}) for s in budgets]


def changed(
    text: str, name: str, preset: str, wanted: Sequence[int], changes: Mapping[str, Any], over: Mapping, runs: Methods
) -> list[RunSpec]:
    """The runs with some of the frame's fields replaced, as a setting of their own: "cifar10, <text>"."""
    return [replace(one, setting=f"{name}, {text}") for one in on(name, preset, wanted, {**changes, **over}, runs)]


def once(runs: Sequence[RunSpec]) -> list[RunSpec]:
    """The first of equal runs."""
    made: dict[str, RunSpec] = {}
    for one in runs:
        made.setdefault(str(one.identity()), one)
    return list(made.values())


# ---- B: main comparison ---------------------------------------------------------------------------------------------


def main_comparison(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Tables 1, 6 and 9, Figures 3 and 6: three budgets beside ten baselines and two more; both readings, controls."""
    if preset == "ci":
        return on("cifar10", preset, wanted, overrides, [*gates((0.5,)), ("fedavg", {}), ("fedem", {})])
    code = ("pfedgate", {"keep_ratio": 0.5, "reading": "authors_code"})
    runs = [*gates(BUDGETS), *((name, {}) for name in (*BASELINES, *EXTRA)), *RESTARTS, code]
    names = DATASETS if preset == "paper" else (main_setting(preset),)
    made = [one for name in names for one in on(name, preset, wanted, overrides, [*runs, *public_sets(name, preset)])]
    return once(made)


def public_sets(name: str, preset: str) -> Methods:
    """Table 6's FedMD: near and far public sets at preset paper, MNIST (ours) at real, none at quick."""
    if preset == "paper":
        known = methods()["fedmd"].variants
        return [("fedmd", known[f"{name}_{way}"]) for way in ("near", "far") if f"{name}_{way}" in known]
    public = {"public": "mnist", "public_normalise": "mnist", "public_samples": 500}
    return [("fedmd", public)] if preset == "real" else []


# ---- C: sparsity studies --------------------------------------------------------------------------------------------


def sparsity_studies(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Figures 5 and 7, Tables 10 to 13, ways to choose blocks, and the controls; fewer of each at preset real."""
    parts = (budgets, splits, selectors, skews, local_epochs, controls)
    if preset != "real":
        places = [(part, split(preset) if part is splits else studied(preset)) for part in parts]
        return once([run for part, names in places for name in names for run in part(name, preset, wanted, overrides)])
    name = main_setting(preset)
    runs = on(name, preset, wanted, overrides, [("fedmask", {"keep_ratio": 0.5})])
    return once([*runs, *(run for part in parts for run in part(name, preset, wanted, overrides))])


def budgets(name: str, preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Accuracy over s, with FedAvg and FedAvg-FT beside it."""
    kept = {"ci": BUDGETS, "real": tuple(s for s in SWEEP if s != 0.9)}.get(preset, SWEEP)
    return on(name, preset, wanted, overrides, [*gates((*kept, MIXED)), ("fedavg", {}), ("fedavg_ft", {})])


def splits(name: str, preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Table 13: B, and FedMask, but for preset real, which has it elsewhere."""
    kept, nums = {"ci": ((0.5,), SPLITS[:1]), "real": ((0.5,), SPLITS[:2])}.get(preset, ((0.5, 0.3), SPLITS))
    runs = gates(kept) + [run for num in nums for run in gates(kept, blocks_per_tensor=num)]
    rivals = [] if preset == "real" else [("fedmask", {"keep_ratio": s}) for s in kept]
    return on(name, preset, wanted, overrides, runs + rivals)


def selectors(name: str, preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """The exact knapsack against the released code's groups; blocks of rows, or of one size, against flat ones."""
    kept = (0.5,) if preset == "ci" else (0.5, 0.3)
    ways = ({"selector": "greedy_groups"}, {"block_layout": "output_rows"}, {"block_layout": "balanced"})
    return on(name, preset, wanted, overrides, [run for way in ways for run in gates(kept, **way)])


def skews(name: str, preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Table 12: the Dirichlet alpha."""
    frame = setting(preset, name).partition
    runs = gates(TENTH if preset == "paper" else (0.5,))
    made = on(name, preset, wanted, overrides, runs)
    for alpha in ALPHAS[1 : 2 if preset == "ci" else None]:
        changes = {"partition": {**frame, "alpha": alpha}}
        made += changed(f"alpha={alpha:g}", name, preset, wanted, changes, overrides, runs)
    return made


def local_epochs(name: str, preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Table 11: local epochs."""
    runs = gates(TENTH if preset == "paper" else (0.5,))
    made = on(name, preset, wanted, overrides, runs)
    for epochs in EPOCHS[1 : {"ci": 2, "quick": 3, "real": 3}.get(preset)]:
        made += changed(f"epochs={epochs}", name, preset, wanted, {"epochs": epochs}, overrides, runs)
    return made


def controls(name: str, preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Learned, fixed and random masks, with learned scales and without, at s = 0.5; and the paper's gate."""
    runs = [run for options in ({}, *CONTROLS) for run in gates((0.5,), **options)]
    return on(name, preset, wanted, overrides, runs)


# ---- D to G ---------------------------------------------------------------------------------------------------------


def efficiency(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Table 2 is timed in the notebook; its runs give traffic and s', masked dense and really smaller."""
    structured = {"block_layout": "output_rows", "straight_through": "kept", "execution": "sliced"}
    kept = (0.3,) if preset == "ci" else BUDGETS
    runs = [("fedavg", {}), ("fedem", {}), *gates(kept), *gates([s for s in kept if s < 1], **structured)]
    return on(main_setting(preset), preset, wanted, overrides, runs)


def gate_ablation(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Table 4: the gate without one of its parts, at s = 0.5.

    Ours: with and without sigmoid at a small rate too, without it from the full gate's scales and slope, and a gate
    without weight decay.
    """
    names = {"paper": ("emnist", "cifar100", "cifar10")}.get(preset, (main_setting(preset),))
    small = preset == "ci"
    without = [{}, *({name: part.without} for name, part in GATE_PARTS.items()), TANGENT, NO_DECAY]
    without = without[: 2 if small else None]
    runs = [run for options in without for run in gates((0.5,), **options)]
    made = [one for name in names for one in on(name, preset, wanted, overrides, runs)]
    if small:
        return made
    slow = [("pfedgate", {"keep_ratio": 0.5, "lr_gate": SMALL_RATE, **options}) for options in ({}, {"sigmoid": False})]
    return made + [one for name in names for one in changed(SLOW, name, preset, wanted, {}, overrides, slow)]


def participation(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Tables 3 and 8: all clients, a fifth of them in each round, a fifth of them never.

    FedAvg's novel clients fine-tune its model for an epoch; FedAvg-FT's run has that beside the same model.
    """
    names = {"paper": ("femnist", "cifar10")}.get(preset, (main_setting(preset),))
    kept = (0.5,) if preset == "ci" else BUDGETS
    runs = [("fedavg", {}), ("fedem", {}), *gates(kept)]
    here = {f"{name}{way}": more for name in names for way, more in (("", []), (", sampled", []), (", novel", TUNED))}
    return [made for name, more in here.items() for made in on(name, preset, wanted, overrides, [*runs, *more])]


def structure(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Figure 4: the gates of ten clients with two labels or so each, at s = 0.3; s = 0.5 is ours."""
    return on("pathological", preset, wanted, overrides, gates((0.3,) if preset == "ci" else (0.3, 0.5)))


EXPERIMENTS = {
    "01_main_comparison": main_comparison,
    "02_sparsity_studies": sparsity_studies,
    "03_efficiency": efficiency,
    "04_gate_ablation": gate_ablation,
    "05_participation_and_novel": participation,
    "06_personalization_structure": structure,
}
SEEDS = {  # notebook ("": the others) -> preset -> seeds
    "": {"ci": (0,), "quick": (0, 1), "real": (0, 1, 2), "paper": (0, 1, 2)},  # three in the paper
    "06_personalization_structure": {"quick": (0, 1, 2)},
}
