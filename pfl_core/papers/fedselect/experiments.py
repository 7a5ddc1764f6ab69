"""The runs behind each notebook of FedSelect, CVPR and workshop version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pfl_core.algorithms.fedselect.method import FedSelect
from pfl_core.papers.fedselect.settings import (
    BASELINES,
    CORRUPTED,
    FEW_IMAGES,
    LAYERS,
    READINGS,
    SETTINGS,
    VALIDATED,
    WORKSHOP_BASELINES,
)
from pfl_core.papers.plans import Group, Groups, Overrides, experiments
from pfl_core.study.settings import PARTS, Methods

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
CURES: dict[str, dict[str, float]] = {  # of the released code, which at its rate of 0.05 ran into NaN
    "code with clip_norm=3.5": {"clip_norm": 3.5},  # its optional bound on the gradient
    "code at lr 0.01": {"lr": 0.01},
}
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


def selects(preset: str, limits: Sequence[float], **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    """FedSelect at each limit; at preset paper also with a ranking of each tensor by itself.

    One ranking over ResNet18 makes nearly all of its last layer personal (at α = 0.30, over 0.99 of `fc.weight`).
    Masks whose overlap there grows with α, as in Figure 4, cannot arise from it.
    """
    scopes: list[dict[str, str]] = [{}, {"selection_scope": "per_tensor"}][: 2 if preset == "paper" else 1]
    return [("fedselect", {"alpha": alpha, **fields, **scope}) for alpha in limits for scope in scopes]


def code_options() -> dict[str, dict[str, Any]]:
    """The options of the released code that differ from the paper's text, each with the options that it requires."""
    options: dict[str, dict[str, Any]] = {}
    for name, value in FedSelect.readings["authors_code"].items():
        if name not in NOT_A_READING:
            options.setdefault(REQUIRED_OPTION.get(name, name), {})[name] = value
    return options


def datasets(preset: str, *at_real: str) -> tuple[str, ...]:
    """The four data sets at preset paper; otherwise CIFAR-10 or its stand-in, and at preset real further settings."""
    return DATASETS if preset == "paper" else (*DATASETS[:1], *(at_real if preset == "real" else ()))


def main_comparison(preset: str, overrides: Overrides) -> Groups:
    """Table 1 and Figure 2: nine baselines, and FedSelect at two limits that are fixed in advance.

    Also Table 2's other limits, since Table 1's row is the best of the four. At preset real, CIFAR10-C is added, and
    both with validation images and searched rates. The files of the paper's other data sets are not available.
    """
    other_limits = selects(preset, [alpha for alpha in LIMITS if alpha not in MAIN])
    runs = [*selects(preset, MAIN), *((name, {}) for name in BASELINES), *other_limits]
    return (Group(name, runs) for name in datasets(preset, "cifar10_c", VALIDATED, CORRUPTED))


def personalization_limit(preset: str, overrides: Overrides) -> Groups:
    """Table 2 and the effect of p.

    α at one p (with α = 0 and 1 added), p at two values of α, three baselines, and RANGE_ENDS.
    """
    limits = (0.0, 0.10, 0.30) if preset == "ci" else (0.0, *LIMITS, 1.0)
    ends = RANGE_ENDS if preset == "paper" else RANGE_ENDS[:1]  # no network of the other presets has batch norm
    others = [*(("fedselect", options) for options in ends), *((name, {}) for name in FEW_BASELINES)]
    yield from (Group(name, [*selects(preset, limits), *others]) for name in datasets(preset))
    other_rates = [(alpha, p) for alpha in MAIN for p in RATES if p != FedSelect().p]  # the others have the default p
    grid = {"ci": [(0.30, 0.01)], "real": []}.get(preset, other_rates)  # at real the default p only, to save time
    yield Group("cifar10", [run for alpha, p in grid for run in selects(preset, [alpha], p=p)])


def layer_groups(model: str) -> dict[str, tuple[str, ...]]:
    """Label -> personal layers of Table 3's fixed masks on a network; for ResNet18 in both readings."""
    groups: dict[str, tuple[str, ...]] = {f"layer {name}": (layer,) for name, layer in LAYERS[model].items()}
    if model == "resnet18":
        groups |= {f"layer {name}, one convolution": (layer,) for name, layer in SINGLE_CONV.items()}
    return groups


def ablations(preset: str, overrides: Overrides) -> Groups:
    """Table 3: other selection rules at two limits, and masks fixed to one group of layers.

    At preset real also with validation images and searched rates.
    """
    rules: list[dict[str, Any]] = [{}, *({"ranking": name} for name in RANKINGS)]
    rules += [{"masks": "random"}, {"masks": "common_random"}]
    limits = MAIN[:1] if preset == "ci" else MAIN
    runs = [run for alpha in limits for rule in rules for run in selects(preset, [alpha], **rule)]
    yield from (Group(name, runs) for name in datasets(preset, VALIDATED))
    for name in datasets(preset, VALIDATED):
        model = overrides.get("model", SETTINGS.setting(preset, name).model)
        groups = layer_groups(model if isinstance(model, str) else model["name"]).values()
        yield Group(name, [("fedselect", {"masks": "layers", "layers": list(layers)}) for layers in groups])


def training_size(preset: str, overrides: Overrides) -> Groups:
    """Figure 3: all methods with fewer and with more training images on each client.

    At preset real also 20 and 100 images with validation images and searched rates.
    """
    partition = SETTINGS.setting(preset, "cifar10").partition
    limits, methods = (MAIN[:1], FEW_BASELINES) if preset == "ci" else (MAIN, BASELINES)
    runs = [*selects(preset, limits), *((name, {}) for name in methods)]
    for size in SIZES[preset]:
        per_class = size // partition["classes_per_client"]
        note = "" if per_class == partition["train_per_class"] else f"{size} images"
        yield Group("cifar10", runs, note, {"partition": {**partition, "train_per_class": per_class}})
    if preset == "real":
        yield from (Group(name, runs) for name in (FEW_IMAGES, VALIDATED))


def mask_overlap(preset: str, overrides: Overrides) -> Groups:
    """Figure 4: the final masks of Table 2's runs; at real, of those with validation images."""
    limits = (0.10, 0.30) if preset == "ci" else LIMITS
    yield Group(VALIDATED if preset == "real" else "cifar10", selects(preset, limits))


def workshop(preset: str, overrides: Overrides) -> Groups:
    """The workshop version's Table 1 and Figures 1 and 2: two and four classes a client, three rates p."""
    epochs = overrides.get("epochs", SETTINGS.setting(preset, WORKSHOP[0]).train.epochs)
    # FedRep splits the local epochs: one on the body, the others on the head.
    options = {"fedrep": {"head_epochs": max(1, epochs - 1)}}
    rates, names = ((0.50,), ("fedavg", "fedper")) if preset == "ci" else (KEEP_RATES, WORKSHOP_BASELINES)
    runs: Methods = [("fedselect_gradltn", {"keep_rate": rate}) for rate in rates]
    runs = [*runs, *((name, options.get(name, {})) for name in names)]
    return (Group(name, runs) for name in WORKSHOP)


def code_training(preset: str, overrides: Overrides) -> Groups:
    """The paper's reading with each of the released code's training options alone, also on ALSO_TRIED_ON.

    These options are the assignment of classes, epochs, augmentation, network and batch size. Options that
    ``overrides`` replaces are left out.
    """
    base = SETTINGS.setting(preset, "cifar10")
    for name in CODE_TRAINING[preset]:
        value = READINGS["authors_code"][name]
        options = value if isinstance(value, Mapping) else {name: value}  # of a component, or one field of the training
        change = {name: {**getattr(base, name), **options}} if name in PARTS else options
        label = ", ".join(f"{option}={value}" for option, value in options.items())
        if name not in overrides:
            one = preset == "real" and name != "partition"
            methods: Methods = [(method, {}) for method in ("fedselect", *ALSO_TRIED_ON)]
            yield Group("cifar10", methods, label, change, one_seed=one)


def paper_vs_code(preset: str, overrides: Overrides) -> Groups:
    """The paper's reading against the released code's options, and methods with equal numbers of passes.

    The options are run one at a time and all together; those of classes and training have separate settings. Ditto
    has as many passes as FedSelect without doubling its epochs. FedSelect is run at both limits of MAIN. CURES that
    ``overrides`` replace are left out; the baselines choose no masks, in which the code diverges, and need none. At
    preset real most options have one seed.
    """
    one = preset == "real"
    options = list(code_options().values())
    options, combined = (options[:3], ()) if preset == "ci" else (options, COMBINED_OPTIONS)
    code = {"reading": "authors_code"}
    yield Group("cifar10", [("fedselect", {})])
    yield Group("cifar10", [("fedselect", option) for option in [*options, code, *combined]], one_seed=one)
    yield from code_training(preset, overrides)
    for name, change in list(CURES.items())[: {"ci": 0, "paper": 2}.get(preset, 1)]:
        if not change.keys() & overrides.keys():
            yield Group("cifar10", [("fedselect", code)], name, change, one_seed=one)
    other_limits = [("fedselect", {"alpha": alpha}) for alpha in MAIN if alpha != FedSelect().alpha]
    yield Group("cifar10", [*other_limits, ("ditto", {}), *((name, {}) for name in ALTERNATION)])
    epochs = overrides.get("epochs", SETTINGS.setting(preset, "cifar10").train.epochs)
    alternation: Methods = [(name, EPOCHS_TWICE.get(name, {})) for name in ALTERNATION]
    yield Group("cifar10", alternation, "twice the epochs", fixed={"epochs": 2 * epochs}, one_seed=one)


PLANS = {
    "01_main_comparison": main_comparison,
    "02_personalization_limit": personalization_limit,
    "03_ablations": ablations,
    "04_training_size": training_size,
    "05_mask_overlap": mask_overlap,
    "06_workshop_gradltn": workshop,
    "07_paper_vs_code": paper_vs_code,
}
EXPERIMENTS = experiments(SETTINGS, PLANS)
SEEDS: dict[str, dict[str, tuple[int, ...]]] = {  # notebook ("": all others) -> preset -> seeds
    "": {"ci": (0, 1), "quick": (0,), "real": (0, 1, 2), "paper": (0, 1, 2, 3, 4)},
    "01_main_comparison": {"real": (0, 1, 2, 3)},  # with three seeds the leads over several baselines stay open
    "02_personalization_limit": {"quick": (0, 1, 2)},  # nothing better shows one of its figures
    "05_mask_overlap": {"real": (0, 1, 2, 3)},
}
