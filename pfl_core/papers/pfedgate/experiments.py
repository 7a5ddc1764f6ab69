"""The runs behind each section of the pFedGate notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pfl_core.algorithm import methods
from pfl_core.papers.pfedgate.settings import BASELINES, GATE_PARTS, SETTINGS
from pfl_core.runs import RunSpec
from pfl_core.study.settings import Methods

specs_in, setting = SETTINGS.specs, SETTINGS.setting

DATASETS = ("cifar10", "emnist", "femnist", "cifar100", "fashion_mnist", "mnist")  # the last two are stand-ins
BUDGETS = (1.0, 0.5, 0.3)  # s of Table 1
WITH_TENTH = (*BUDGETS, 0.1)  # s of Tables 10 and 12
SWEEP = (1.0, 0.9, 0.7, 0.5, 0.3, 0.2, 0.1)  # s of Figure 5
MIXED = (0.5, 0.1)  # budgets of the two halves of the clients
EXTRA = ("perfedavg",)  # Table 6; its FedMD is in `public_sets`
RESTARTS: list[tuple[str, dict[str, Any]]] = [  # not in the paper: momentum starts anew in each round
    ("pfedgate", {"keep_ratio": 0.5, "keep_momentum": False}),
    *((name, {"keep_momentum": False}) for name in ("fedavg", "perfedavg")),
]
SPLITS = (2, 10, 20)  # B of Table 13 besides 5; 20 is not in the paper
ALPHAS = (0.4, 0.2, 0.1, 0.01)  # Table 12
EPOCHS = (1, 2, 4, 8)  # Table 11
SMALL_RATE = 0.05  # of the gate. Without sigmoid M is unbounded, so the rate matters more
SLOW = f"lr_gate={SMALL_RATE:g}"
TUNED: list[tuple[str, dict[str, Any]]] = [("fedavg_ft", {})]
# Not in the paper: does the mask or the scale personalize? With blocks of one size all masks keep equal shares.
CONTROLS: list[dict[str, Any]] = [
    {"block_layout": "balanced", "mask": mask, **scales}
    for mask in ("learned", "small_blocks", "random")
    for scales in ({}, {"gate_override": 1.0})
]
# Not in the paper: a gate without sigmoid that has the full gate's M and slope at the start
TANGENT = {"sigmoid": False, "without_sigmoid": "tangent"}
NO_DECAY = {"gate_weight_decay": 0.0}  # not in the paper: a gate without weight decay


def main_setting(preset: str) -> str:
    """The setting of studies on one data set: CIFAR-10 or its stand-in; Fashion-MNIST at preset real."""
    return "fashion_mnist" if preset == "real" else "cifar10"


def studied(preset: str) -> tuple[str, ...]:
    """Settings of the sparsity studies: EMNIST (Tables 10 and 11, Figure 5) and CIFAR-10 (Table 12)."""
    return ("cifar10", "emnist") if preset == "paper" else (main_setting(preset),)


def studied_blocks(preset: str) -> tuple[str, ...]:
    """Settings of the study of B, Table 13."""
    return ("cifar10", "femnist") if preset == "paper" else studied(preset)


def gates(budgets: Sequence[float | tuple[float, ...]], **options: Any) -> list[tuple[str, dict[str, Any]]]:
    """pFedGate at each budget; without other options also with a probe, which scores the final model in other ways."""
    return [("pfedgate", {"keep_ratio": s, **(options or {"probe": True})}) for s in budgets]


def varied_specs(
    text: str,
    name: str,
    preset: str,
    seeds: Sequence[int],
    changes: Mapping[str, Any],
    overrides: Mapping[str, Any],
    runs: Methods,
) -> list[RunSpec]:
    """Specs with some fields of the setting replaced; the setting is then called "<name>, <text>"."""
    specs = specs_in(name, preset, seeds, {**changes, **overrides}, runs)
    return [replace(spec, setting=f"{name}, {text}") for spec in specs]


def unique(specs: Sequence[RunSpec]) -> list[RunSpec]:
    """Drops repeated runs; the first of equal ones stays."""
    first: dict[str, RunSpec] = {}
    for spec in specs:
        first.setdefault(str(spec.identity()), spec)
    return list(first.values())


# ---- main comparison (notebook 01) ----------------------------------------------------------------------------------


def main_comparison(preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Tables 1, 6 and 9, Figures 3 and 6: three budgets, the baselines, the released code's reading, restarts."""
    if preset == "ci":
        return specs_in("cifar10", preset, seeds, overrides, [*gates((0.5,)), ("fedavg", {}), ("fedem", {})])
    code = ("pfedgate", {"keep_ratio": 0.5, "reading": "authors_code"})
    runs = [*gates(BUDGETS), *((name, {}) for name in (*BASELINES, *EXTRA)), *RESTARTS, code]
    names = DATASETS if preset == "paper" else (main_setting(preset),)
    return unique(
        [
            spec
            for name in names
            for spec in specs_in(name, preset, seeds, overrides, [*runs, *public_sets(name, preset)])
        ]
    )


def public_sets(name: str, preset: str) -> Methods:
    """Table 6's FedMD: near and far public sets at preset paper; MNIST (not in the paper) at real; none at quick."""
    if preset == "paper":
        known = methods()["fedmd"].variants
        return [("fedmd", dict(known[f"{name}_{way}"])) for way in ("near", "far") if f"{name}_{way}" in known]
    public = {"public": "mnist", "public_normalise": "mnist", "public_samples": 500}
    return [("fedmd", public)] if preset == "real" else []


# ---- sparsity studies (notebook 02) ---------------------------------------------------------------------------------


def sparsity_studies(preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Figures 5 and 7, Tables 10 to 13, selectors and layouts, and the controls; fewer values at preset real."""
    parts = (budgets, splits, selectors, skews, local_epochs, controls)
    if preset != "real":
        places = [(part, studied_blocks(preset) if part is splits else studied(preset)) for part in parts]
        return unique(
            [spec for part, names in places for name in names for spec in part(name, preset, seeds, overrides)]
        )
    name = main_setting(preset)
    fedmask = specs_in(name, preset, seeds, overrides, [("fedmask", {"keep_ratio": 0.5})])
    return unique([*fedmask, *(spec for part in parts for spec in part(name, preset, seeds, overrides))])


def budgets(name: str, preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Accuracy over s, with FedAvg and FedAvg-FT for comparison."""
    kept = {"ci": BUDGETS, "real": tuple(s for s in SWEEP if s != 0.9)}.get(preset, SWEEP)
    return specs_in(name, preset, seeds, overrides, [*gates((*kept, MIXED)), ("fedavg", {}), ("fedavg_ft", {})])


def splits(name: str, preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Table 13: values of B, and FedMask (at preset real in ``sparsity_studies``)."""
    kept, nums = {"ci": ((0.5,), SPLITS[:1]), "real": ((0.5,), SPLITS[:2])}.get(preset, ((0.5, 0.3), SPLITS))
    runs = gates(kept) + [run for num in nums for run in gates(kept, blocks_per_tensor=num)]
    rivals = [] if preset == "real" else [("fedmask", {"keep_ratio": s}) for s in kept]
    return specs_in(name, preset, seeds, overrides, runs + rivals)


def selectors(name: str, preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """The released code's greedy groups, blocks of rows, and blocks of one size."""
    kept = (0.5,) if preset == "ci" else (0.5, 0.3)
    ways = ({"selector": "greedy_groups"}, {"block_layout": "output_rows"}, {"block_layout": "balanced"})
    return specs_in(name, preset, seeds, overrides, [run for way in ways for run in gates(kept, **way)])


def skews(name: str, preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Table 12: values of the Dirichlet α."""
    frame = setting(preset, name).partition
    runs = gates(WITH_TENTH if preset == "paper" else (0.5,))
    specs = specs_in(name, preset, seeds, overrides, runs)
    for alpha in ALPHAS[1 : 2 if preset == "ci" else None]:
        changes = {"partition": {**frame, "alpha": alpha}}
        specs += varied_specs(f"alpha={alpha:g}", name, preset, seeds, changes, overrides, runs)
    return specs


def local_epochs(name: str, preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Table 11: numbers of local epochs."""
    runs = gates(WITH_TENTH if preset == "paper" else (0.5,))
    specs = specs_in(name, preset, seeds, overrides, runs)
    for epochs in EPOCHS[1 : {"ci": 2, "quick": 3, "real": 3}.get(preset)]:
        specs += varied_specs(f"epochs={epochs}", name, preset, seeds, {"epochs": epochs}, overrides, runs)
    return specs


def controls(name: str, preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Learned, fixed and random masks, with learned scales and scales of 1, at s = 0.5; and the paper's gate."""
    runs = [run for options in ({}, *CONTROLS) for run in gates((0.5,), **options)]
    return specs_in(name, preset, seeds, overrides, runs)


# ---- notebooks 03 to 06 ---------------------------------------------------------------------------------------------


def efficiency(preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Runs for traffic and s', with masked and with physically smaller layers. Table 2 is measured in the notebook."""
    structured = {"block_layout": "output_rows", "straight_through": "kept", "execution": "sliced"}
    kept = (0.3,) if preset == "ci" else BUDGETS
    runs = [("fedavg", {}), ("fedem", {}), *gates(kept), *gates([s for s in kept if s < 1], **structured)]
    return specs_in(main_setting(preset), preset, seeds, overrides, runs)


def gate_ablation(preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Table 4: the gate without one of its parts, at s = 0.5.

    Not in the paper: with and without sigmoid at a small rate, the tangent of the sigmoid, no weight decay.
    """
    names = {"paper": ("emnist", "cifar100", "cifar10")}.get(preset, (main_setting(preset),))
    small = preset == "ci"
    variants: list[dict[str, Any]] = [{}, *({name: part.without} for name, part in GATE_PARTS.items())]
    variants += [TANGENT, NO_DECAY]
    variants = variants[: 2 if small else None]
    runs = [run for options in variants for run in gates((0.5,), **options)]
    specs = [spec for name in names for spec in specs_in(name, preset, seeds, overrides, runs)]
    if small:
        return specs
    plain: dict[str, Any] = {"keep_ratio": 0.5, "lr_gate": SMALL_RATE}
    slow = [("pfedgate", plain), ("pfedgate", {**plain, "sigmoid": False})]
    return specs + [spec for name in names for spec in varied_specs(SLOW, name, preset, seeds, {}, overrides, slow)]


def participation(preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Tables 3 and 8: all clients; a fifth of them in each round; a fifth of them never.

    FedAvg-FT's run has the same model as FedAvg's, and novel clients that fine-tune it for an epoch.
    """
    names = {"paper": ("femnist", "cifar10")}.get(preset, (main_setting(preset),))
    kept = (0.5,) if preset == "ci" else BUDGETS
    runs = [("fedavg", {}), ("fedem", {}), *gates(kept)]
    ways = ("", ", sampled", ", novel")
    return [
        spec
        for name in names
        for way in ways
        for spec in specs_in(f"{name}{way}", preset, seeds, overrides, [*runs, *(TUNED if way == ", novel" else [])])
    ]


def structure(preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Figure 4: the gates of ten clients with about two labels each, at s = 0.3; s = 0.5 is not in the paper."""
    return specs_in("pathological", preset, seeds, overrides, gates((0.3,) if preset == "ci" else (0.3, 0.5)))


EXPERIMENTS = {
    "01_main_comparison": main_comparison,
    "02_sparsity_studies": sparsity_studies,
    "03_efficiency": efficiency,
    "04_gate_ablation": gate_ablation,
    "05_participation_and_novel": participation,
    "06_personalization_structure": structure,
}
SEEDS: dict[str, dict[str, tuple[int, ...]]] = {  # notebook ("": the others) -> preset -> seeds
    "": {"ci": (0,), "quick": (0, 1), "real": (0, 1, 2), "paper": (0, 1, 2)},  # three in the paper
    "06_personalization_structure": {"quick": (0, 1, 2)},
}
