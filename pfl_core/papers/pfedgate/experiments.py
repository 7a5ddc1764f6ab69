"""The runs behind each section of the pFedGate notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pfl_core.algorithm import methods
from pfl_core.papers.pfedgate.settings import BASELINES, GATE_PARTS, SETTINGS
from pfl_core.papers.plans import Group, Groups, Overrides, experiments
from pfl_core.study.settings import Methods

DATASETS = ("cifar10", "emnist", "femnist", "cifar100", "fashion_mnist", "mnist")  # the last two are stand-ins
BUDGETS = (1.0, 0.5, 0.3)  # s of Table 1
WITH_TENTH = (*BUDGETS, 0.1)  # s of Tables 10 and 12
SWEEP = (1.0, 0.9, 0.7, 0.5, 0.3, 0.2, 0.1)  # s of Figure 5
MIXED = (0.5, 0.1)  # budgets of the two halves of the clients
EXTRA = ("perfedavg",)  # Table 6; its FedMD is in `public_sets`
RESTARTS: Methods = [  # not in the paper: momentum starts anew in each round
    ("pfedgate", {"keep_ratio": 0.5, "keep_momentum": False}),
    *((name, {"keep_momentum": False}) for name in ("fedavg", "perfedavg")),
]
SPLITS = (2, 10, 20)  # B of Table 13 besides 5; 20 is not in the paper
ALPHAS = (0.4, 0.2, 0.1, 0.01)  # Table 12
EPOCHS = (1, 2, 4, 8)  # Table 11
SMALL_RATE = 0.05  # of the gate. Without sigmoid M is unbounded, so the rate matters more
SLOW = f"lr_gate={SMALL_RATE:g}"
# Not in the paper: a gate without sigmoid that has the full gate's M and slope at the start
TANGENT = {"sigmoid": False, "without_sigmoid": "tangent"}
NO_DECAY = {"gate_weight_decay": 0.0}  # not in the paper: a gate without weight decay


def sets(preset: str, *names: str) -> tuple[str, ...]:
    """The settings of a study: the named ones at preset paper, else CIFAR-10 or its stand-in."""
    return names if preset == "paper" else ("fashion_mnist" if preset == "real" else "cifar10",)


def gates(budgets: Sequence[float | tuple[float, ...]], **options: Any) -> list[tuple[str, dict[str, Any]]]:
    """pFedGate at each budget; without other options also with a probe, which scores the final model in other ways."""
    return [("pfedgate", {"keep_ratio": s, **(options or {"probe": True})}) for s in budgets]


def main_comparison(preset: str, overrides: Overrides) -> Groups:
    """Tables 1, 6 and 9, Figures 3 and 6: three budgets, the baselines, the released code's reading, restarts.

    At preset real, Table 9's runs once more with a score after each round; the others are scored every fourth round.
    """
    if preset == "ci":
        yield Group("cifar10", [*gates((0.5,)), ("fedavg", {}), ("fedem", {})])
        return
    code = ("pfedgate", {"keep_ratio": 0.5, "reading": "authors_code"})
    runs = [*gates(BUDGETS), *((name, {}) for name in (*BASELINES, *EXTRA)), *RESTARTS, code]
    for name in sets(preset, *DATASETS):
        yield Group(name, [*runs, *public_sets(name, preset)])
        if preset == "real":
            yield Group(name, [("fedavg", {}), *gates(BUDGETS)], "each round", {"eval_every": 1})


def public_sets(name: str, preset: str) -> Methods:
    """Table 6's FedMD: near and far public sets at preset paper; MNIST (not in the paper) at real; none at quick."""
    if preset == "paper":
        known = methods()["fedmd"].variants
        return [("fedmd", dict(known[f"{name}_{way}"])) for way in ("near", "far") if f"{name}_{way}" in known]
    public = {"public": "mnist", "public_normalise": "mnist", "public_samples": 500}
    return [("fedmd", public)] if preset == "real" else []


def sparsity_studies(preset: str, overrides: Overrides) -> Groups:
    """Figures 5 and 7, Tables 10 to 13, selectors and layouts, and the controls; fewer values at preset real."""
    names = sets(preset, "cifar10", "emnist")  # Table 12; Tables 10 and 11 and Figure 5
    if preset == "real":
        yield Group(names[0], [("fedmask", {"keep_ratio": 0.5})])
    yield from (Group(name, sweep(preset)) for name in names)
    yield from (Group(name, splits(preset)) for name in sets(preset, "cifar10", "femnist"))
    yield from (Group(name, selectors(preset)) for name in names)
    varied = gates(WITH_TENTH if preset == "paper" else (0.5,))
    for name in names:  # Table 12
        yield Group(name, varied)
        partition = SETTINGS.setting(preset, name).partition
        for alpha in ALPHAS[1 : 2 if preset == "ci" else None]:
            yield Group(name, varied, f"alpha={alpha:g}", {"partition": {**partition, "alpha": alpha}})
    for name in names:  # Table 11
        for epochs in EPOCHS[1 : {"ci": 2, "quick": 3}.get(preset)]:
            yield Group(name, varied, f"epochs={epochs}", {"epochs": epochs})
    yield from (Group(name, controls()) for name in names)


def sweep(preset: str) -> Methods:
    """Accuracy over s, with FedAvg and FedAvg-FT for comparison."""
    kept = {"ci": BUDGETS, "real": tuple(s for s in SWEEP if s != 0.9)}.get(preset, SWEEP)
    return [*gates((*kept, MIXED)), ("fedavg", {}), ("fedavg_ft", {})]


def splits(preset: str) -> Methods:
    """Table 13: values of B, and FedMask."""
    kept, nums = {"ci": ((0.5,), SPLITS[:1]), "real": ((0.5, 0.3), SPLITS[:2])}.get(preset, ((0.5, 0.3), SPLITS))
    runs = gates(kept) + [run for num in nums for run in gates(kept, blocks_per_tensor=num)]
    return runs + [("fedmask", {"keep_ratio": s}) for s in kept]


def selectors(preset: str) -> Methods:
    """The released code's greedy groups, blocks of rows, and blocks of one size."""
    kept = (0.5,) if preset == "ci" else (0.5, 0.3)
    ways = ({"selector": "greedy_groups"}, {"block_layout": "output_rows"}, {"block_layout": "balanced"})
    return [run for way in ways for run in gates(kept, **way)]


def controls() -> Methods:
    """Learned, fixed and random masks, with learned scales and scales of 1, at s = 0.5; and the paper's gate.

    Not in the paper: does the mask or the scale personalize? With blocks of one size all masks keep equal shares.
    """
    ways = [(mask, scales) for mask in ("learned", "small_blocks", "random") for scales in ({}, {"gate_override": 1.0})]
    others = [run for mask, scales in ways for run in gates((0.5,), block_layout="balanced", mask=mask, **scales)]
    return gates((0.5,)) + others


def efficiency(preset: str, overrides: Overrides) -> Groups:
    """Runs for traffic and s', with masked and with physically smaller layers. Table 2 is measured in the notebook."""
    structured = {"block_layout": "output_rows", "straight_through": "kept", "execution": "sliced"}
    kept = (0.3,) if preset == "ci" else BUDGETS
    runs = [("fedavg", {}), ("fedem", {}), *gates(kept), *gates([s for s in kept if s < 1], **structured)]
    yield from (Group(name, runs) for name in sets(preset, "cifar10"))


def gate_ablation(preset: str, overrides: Overrides) -> Groups:
    """Table 4: the gate without one of its parts, at s = 0.5.

    Not in the paper: with and without sigmoid at a small rate, the tangent of the sigmoid, no weight decay.
    """
    names = sets(preset, "emnist", "cifar100", "cifar10")
    variants: list[dict[str, Any]] = [{}, *({name: part.without} for name, part in GATE_PARTS.items())]
    variants += [TANGENT, NO_DECAY]
    for name in names:
        yield Group(
            name, [run for options in variants[: 2 if preset == "ci" else None] for run in gates((0.5,), **options)]
        )
    for name in names if preset != "ci" else ():
        slow = {"lr_gate": SMALL_RATE}
        yield Group(name, [*gates((0.5,), **slow), *gates((0.5,), **slow, sigmoid=False)], SLOW)


def participation(preset: str, overrides: Overrides) -> Groups:
    """Tables 3 and 8: all clients; a fifth of them in each round; a fifth of them never.

    FedAvg-FT's run has the same model as FedAvg's, and novel clients that fine-tune it for an epoch. The paper
    does not say for how long novel clients train their gate: once more with ten epochs.
    """
    runs = [("fedavg", {}), ("fedem", {}), *gates((0.5,) if preset == "ci" else BUDGETS)]
    longer = [] if preset == "ci" else gates((0.5,), novel_epochs=10)
    for name in sets(preset, "femnist", "cifar10"):
        yield Group(name, runs)
        yield Group(f"{name}, sampled", runs)
        yield Group(f"{name}, novel", [*runs, ("fedavg_ft", {}), *longer])


def structure(preset: str, overrides: Overrides) -> Groups:
    """Figure 4: the gates of ten clients with about two labels each, at s = 0.3; s = 0.5 is not in the paper."""
    yield Group("pathological", gates((0.3,) if preset == "ci" else (0.3, 0.5)))


PLANS = {
    "01_main_comparison": main_comparison,
    "02_sparsity_studies": sparsity_studies,
    "03_efficiency": efficiency,
    "04_gate_ablation": gate_ablation,
    "05_participation_and_novel": participation,
    "06_personalization_structure": structure,
}
EXPERIMENTS = experiments(SETTINGS, PLANS)
SEEDS: dict[str, dict[str, tuple[int, ...]]] = {  # notebook ("": the others) -> preset -> seeds
    "": {"ci": (0,), "quick": (0,), "real": (0, 1, 2), "paper": (0, 1, 2)},  # three in the paper
}
