"""The runs behind each section of Star-PFL (section 10 of its specification)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from pfl_core.algorithms.star_pfl.method import StarPFL
from pfl_core.papers.star_pfl.settings import BASELINES, SETTINGS
from pfl_core.runs import RunSpec
from pfl_core.study.settings import Methods

PROBED = 200  # entries whose course is noted for the stability traces
EPOCH_BY_EPOCH = 20  # rounds whose local epochs are noted one by one, for Figure 1
FIELDS = {field.name for field in fields(StarPFL)}

LIKENESS = "star_pfl_likeness"  # watches Figure 2's scores; changes nothing
ALPHAS = (0.01, 0.1, 1.0)
TASKS = ("axial", "sagital")
WITHOUT = {"threshold_global": None, "threshold_local": None}  # claim 9: nothing is ever frozen, all else is equal
PARTS = {  # of the method: what each of its two masks does, and the probes
    "no mask": WITHOUT,
    "local mask alone": {"threshold_global": None},
    "global mask alone": {"threshold_local": None},
    "never thawed": {"thaw": False},
}
READINGS = {  # what the paper leaves open (section 3.6), one at a time, and all as in the released code
    "A3 inclusive threshold": {"threshold_rule": "inclusive"},
    "A5 zero updates skipped": {"zero_update_policy": "skip"},
    "A8 mean of the active": {"masked_aggregation": "active_mean"},
    "A12 biases always train": {"train_mask_scope": "weights"},
    "A13 mask after Check": {"upload_mask_timing": "after_check"},
    "A16 0.7 % floor": {"stability_floor_quantile": 0.007},
    "authors' code": {"reading": "authors_code"},
}
MORE_READINGS = {  # not at preset quick: a paper's notebooks have five minutes together
    "A4 full windows only": {"min_history": "full"},
    "A8 weighted mean of the active": {"masked_aggregation": "active_weighted"},
    "A16 at most 70 % frozen": {"max_frozen_fraction": 0.7},
    "moving averages": {"stability_measure": "ema"},
}
SCOPES = {"windows roll": {}, "A7 windows of one round": {"history_scope": "round"}}  # with one local epoch: see below


def on(name: str, preset: str, wanted: Sequence[int], overrides: Mapping[str, Any], runs: Methods) -> list[RunSpec]:
    """All runs for each seed in one of the settings; ``overrides`` may set Star-PFL's own fields, too (T, H, ...)."""
    own = {k: v for k, v in overrides.items() if k in FIELDS}
    others = {k: v for k, v in overrides.items() if k not in FIELDS}
    set_too = [(method, (own if method == "star_pfl" else {}) | options) for method, options in runs]
    return SETTINGS.specs(name, preset, wanted, others, set_too)


def with_alpha(name: str, preset: str, alpha: float) -> dict[str, Any]:
    """The setting's split with another alpha."""
    return {"partition": {**SETTINGS.setting(preset, name).partition, "alpha": alpha}}


def tasks(preset: str) -> tuple[str, ...]:
    """Digits stand for both data sets at the small presets: once is enough."""
    return TASKS[:1] if preset in ("ci", "quick") else TASKS


def stability_traces(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Figure 1 and what goes with it: Star-PFL with its probe, and with nothing frozen, which is FedAvg.

    The latter once more, for a few rounds, with client 0's values after each local epoch.
    """
    runs = [("star_pfl", {"probe": PROBED}), ("star_pfl", {"probe": PROBED, **WITHOUT})]
    rounds = min(SETTINGS.setting(preset, "traces").rounds, EPOCH_BY_EPOCH)
    watched = ("star_pfl", {"probe": PROBED, "probe_epochs": True, **WITHOUT})
    short = on("traces", preset, wanted, {"rounds": rounds, **overrides}, [watched])
    return on("traces", preset, wanted, overrides, runs) + [replace(one, setting="traces, each epoch") for one in short]


def mask_similarity(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Figure 2 while nothing is frozen: clients with one label, scores of one round and of two; with two labels.

    Then the Dirichlet split, for as many rounds as the groups.
    """
    frame = SETTINGS.setting(preset, "labels")
    two = {"partition": {**frame.partition, "labels_per_group": 2}, **overrides}
    longer = {"history_len_local": 2 * overrides.get("epochs", frame.train.epochs)}
    made = on("labels", preset, wanted, overrides, [(LIKENESS, {}), (LIKENESS, longer)])
    made += [replace(one, setting="labels, two each") for one in on("labels", preset, wanted, two, [(LIKENESS, {})])]
    return made + on("traces", preset, wanted, {"rounds": frame.rounds, **overrides}, [(LIKENESS, {})])


def compared(preset: str) -> Methods:
    """The six methods; at preset ci FedAP's model is pretrained for two epochs."""
    short = {"fedap": {"pretrain_epochs": 2}} if preset == "ci" else {}
    return [("star_pfl", {}), *((name, short.get(name, {})) for name in BASELINES)]


def accuracy(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Table 2: six methods, three alphas, two data sets."""
    return [
        made
        for name in tasks(preset)
        for alpha in (ALPHAS[:2] if preset == "ci" else ALPHAS)
        for made in on(name, preset, wanted, {**with_alpha(name, preset, alpha), **overrides}, compared(preset))
    ]


def costs(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Table 3: the runs of Table 2 with alpha = 0.1."""
    return [made for name in tasks(preset) for made in on(name, preset, wanted, overrides, compared(preset))]


def options(preset: str) -> dict[str, dict[str, Any]]:
    """The ablations by name: the method as it is, its parts, its readings."""
    readings = {"ci": {}, "quick": READINGS}.get(preset, READINGS | MORE_READINGS)
    return {"Star-PFL": {}} | PARTS | readings


def ablations(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """What each mask, the probes and the readings do (alpha = 0.1), beside Local and FedAvg.

    A7 changes nothing where a round has as many epochs as a window: it is run with one local epoch.
    """
    runs = [("star_pfl", each) for each in options(preset).values()] + [("local", {}), ("fedavg", {})]
    short = on("axial", preset, wanted, {**overrides, "epochs": 1}, [("star_pfl", each) for each in SCOPES.values()])
    return on("axial", preset, wanted, overrides, runs) + [replace(s, setting="axial, one epoch") for s in short]


def named(spec: RunSpec) -> str:
    """What an ablation is called: its option's name; '' for a run that is none."""
    own = {name: value for name, value in spec.method.items() if name != "name"}
    every = {"Star-PFL": {}} | PARTS | READINGS | MORE_READINGS | SCOPES
    return next((name for name, each in every.items() if spec.method["name"] == "star_pfl" and each == own), "")


EXPERIMENTS = {
    "01_stability_traces": stability_traces,
    "02_mask_similarity": mask_similarity,
    "04_accuracy": accuracy,
    "05_costs": costs,
    "06_ablations": ablations,
}
SEEDS = {  # notebook ("": the others) -> preset -> seeds
    "": {"ci": (0,), "quick": (0, 1), "real": (0,), "paper": (0, 1, 2)},
    "01_stability_traces": {"paper": (0,)},
}
