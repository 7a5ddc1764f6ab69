"""The papers' numbers beside ours, cell by cell, with what ours was made from."""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import fmean, stdev

import pandas as pd

from pfl_core.paper import compare_pfedgate
from pfl_core.paper.results import COLUMNS, PRESETS, data_label, defaults, fresh_first, require, variants
from pfl_core.paper.tables import BASES, parse_variant, table
from pfl_core.stated import FEDPEWS_BEST, FEDSELECT_LAYERS

Fields = dict[str, float | str]
Runs = dict[tuple[str, str, str], list[dict]]  # (method, metric, data set) -> our runs, fresh ones first
ROW = "table dataset method variant metric paper ours spread preset data seeds stale".split()
SHOWN = tuple(preset for preset in PRESETS if preset != "ci")

# Data set in a paper -> our name of the same data set.
DATASETS = {
    "CIFAR-10": "cifar10",
    "CIFAR10": "cifar10",
    "CIFAR100": "cifar100",
    "CIFAR10-C": "cifar10_c",
    "Mini-ImageNet": "mini_imagenet",
    "OfficeHome": "office_home",
    "EMNIST": "emnist",
    "FEMNIST": "femnist",
    "Axial": "organamnist",
    "Sagital": "organsmnist",
    "CIFAR-MNIST": "cifar_mnist",
    "{Path-OCT-Tissue}MNIST": "path_oct_tissue",
    "Synthetic-32K": "synthetic_32k",
    "Synthetic-3.2K": "synthetic_3200",
}
# Shown, under its own name, only where nothing of the paper's data set is stored. Star-PFL's page forbids stand-ins.
STAND_INS = {
    ("fedselect", "CIFAR-10"): ("digits",),
    ("fedpews", "Synthetic-32K"): ("synthetic_3200",),
    ("fedpews", "CIFAR-MNIST"): ("synthetic_3200",),
    ("fedpews", "{Path-OCT-Tissue}MNIST"): ("mnist+fashion_mnist+cifar10", "synthetic_3200"),
    ("pfedgate", "CIFAR10"): ("digits",),
    ("pfedgate", "EMNIST"): ("fashion_mnist", "mnist", "digits"),
}
# Metric in a paper -> ours. FedPeWS scores one global model on all test data, which is our pooled accuracy.
# Star-PFL's round is that of the best validation accuracy (ours, A11: the paper does not say).
METRICS = {"mean_client_accuracy": "acc_mean", "final_accuracy": "acc_pooled"}
OWN_METRICS = {("star_pfl", "mean_client_accuracy"): "acc_mean_picked"}
PER_UNIT = {("star_pfl", "mean_client_accuracy"): 0.01}  # Star-PFL prints shares, we store percent
FIELDS = {"lambda": "lam", "eta_g": "lr_server"}  # a field in a paper's variant -> ours
CONTEXT = {"T", "batch_size", "target"}  # belong to a column of the paper's table, told by our preset
# Settings (presets) whose runs are a data set's tables; the others have other clients, splits or epochs, for a figure
# or another table. FedSelect's oldest stored runs name none ("").
SETTINGS = {
    ("fedselect", "CIFAR-10"): ("cifar10", ""),
    ("fedselect", "CIFAR10-C"): ("cifar10_c", ""),
    ("fedselect", "Mini-ImageNet"): ("mini_imagenet", ""),
    ("fedselect", "OfficeHome"): ("office_home", ""),
    ("fedpews", "Synthetic-32K"): ("lr_server=1", "lr_server=0.5", "lr_server=0.25"),
    ("fedpews", "Synthetic-3.2K"): ("lr_server=0.1",),
    ("fedpews", "CIFAR-MNIST"): ("cifar_mnist",),
    ("fedpews", "{Path-OCT-Tissue}MNIST"): ("path_oct_tissue",),
    ("star_pfl", "Axial"): ("axial",),
    ("star_pfl", "Sagital"): ("sagital",),
}
# Fields of FedPeWS that a table leaves open, as we run them: the best of its Tables 7 and 8
UNSTATED = {
    ("fedpews", "table3", dataset): dict(zip(("lam", "tau"), FEDPEWS_BEST[setting], strict=True))
    for dataset, setting in (("CIFAR-MNIST", "cifar_mnist"), ("{Path-OCT-Tissue}MNIST", "path_oct_tissue"))
}
# Table 3 of FedSelect names rules where we have fields; which layers are its A to D is ours, for each network.
RULES = {("ranking", "least_change"): "Personalize Least", ("masks", "random"): "Random"}
LAYERS = {
    model: {layer: f"Layer {letter}" for letter, layer in layers.items()} for model, layers in FEDSELECT_LAYERS.items()
}
BEST_OF = {("fedselect", "table1", "FedSelect"): "table2"}  # the paper's cell is the best row of another table


def compare(paper: str, results: pd.DataFrame) -> list[dict]:
    """A row (keys ROW) for each number of the paper's tables; `ours` None where nothing fits.

    results: tidy, columns `results.COLUMNS`; `variant` holds only fields that differ from the paper's main setting or
    that its tables vary. The paper's own data come before a stand-in (marked in `data`), then preset paper before real
    before quick (ci never shows), then longer runs (by a column `rounds`, if there is one), then a fresh run before a
    stale one. `ours` is the mean over seeds in the paper's unit, `spread` the sample standard deviation (n - 1; None
    for one seed), `seeds` their list, `stale` whether any of them is stale.
    Raises ValueError for an unknown paper and for missing columns.
    """
    require(results, COLUMNS)
    cells, runs = table(paper), defaultdict(list)
    usable = results[(results["paper"] == paper) & results["preset"].isin(SHOWN)].dropna(subset="value")
    usable = fresh_first(usable)
    for run, fields in zip(usable.to_dict("records"), variants(usable), strict=True):
        fields = _with_rule(fields, run.get("model")) if run["method"] == "fedselect" else fields
        if paper == "star_pfl" and "dirichlet" in run:
            fields["alpha"] = run["dirichlet"]  # of the split, which is what varies in its tables
        fields = compare_pfedgate.fields_of(run, fields) if paper == "pfedgate" else fields
        runs[run["method"], run["metric"], run["dataset"]].append({**run, "fields": fields})
    return [_row(cell, runs, cells) for cell in cells.itertuples()]


def _row(cell: tuple, runs: Runs, cells: pd.DataFrame) -> dict:
    other = BEST_OF.get((cell.paper, cell.table, cell.method))
    if other is None:
        variant, stored = cell.variant, _stored(cell, cell.variant, runs)
    else:
        variant, stored = f"best row of {other}", _best(cell, other, runs, cells)
    paper = None if math.isnan(cell.value) else cell.value
    shown = dict(table=cell.table, dataset=cell.dataset, method=cell.method, variant=variant, metric=cell.metric)
    return {**shown, "paper": paper, **_summary(stored, PER_UNIT.get((cell.paper, cell.metric), 1.0))}


def _stored(cell: tuple, variant: str, runs: Runs) -> list[dict]:
    """Our runs for a cell: one data set, one preset, one run for each seed."""
    theirs, metric, key = _our_fields(cell, variant), METRICS.get(cell.metric, cell.metric), cell.key
    metric = OWN_METRICS.get((cell.paper, cell.metric), metric)
    if cell.paper == "pfedgate":
        (theirs, metric), key = compare_pfedgate.wanted(cell, theirs), compare_pfedgate.method_of(cell)
    main, settings = defaults(cell.paper, cell.key), SETTINGS.get((cell.paper, cell.dataset))
    for dataset in (DATASETS.get(cell.dataset), *STAND_INS.get((cell.paper, cell.dataset), ())):
        found = runs.get((key, metric, dataset), [])
        found = [run for run in found if settings is None or run.get("setting", settings[0]) in settings]
        found = [run for run in found if _same_setting(theirs, run["fields"], main)]
        if found:
            source = min(map(_source, found))
            chosen = [run for run in found if _source(run) == source]
            if dataset != DATASETS.get(cell.dataset):
                chosen = [{**run, "data": f"{data_label(dataset, run['data'])} (stand-in)"} for run in chosen]
            return list({run["seed"]: run for run in reversed(chosen)}.values())
    return []


def _source(run: dict) -> tuple:
    """What must not be mixed in one cell, best first: preset, length, copy of the data (the plain name first)."""
    return SHOWN.index(run["preset"]), -run.get("rounds", 0), run["data"]


def _our_fields(cell: tuple, variant: str) -> Fields:
    fields = {FIELDS.get(name, name): value for name, value in parse_variant(variant).items() if name not in CONTEXT}
    if cell.method not in BASES:
        return fields
    return {**UNSTATED.get((cell.paper, cell.table, cell.dataset), {}), **fields, "base": BASES[cell.method]}


def _with_rule(ours: Fields, model: str | None) -> Fields:
    """FedSelect's fields, those that are a rule of Table 3 under its name."""
    if ours.get("masks") == "layers":
        rule = LAYERS.get(model, {}).get(str(ours.get("layers")).strip("(',)"))
    else:
        rule = next((name for field, name in RULES.items() if ours.get(field[0]) == field[1]), None)
    if rule is None:
        return ours
    return {"rule": rule, **{name: value for name, value in ours.items() if name not in ("ranking", "masks", "layers")}}


def _same_setting(theirs: Fields, ours: Fields, default: Fields) -> bool:
    """Each field of the paper's variant is ours, and ours has no other that departs from the paper's main setting."""
    fields = theirs.keys() | ours.keys()
    return all(_equal(ours.get(name, default.get(name)), theirs.get(name, default.get(name))) for name in fields)


def _equal(a: float | str | None, b: float | str | None) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b)
    return a is not None and a == b


def _best(cell: tuple, other: str, runs: Runs, cells: pd.DataFrame) -> list[dict]:
    """As the paper does: the best of another table's settings, of the first preset that has all of them."""
    here = (cells["table"] == other) & (cells["dataset"] == cell.dataset) & (cells["method"] == cell.method)
    for preset in SHOWN:
        alike = {key: [run for run in found if run["preset"] == preset] for key, found in runs.items()}
        found = [_stored(cell, variant, alike) for variant in cells.loc[here, "variant"]]
        if all(found) and len({stored[0]["data"] for stored in found}) == 1:
            return max(found, key=lambda stored: fmean(run["value"] for run in stored))
    return []


def _summary(stored: list[dict], unit: float) -> dict:
    if not stored:
        return dict.fromkeys(ROW[ROW.index("ours") :])
    values = [run["value"] * unit for run in stored]
    return {
        "ours": fmean(values),
        "spread": stdev(values) if len(values) > 1 else None,
        "preset": stored[0]["preset"],
        "data": stored[0]["data"],
        "seeds": sorted(int(run["seed"]) for run in stored),
        "stale": any(bool(run["stale"]) for run in stored),
    }


def as_frame(rows: list[dict]) -> pd.DataFrame:
    """The rows as a data frame, for notebooks."""
    return pd.DataFrame(rows, columns=ROW)
