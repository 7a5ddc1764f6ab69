"""The runs behind each section of the Star-PFL notebooks."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pfl_core.algorithms.star_pfl.method import StarPFL
from pfl_core.papers.plans import Group, Groups, Overrides, experiments
from pfl_core.papers.star_pfl.settings import BASELINES, SETTINGS
from pfl_core.runs import RunSpec
from pfl_core.study.settings import Methods

PROBED = 200  # entries whose values, scores and states are recorded for the stability traces
EPOCH_BY_EPOCH = 20  # rounds in which values are recorded after each local epoch, for Figure 1

Options = dict[str, dict[str, Any]]  # name of an ablation -> Star-PFL's fields

LIKENESS = "star_pfl_likeness"  # records the scores of Figure 2; trains as FedAvg does
ALPHAS = (0.01, 0.1, 1.0)
# Real's rounds on Fashion-MNIST until the mean scores of clients and server have settled. Found by one run of Star-PFL,
# by its scores alone. MNIST's server never settles: with a training loss near 0 its scores go up and down.
SETTLED = "sagital, settled"
UNTIL_SETTLED = 140
TASKS = ("axial", "sagital")
WITHOUT = {"threshold_global": None, "threshold_local": None}  # claim 9: nothing is ever frozen
PARTS: Options = {  # the method without one of its parts, or with chance in its place
    "no mask": WITHOUT,
    "local mask alone": {"threshold_global": None},
    "global mask alone": {"threshold_local": None},
    "never thawed": {"thaw": False},
    "random entries": {"freeze": "random"},
    "never thawed, random entries": {"thaw": False, "freeze": "random"},
}
READINGS: Options = {  # ambiguities of the paper, one at a time (notebooks/star_pfl/README.md), and the released code
    "A3 inclusive threshold": {"threshold_rule": "inclusive"},
    "A5 zero updates skipped": {"zero_update_policy": "skip"},
    "A8 mean of the active": {"masked_aggregation": "active_mean"},
    "A12 biases always train": {"train_mask_scope": "weights"},
    "A13 mask after Check": {"upload_mask_timing": "after_check"},
    "A16 0.7 % floor": {"stability_floor_quantile": 0.007},
    "authors' code": {"reading": "authors_code"},
}
MORE_READINGS: Options = {  # not at preset quick, to save time
    "A4 full windows only": {"min_history": "full"},
    "A8 weighted mean of the active": {"masked_aggregation": "active_weighted"},
    "A16 at most 70 % frozen": {"max_frozen_fraction": 0.7},
    "moving averages": {"stability_measure": "ema"},
}
SCOPES: Options = {"windows roll": {}, "A7 windows of one round": {"history_scope": "round"}}  # with one local epoch


def tasks(preset: str) -> tuple[str, ...]:
    """The tasks of a preset; at ci and quick both have the same stand-in, so one of them is run."""
    return TASKS[:1] if preset in ("ci", "quick") else TASKS


def stability_traces(preset: str, overrides: Overrides) -> Groups:
    """Figure 1: Star-PFL with a probe, and the same with nothing frozen, which is FedAvg.

    The latter is run once more for a few rounds, with client 0's values after each local epoch.
    """
    yield Group("traces", [("star_pfl", {"probe": PROBED}), ("star_pfl", {"probe": PROBED, **WITHOUT})])
    rounds = min(SETTINGS.setting(preset, "traces").rounds, EPOCH_BY_EPOCH)
    by_epoch: Methods = [("star_pfl", {"probe": PROBED, "probe_epochs": True, **WITHOUT})]
    yield Group("traces", by_epoch, "each epoch", {"rounds": rounds})


def mask_similarity(preset: str, overrides: Overrides) -> Groups:
    """Figure 2, with nothing frozen: groups with one label, with scores of one round and of two rounds.

    Then groups with two labels, and the Dirichlet split for as many rounds.
    """
    setting = SETTINGS.setting(preset, "labels")
    one_round: Methods = [(LIKENESS, {})]
    two_rounds = {"history_len_local": 2 * overrides.get("epochs", setting.train.epochs)}
    yield Group("labels", [*one_round, (LIKENESS, two_rounds)])
    yield Group("labels", one_round, "two each", {"partition": {**setting.partition, "labels_per_group": 2}})
    yield Group("traces", one_round, changes={"rounds": setting.rounds})


def compared_methods(preset: str) -> Methods:
    """The six methods; at preset ci FedAP's model is pretrained for two epochs."""
    short: Options = {"fedap": {"pretrain_epochs": 2}} if preset == "ci" else {}
    return [("star_pfl", {}), *((name, short.get(name, {})) for name in BASELINES)]


def accuracy(preset: str, overrides: Overrides) -> Groups:
    """Table 2: six methods, three values of α, two tasks."""
    for name in tasks(preset):
        partition = SETTINGS.setting(preset, name).partition
        for alpha in ALPHAS[:2] if preset == "ci" else ALPHAS:
            yield Group(name, compared_methods(preset), changes={"partition": {**partition, "alpha": alpha}})


def costs(preset: str, overrides: Overrides) -> Groups:
    """Table 3: the runs of Table 2 with α = 0.1."""
    return (Group(name, compared_methods(preset)) for name in tasks(preset))


def options(preset: str) -> Options:
    """The ablations of a preset by name: the method itself, without its parts, and its readings."""
    readings: dict[str, Options] = {"ci": {}, "quick": READINGS}
    return {"Star-PFL": {}} | PARTS | readings.get(preset, READINGS | MORE_READINGS)


def ablations(preset: str, overrides: Overrides) -> Groups:
    """Star-PFL without one part, or in another reading (α = 0.1), with Local and FedAvg for comparison.

    Readings run on one task. At preset real, they run with the first seed only, and some parts also run until the
    scores have settled.

    A7 makes no difference where a round has at least as many epochs as a window, so it is run with one local epoch.
    """
    parts: Options = {"Star-PFL": {}} | PARTS
    for name in tasks(preset):
        yield Group(name, [*(("star_pfl", option) for option in parts.values()), ("local", {}), ("fedavg", {})])
    if preset == "real":
        few_parts = [("star_pfl", parts[name]) for name in ("Star-PFL", "random entries", "no mask", "never thawed")]
        yield Group("sagital", few_parts, SETTLED.partition(", ")[2], {"rounds": UNTIL_SETTLED})
    readings = [("star_pfl", option) for name, option in options(preset).items() if name not in parts]
    scopes = [("star_pfl", option) for option in SCOPES.values()]
    few = preset == "real"
    yield Group("axial", readings, one_seed=few)
    yield Group("axial", scopes, "one epoch", fixed={"epochs": 1}, one_seed=few)


def ablation_name(spec: RunSpec) -> str:
    """Name of the ablation that a run belongs to; '' for other runs."""
    fields_set = {name: value for name, value in spec.method.items() if name != "name"}
    known: Options = {"Star-PFL": {}} | PARTS | READINGS | MORE_READINGS | SCOPES
    if spec.method["name"] != "star_pfl":
        return ""
    return next((name for name, option in known.items() if option == fields_set), "")


PLANS = {
    "01_stability_traces": stability_traces,
    "02_mask_similarity": mask_similarity,
    "04_accuracy": accuracy,
    "05_costs": costs,
    "06_ablations": ablations,
}
EXPERIMENTS = experiments(SETTINGS, PLANS, own={field.name for field in fields(StarPFL)})
SEEDS: dict[str, dict[str, tuple[int, ...]]] = {  # notebook ("": the others) -> preset -> seeds
    "": {"ci": (0,), "quick": (0,), "real": (0, 1, 2), "paper": (0, 1, 2)},
    "01_stability_traces": {"paper": (0,)},
    "02_mask_similarity": {"real": (0,)},
}
