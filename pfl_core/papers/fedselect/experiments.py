"""The runs behind each notebook of FedSelect, CVPR and workshop version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pfl_core.algorithms.fedselect.method import FedSelect
from pfl_core.papers.fedselect.settings import BASELINES, LAYERS, READINGS, SETTINGS, VALIDATED, WORKSHOP_BASELINES
from pfl_core.runs import RunSpec
from pfl_core.study.settings import PARTS, Methods

Runs = list[tuple[str, dict[str, Any]]]  # a method's name and its fields

specs_in, setting = SETTINGS.specs, SETTINGS.setting

DATASETS = ("cifar10", "cifar10_c", "mini_imagenet", "office_home")  # of Tables 1 to 3
LIMITS = (0.05, 0.30, 0.50, 0.80)  # Table 2
MAIN = (0.30, 0.50)  # FedSelect's limits in comparisons of methods; chosen before any result was seen
RATES = (0.01, 0.05, 0.10, 0.25)  # of p; not in the paper: its appendix with the effect of p was not available
# For claim 6 only, not for the sweep over α. At the default p no preset has enough rounds for α = 1, and with batch
# norm α = 0 is FedAvg only if the statistics are averaged.
RANGE_ENDS = ({"alpha": 1.0, "p": 1.0}, {"alpha": 0.0, "buffer_policy": "average"})
RANKINGS = ("least_change", "random", "magnitude", "gradient")  # the first is in Table 3; the others are not
SINGLE_CONV = {name: f"{stage}.1.conv2" for name, stage in LAYERS["resnet18"].items()}  # another reading of A to D
SIZES = {  # Figure 3, training images of a client; not in the paper: its sizes were not available
    "ci": (20, 40),
    "quick": (20, 40, 100),
    "real": (20, 50, 100),
    "paper": (20, 50, 100, 200, 500),
}
KEEP_RATES = (0.25, 0.50, 0.75)  # p of the workshop version
WORKSHOP = ("workshop s=2", "workshop s=4")
COMPARED = BASELINES  # beside FedSelect in the main comparison; add further baselines here
FEW_BASELINES = ("local", "fedavg", "fedavg_ft")  # where all baselines would take too long
ALTERNATION = tuple(name for name in BASELINES if name != "ditto")  # also run with 2 L passes, as FedSelect and Ditto
EPOCHS_TWICE = {"fedrep": {"head_epochs": 4, "body_epochs": 2}}  # its epochs are fields of the method, 2 + 1 by default
REQUIRED_OPTION = {  # option -> the option without which it has no effect
    "mask_update_start": "mask_update_every",
    "share_precision": "limit_comparison",
}
NOT_A_READING = ("eval_point",)  # both scores are in every run
# Two options act only together with others. "inclusive" needs an update that ends at exactly ⌊α D⌋ entries, as with
# p = α (in single precision only for α = 0.50). "threshold" needs equal changes at the cut-off, as in the code's
# reading (A20 and A22 of the method page).
AT_THE_LIMIT = {"alpha": 0.50, "p": 0.50}
COMBINED_OPTIONS = (
    AT_THE_LIMIT,
    {**AT_THE_LIMIT, "limit_comparison": "inclusive"},
    {"reading": "authors_code", "tie_rule": "index"},
)
# Training options of the released code that a preset's data and network allow.
CODE_TRAINING = {
    "ci": ("partition",),
    "quick": ("partition", "epochs"),
    "real": ("partition", "epochs", "augment"),
    "paper": ("partition", "epochs", "augment", "model", "batch_size"),
}
ALSO_TRIED_ON = ("local", "fedavg_ft", "fedper")  # these options may help other methods as much as FedSelect
STABLE_RATE = 0.01  # at its rate of 0.05 the released code ran into NaN
CLIP_NORM = 3.5  # the released code's optional bound on the gradient; may prevent the divergence as well
BY_TENSOR = {"selection_scope": "per_tensor"}
OPTIONS = {  # of the released code -> plain words
    "selection_scope=per_tensor": "rank tensor by tensor",
    "eligible_params=weights_only": "select weights only",
    "limit_comparison=inclusive": "grow at the limit, too",
    "tie_rule=threshold": "select all ties",
    "tie_rule=index": "select ties by index",
    "mask_update_every=3": "grow every third round",
    "mask_update_start=3": "from round 4 on",
    "change_reference=last_mask_update": "change since the last growth",
    "batch_order=reshuffle_each_pass": "new batches for each pass",
    "skip_empty_pass=False": "run empty passes",
    "bn_mode=eval_after_round_0": "batch norm frozen after round 1",
    "aggregate_last_round=False": "last round not averaged",
    "reading=authors_code": "the released code",
    "count_rounding=rest_half_even": "shared count rounded half to even",
    "share_precision=float32": "share in single precision",
    "epochs=15": "15 local epochs",
    "augment=crop_flip": "random crops and flips",
    "allow_duplicate_classes=True": "a client may get one class twice",
    "code with clip_norm=3.5": "the released code; gradients clipped",
}


def each_scope(preset: str, runs: Methods) -> Runs:
    """At preset paper, also runs FedSelect with a ranking of each tensor by itself.

    One ranking over ResNet18 makes nearly all of its last layer personal (at α = 0.30, over 0.99 of `fc.weight`).
    Masks whose overlap there grows with α, as in Figure 4, cannot arise from it.
    """
    if preset != "paper":
        return list(runs)
    scopes: dict[str, tuple[dict[str, Any], ...]] = {"fedselect": ({}, BY_TENSOR)}
    return [(name, {**options, **scope}) for name, options in runs for scope in scopes.get(name, ({},))]


def code_options() -> dict[str, dict[str, Any]]:
    """The options of the released code that differ from the paper's text, each with the options that it requires."""
    options: dict[str, dict[str, Any]] = {}
    for name, value in FedSelect.readings["authors_code"].items():
        if name not in NOT_A_READING:
            options.setdefault(REQUIRED_OPTION.get(name, name), {})[name] = value
    return options


def on_datasets(preset: str, seeds: Sequence[int], overrides: Mapping[str, Any], runs: Methods) -> list[RunSpec]:
    """All runs with each seed, on the four data sets at preset paper, otherwise on CIFAR-10 or its stand-in."""
    names = DATASETS if preset == "paper" else DATASETS[:1]
    return [spec for name in names for spec in specs_in(name, preset, seeds, overrides, runs)]


def main_comparison(preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Table 1 and Figure 2: nine baselines, and FedSelect at two limits that are fixed in advance.

    Also Table 2's other limits, since Table 1's row is the best of the four. At preset real, CIFAR10-C is added, and
    CIFAR-10 with validation images and searched rates. The files of the paper's other data sets are not available.
    """
    fixed = [("fedselect", {"alpha": alpha}) for alpha in LIMITS if alpha in MAIN]
    other_limits = [("fedselect", {"alpha": alpha}) for alpha in LIMITS if alpha not in MAIN]
    runs = each_scope(preset, [*fixed, *((name, {}) for name in COMPARED)]) + each_scope(preset, other_limits)
    specs = on_datasets(preset, seeds, overrides, runs)
    if preset == "real":
        for name in ("cifar10_c", VALIDATED):
            specs += specs_in(name, preset, seeds, overrides, runs)
    return specs


def personalization_limit(preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Table 2 and the effect of p.

    α at one p (with α = 0 and 1 added), p at two values of α, three baselines, and RANGE_ENDS.
    """
    limits = (0.0, 0.10, 0.30) if preset == "ci" else (0.0, *LIMITS, 1.0)
    runs = each_scope(preset, [("fedselect", {"alpha": alpha}) for alpha in limits])
    ends = RANGE_ENDS if preset == "paper" else RANGE_ENDS[:1]  # no network of the other presets has batch norm
    other_rates = [(alpha, p) for alpha in MAIN for p in RATES if p != FedSelect().p]  # the default p is in ``runs``
    grid = {"ci": [(0.30, 0.01)], "real": []}.get(preset, other_rates)  # at real the default p only, to save time
    runs_of_p = each_scope(preset, [("fedselect", {"alpha": alpha, "p": p}) for alpha, p in grid])
    runs = [*runs, *(("fedselect", options) for options in ends), *((name, {}) for name in FEW_BASELINES)]
    return on_datasets(preset, seeds, overrides, runs) + specs_in("cifar10", preset, seeds, overrides, runs_of_p)


def layer_groups(model: str) -> dict[str, tuple[str, ...]]:
    """Label -> personal layers of Table 3's fixed masks on a network; for ResNet18 in both readings."""
    groups: dict[str, tuple[str, ...]] = {f"layer {name}": (layer,) for name, layer in LAYERS[model].items()}
    if model == "resnet18":
        groups |= {f"layer {name}, one convolution": (layer,) for name, layer in SINGLE_CONV.items()}
    return groups


def ablations(preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Table 3: other selection rules at two limits, and masks fixed to one group of layers.

    At preset real also with validation images and searched rates.
    """
    limits = MAIN[:1] if preset == "ci" else MAIN
    rules: list[dict[str, Any]] = [{}, *({"ranking": name} for name in RANKINGS)]
    rules += [{"masks": "random"}, {"masks": "common_random"}]
    runs = each_scope(preset, [("fedselect", {"alpha": alpha, **rule}) for alpha in limits for rule in rules])
    layers: Runs = [("fedselect", {})]
    specs, plain = on_datasets(preset, seeds, overrides, runs), on_datasets(preset, seeds, overrides, layers)
    if preset == "real":
        specs += specs_in(VALIDATED, preset, seeds, overrides, runs)
        plain += specs_in(VALIDATED, preset, seeds, overrides, layers)
    for spec in plain:
        groups = layer_groups(spec.model["name"]).values()
        specs += [replace(spec, method={**spec.method, "masks": "layers", "layers": list(names)}) for names in groups]
    return specs


def training_size(preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Figure 3: all methods with fewer and with more training images on each client."""
    partition = setting(preset, "cifar10").partition
    limits, methods = (MAIN[:1], FEW_BASELINES) if preset == "ci" else (MAIN, COMPARED)
    runs = each_scope(preset, [("fedselect", {"alpha": alpha}) for alpha in limits]) + [(name, {}) for name in methods]
    specs = []
    for size in SIZES[preset]:
        per_class = size // partition["classes_per_client"]
        changes = {"partition": {**partition, "train_per_class": per_class}, **overrides}
        name = "cifar10" if per_class == partition["train_per_class"] else f"cifar10, {size} images"
        specs += [replace(spec, setting=name) for spec in specs_in("cifar10", preset, seeds, changes, runs)]
    return specs


def mask_overlap(preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Figure 4: the final masks of Table 2's runs; at real, of those with validation images."""
    limits = (0.10, 0.30) if preset == "ci" else LIMITS
    runs = each_scope(preset, [("fedselect", {"alpha": alpha}) for alpha in limits])
    return specs_in(VALIDATED if preset == "real" else "cifar10", preset, seeds, overrides, runs)


def workshop(preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """The workshop version's Table 1 and Figures 1 and 2: two and four classes a client, three rates p."""
    rates = (0.50,) if preset == "ci" else KEEP_RATES
    runs: Runs = [("fedselect_gradltn", {"keep_rate": rate}) for rate in rates]
    epochs = overrides.get("epochs", setting(preset, WORKSHOP[0]).train.epochs)
    # FedRep splits the local epochs: one on the body, the others on the head.
    options = {"fedrep": {"head_epochs": max(1, epochs - 1)}}
    names = ("fedavg", "fedper") if preset == "ci" else WORKSHOP_BASELINES
    runs += [(name, options.get(name, {})) for name in names]
    return [spec for name in WORKSHOP for spec in specs_in(name, preset, seeds, overrides, runs)]


def code_training(preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """The paper's reading with each of the released code's training options alone, also on ALSO_TRIED_ON.

    These options are the assignment of classes, epochs, augmentation, network and batch size. Options that
    ``overrides`` replaces are left out.
    """
    base, specs = setting(preset, "cifar10"), []
    methods: Methods = [(method, {}) for method in ("fedselect", *ALSO_TRIED_ON)]
    for name in CODE_TRAINING[preset]:
        if name in overrides:
            continue
        value = READINGS["authors_code"][name]
        options = value if isinstance(value, Mapping) else {name: value}  # of a component, or one field of the training
        change = {name: {**getattr(base, name), **options}} if name in PARTS else options
        label = ", ".join(f"{option}={value}" for option, value in options.items())
        runs = specs_in("cifar10", preset, seeds, {**change, **overrides}, methods)
        specs += [replace(spec, setting=f"cifar10, {label}") for spec in runs]
    return specs


def code_cures(preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """The released code's reading with its optional clipping; at preset paper also at a smaller rate.

    At its default rate it may diverge while it chooses masks; baselines choose none, so they need no cure. Left out:
    changes that ``overrides`` replaces, and all at preset ci.
    """
    cures: dict[str, dict[str, float]] = {
        f"code with clip_norm={CLIP_NORM}": {"clip_norm": CLIP_NORM},
        f"code at lr {STABLE_RATE}": {"lr": STABLE_RATE},
    }
    code: Methods = [("fedselect", {"reading": "authors_code"})]
    specs: list[RunSpec] = []
    for name, change in list(cures.items())[: {"ci": 0, "paper": 2}.get(preset, 1)]:
        if not change.keys() & overrides.keys():
            runs = specs_in("cifar10", preset, seeds, {**change, **overrides}, code)
            specs += [replace(spec, setting=f"cifar10, {name}") for spec in runs]
    return specs


def paper_vs_code(preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """The paper's reading against the released code's options, and methods with equal numbers of passes.

    The options are run one at a time and all together; those of classes and training have separate settings. Ditto
    has as many passes as FedSelect without doubling its epochs. FedSelect is run at both limits of MAIN.
    """
    options = list(code_options().values())
    options, combined = (options[:3], ()) if preset == "ci" else (options, COMBINED_OPTIONS)
    runs: Methods = [("fedselect", option) for option in [{}, *options, {"reading": "authors_code"}, *combined]]
    specs = specs_in("cifar10", preset, seeds, overrides, runs)
    specs += code_training(preset, seeds, overrides) + code_cures(preset, seeds, overrides)
    other_limits = [("fedselect", {"alpha": alpha}) for alpha in MAIN if alpha != FedSelect().alpha]
    baselines: Methods = [*other_limits, ("ditto", {}), *((name, {}) for name in ALTERNATION)]
    specs += specs_in("cifar10", preset, seeds, overrides, baselines)
    epochs = overrides.get("epochs", setting(preset, "cifar10").train.epochs)
    alternation: Methods = [(name, EPOCHS_TWICE.get(name, {})) for name in ALTERNATION]
    doubled = specs_in("cifar10", preset, seeds, {**overrides, "epochs": 2 * epochs}, alternation)
    return specs + [replace(spec, setting="cifar10, twice the epochs") for spec in doubled]


EXPERIMENTS = {
    "01_main_comparison": main_comparison,
    "02_personalization_limit": personalization_limit,
    "03_ablations": ablations,
    "04_training_size": training_size,
    "05_mask_overlap": mask_overlap,
    "06_workshop_gradltn": workshop,
    "07_paper_vs_code": paper_vs_code,
}
# Two seeds in notebooks with many small runs: at quick a paper's notebooks should take five minutes together.
TWO_SEEDS: dict[str, tuple[int, ...]] = {"quick": (0, 1)}
SEEDS: dict[str, dict[str, tuple[int, ...]]] = {  # notebook ("": all others) -> preset -> seeds
    "": {"ci": (0, 1), "quick": (0, 1, 2), "real": (0, 1, 2), "paper": (0, 1, 2, 3, 4)},
    "01_main_comparison": {"real": (0, 1, 2, 3)},  # with three seeds the leads over several baselines stay open
    "05_mask_overlap": {"real": (0, 1, 2, 3)},
    "03_ablations": TWO_SEEDS,
    "04_training_size": TWO_SEEDS,
    "06_workshop_gradltn": TWO_SEEDS,
    "07_paper_vs_code": TWO_SEEDS,
}
