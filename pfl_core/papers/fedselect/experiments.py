"""The runs behind each section of FedSelect (section 9 of its specification), both versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pfl_core.algorithms.fedselect.method import FedSelect
from pfl_core.papers.fedselect.settings import BASELINES, LAYERS, READINGS, SETTINGS, VALIDATED, WORKSHOP_BASELINES
from pfl_core.runs import RunSpec
from pfl_core.study.settings import PARTS, Methods

on, setting = SETTINGS.specs, SETTINGS.setting

DATASETS = ("cifar10", "cifar10_c", "mini_imagenet", "office_home")  # of Tables 1 to 3
LIMITS = (0.05, 0.30, 0.50, 0.80)  # Table 2
MAIN = (0.30, 0.50)  # stand for FedSelect beside other methods; chosen before any result was seen
RATES = (0.01, 0.05, 0.10, 0.25)  # of p, ours: the paper's appendix with its effect is not at hand
# Claim 6 to the letter: at the default p no preset's rounds bring α = 1 to its end, and with batch norm α = 0 is FedAvg
# only where statistics are averaged. Neither belongs to the sweep over α.
ENDS = ({"alpha": 1.0, "p": 1.0}, {"alpha": 0.0, "buffer_policy": "average"})
RANKINGS = ("least_change", "random", "magnitude", "gradient")  # Table 3 has the first; the others are ours
SINGLE_CONV = {name: f"{stage}.1.conv2" for name, stage in LAYERS["resnet18"].items()}  # the other way to read them
SIZES = {  # Figure 3, training images of a client; the paper's own sizes are not at hand
    "ci": (20, 40),
    "quick": (20, 40, 100),
    "real": (20, 50, 100),
    "paper": (20, 50, 100, 200, 500),
}
KEEP_RATES = (0.25, 0.50, 0.75)  # p of the workshop version
WORKSHOP = ("workshop s=2", "workshop s=4")
COMPARED = BASELINES  # beside FedSelect in the main comparison; a baseline of one's own is added here
FEW = ("local", "fedavg", "fedavg_ft")  # of them, where all would take too long
ALTERNATION = tuple(name for name in BASELINES if name != "ditto")  # also with the 2 L passes of FedSelect and Ditto
EPOCHS_TWICE = {"fedrep": {"head_epochs": 4, "body_epochs": 2}}  # whose epochs are its own; 2 + 1 by default
TOGETHER = {  # options that mean something only with another one
    "mask_update_start": "mask_update_every",
    "share_precision": "limit_comparison",
}
NOT_A_READING = ("eval_point",)  # both scores are in every run
# Two options act only beside others: "inclusive" where an update ends at exactly ⌊α D⌋ entries, as with p = α (and in
# single precision at α = 0.50 alone), and "threshold" where the cut-off falls on equal changes, as in the code's
# reading (A20, A22).
AT_THE_LIMIT = {"alpha": 0.50, "p": 0.50}
BESIDE_OTHERS = (
    AT_THE_LIMIT,
    {**AT_THE_LIMIT, "limit_comparison": "inclusive"},
    {"reading": "authors_code", "tie_rule": "index"},
)
# What the released code has beside the method's options, by preset: there the data and the network allow it.
CODE_TRAINING = {
    "ci": ("partition",),
    "quick": ("partition", "epochs"),
    "real": ("partition", "epochs", "augment"),
    "paper": ("partition", "epochs", "augment", "model", "batch_size"),
}
ALSO_TRIED_ON = ("local", "fedavg_ft", "fedper")  # these options may lift others as much as they lift FedSelect
STABLE_RATE = 0.01  # at its own 0.05 the released code ran into NaN
CLIP_NORM = 3.5  # the released code's bound on the gradient, off unless asked for; it may cure that, too
BY_TENSOR = {"selection_scope": "per_tensor"}


def each_scope(preset: str, runs: Methods) -> Methods:
    """At preset paper, where ResNet18 is run, FedSelect also with a ranking of each tensor by itself.

    One ranking over ResNet18 makes nearly all of its last layer personal (at α = 0.30 0.97 to 1.00 of `fc.weight`), so
    masks whose overlap there grows with α, as in Figure 4, cannot arise.
    """
    if preset != "paper":
        return runs
    scopes = {"fedselect": ({}, BY_TENSOR)}
    return [(name, {**options, **scope}) for name, options in runs for scope in scopes.get(name, ({},))]


def code_options() -> dict[str, dict[str, Any]]:
    """Where the released code reads the paper in another way, each way on its own."""
    code, out = dict(FedSelect.readings["authors_code"]), {}
    for name, value in code.items():
        if name not in NOT_A_READING:
            out.setdefault(TOGETHER.get(name, name), {})[name] = value
    return out


def on_datasets(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any], runs: Methods) -> list[RunSpec]:
    """All runs for each seed: on the four data sets at preset paper, else on CIFAR-10 (or what stands for it)."""
    return [
        made
        for name in (DATASETS if preset == "paper" else DATASETS[:1])
        for made in on(name, preset, wanted, overrides, runs)
    ]


def main_comparison(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Table 1 and Figure 2: nine baselines, and FedSelect at two limits that are fixed in advance.

    Table 2's other limits, too: the best of the four is Table 1's row. At preset real also on CIFAR10-C, and on
    CIFAR-10 with validation images and the rates that a search chose; the files of the paper's other sets are not ours.
    """
    fixed, others = ([("fedselect", {"alpha": a}) for a in LIMITS if (a in MAIN) is main] for main in (True, False))
    runs, others = each_scope(preset, fixed + [(name, {}) for name in COMPARED]), each_scope(preset, others)
    made = on_datasets(preset, wanted, overrides, runs + others)
    if preset == "real":
        for name in ("cifar10_c", VALIDATED):
            made += on(name, preset, wanted, overrides, runs + others)
    return made


def personalization_limit(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Table 2 and the effect of p: α at one p with α = 0 and 1 added, p at two α, and three baselines; both ENDS."""
    small = preset == "ci"
    limits = (0.0, 0.10, 0.30) if small else (0.0, *LIMITS, 1.0)
    runs = each_scope(preset, [("fedselect", {"alpha": alpha}) for alpha in limits])
    ends = ENDS if preset == "paper" else ENDS[:1]  # no network of the other presets has batch norm
    rates = {"ci": [(0.30, 0.01)], "real": []}  # at real the default p only, to save time
    every = [(alpha, p) for alpha in MAIN for p in RATES if p != FedSelect().p]  # the default is there already
    of_p = each_scope(preset, [("fedselect", {"alpha": alpha, "p": p}) for alpha, p in rates.get(preset, every)])
    runs = [*runs, *(("fedselect", options) for options in ends), *((name, {}) for name in FEW)]
    return on_datasets(preset, wanted, overrides, runs) + on("cifar10", preset, wanted, overrides, of_p)


def layer_groups(model: str) -> dict[str, tuple[str, ...]]:
    """Table 3's fixed masks on a network: what is personal, by name; ResNet18's in both ways."""
    groups = {f"layer {name}": (layer,) for name, layer in LAYERS[model].items()}
    single = {f"layer {name}, one convolution": (layer,) for name, layer in SINGLE_CONV.items()}
    return groups | single if model == "resnet18" else groups


def ablations(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Table 3: other rules of who becomes personal, at two limits; and masks fixed to one group of layers."""
    limits = MAIN[:1] if preset == "ci" else MAIN
    rules = [{}, *({"ranking": name} for name in RANKINGS), {"masks": "random"}, {"masks": "common_random"}]
    runs = each_scope(preset, [("fedselect", {"alpha": alpha, **rule}) for alpha in limits for rule in rules])
    made = on_datasets(preset, wanted, overrides, runs)
    for one in on_datasets(preset, wanted, overrides, [("fedselect", {})]):
        groups = layer_groups(one.model["name"]).values()
        made += [replace(one, method={**one.method, "masks": "layers", "layers": list(layers)}) for layers in groups]
    return made


def training_size(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Figure 3: all methods with fewer and more training images on each client."""
    frame = setting(preset, "cifar10").partition
    limits, methods = (MAIN[:1], FEW) if preset == "ci" else (MAIN, COMPARED)
    runs = each_scope(preset, [("fedselect", {"alpha": alpha}) for alpha in limits]) + [(name, {}) for name in methods]
    made = []
    for size in SIZES[preset]:
        per_class = size // frame["classes_per_client"]
        changes = {"partition": {**frame, "train_per_class": per_class}, **overrides}
        name = "cifar10" if per_class == frame["train_per_class"] else f"cifar10, {size} images"
        made += [replace(one, setting=name) for one in on("cifar10", preset, wanted, changes, runs)]
    return made


def mask_overlap(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Figure 4: the masks that the runs of Table 2 end with."""
    limits = (0.10, 0.30) if preset == "ci" else LIMITS
    runs = each_scope(preset, [("fedselect", {"alpha": alpha}) for alpha in limits])
    return on("cifar10", preset, wanted, overrides, runs)


def workshop(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """The workshop version's Table 1 and Figures 1 and 2: two and four classes a client, three rates p."""
    rates = (0.50,) if preset == "ci" else KEEP_RATES
    runs = [("fedselect_gradltn", {"keep_rate": rate}) for rate in rates]
    epochs = overrides.get("epochs", setting(preset, WORKSHOP[0]).train.epochs)
    own = {"fedrep": {"head_epochs": max(1, epochs - 1)}}  # and one for the body: as many in all as the others have
    names = ("fedavg", "fedper") if preset == "ci" else WORKSHOP_BASELINES
    runs += [(name, own.get(name, {})) for name in names]
    return [made for name in WORKSHOP for made in on(name, preset, wanted, overrides, runs)]


def code_training(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """The paper's reading with the code's class deal, epochs, augmentation, network, batches, each alone.

    Each is tried on the methods of ALSO_TRIED_ON, too. None of those that ``overrides`` replaces.
    """
    frame, made = setting(preset, "cifar10"), []
    for name in CODE_TRAINING[preset]:
        if name in overrides:
            continue
        value = READINGS["authors_code"][name]
        own = value if isinstance(value, Mapping) else {name: value}  # options of a part, or a field of the training
        change = {name: {**getattr(frame, name), **own}} if name in PARTS else own
        methods = [(method, {}) for method in ("fedselect", *ALSO_TRIED_ON)]
        shown = ", ".join(f"{option}={value}" for option, value in own.items())
        alone = on("cifar10", preset, wanted, {**change, **overrides}, methods)
        made += [replace(one, setting=f"cifar10, {shown}") for one in alone]
    return made


def code_cures(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """All of the released code together with its optional clipping; at preset paper at a smaller rate, too.

    At its own rate it may diverge. None of those that ``overrides`` replaces, and none at preset ci.
    """
    cures = {
        f"code with clip_norm={CLIP_NORM}": {"clip_norm": CLIP_NORM},
        f"code at lr {STABLE_RATE}": {"lr": STABLE_RATE},
    }
    code, made = [("fedselect", {"reading": "authors_code"})], []
    for name, change in list(cures.items())[: {"ci": 0, "paper": 2}.get(preset, 1)]:
        if not change.keys() & overrides.keys():
            runs = on("cifar10", preset, wanted, {**change, **overrides}, code)
            made += [replace(one, setting=f"cifar10, {name}") for one in runs]
    return made


def paper_vs_code(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """The paper's reading, each of the released code's options on its own and all together; equal numbers of passes.

    And what the code does in another way in dealing classes and in training, each alone, under settings of their own.
    Ditto has as many passes as FedSelect without doubling, and FedSelect stands there at both limits of the other
    notebooks.
    """
    options = list(code_options().values())
    options, more = (options[:3], ()) if preset == "ci" else (options, BESIDE_OTHERS)
    runs = [("fedselect", option) for option in [{}, *options, {"reading": "authors_code"}, *more]]
    made = on("cifar10", preset, wanted, overrides, runs)
    made += code_training(preset, wanted, overrides) + code_cures(preset, wanted, overrides)
    as_many = [("fedselect", {"alpha": alpha}) for alpha in MAIN if alpha != FedSelect().alpha] + [("ditto", {})]
    made += on("cifar10", preset, wanted, overrides, as_many + [(name, {}) for name in ALTERNATION])
    epochs = overrides.get("epochs", setting(preset, "cifar10").train.epochs)
    doubled = [(name, EPOCHS_TWICE.get(name, {})) for name in ALTERNATION]
    doubled = on("cifar10", preset, wanted, {**overrides, "epochs": 2 * epochs}, doubled)
    return made + [replace(one, setting="cifar10, twice the epochs") for one in doubled]


EXPERIMENTS = {
    "01_main_comparison": main_comparison,
    "02_personalization_limit": personalization_limit,
    "03_ablations": ablations,
    "04_training_size": training_size,
    "05_mask_overlap": mask_overlap,
    "06_workshop_gradltn": workshop,
    "07_paper_vs_code": paper_vs_code,
}
TWO = {"quick": (0, 1)}  # of notebooks that ask for many small runs: a paper's notebooks have five minutes together
SEEDS = {  # notebook ("": the others) -> preset -> seeds
    "": {"ci": (0, 1), "quick": (0, 1, 2), "real": (0, 1, 2), "paper": (0, 1, 2, 3, 4)},
    "03_ablations": TWO,
    "04_training_size": TWO,
    "06_workshop_gradltn": TWO,
    "07_paper_vs_code": TWO,
}
