"""Labels and colours of FedSelect's runs: limits, rules of selection, options of the released code."""

from __future__ import annotations

from functools import cache

import matplotlib.pyplot as plt
import pandas as pd

from pfl_core.study.methods import NAMES
from pfl_core.study.style import COLORS, DASHES, MARKERS, Look

SHADES = {0.0: 0.3, 0.05: 0.42, 0.30: 0.55, 0.50: 0.7, 0.80: 0.85, 1.0: 1.0}  # limit -> position in a colour map
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
BY_TENSOR = "tensor by tensor"  # label of runs that rank each tensor by itself


@cache  # get_cmap copies the colour map in each call
def shade(alpha: float, by_tensor: bool = False) -> tuple:
    """The colour of a personalization limit: red for one ranking, purple for a ranking of each tensor by itself."""
    return plt.get_cmap("Purples" if by_tensor else "Reds")(SHADES.get(round(alpha, 2), 0.5))


@cache
def limit_look(alpha: float) -> Look:
    """The look of a personalization limit in figures of limits only."""
    place = sorted(SHADES).index(alpha) if alpha in SHADES else 0
    return Look(shade(alpha), MARKERS[place], DASHES[place])


def by_tensor(runs: pd.DataFrame) -> pd.Series:
    """Which of ``runs`` rank tensor by tensor. The column selection_scope may be missing if no run is FedSelect's."""
    return runs.get("selection_scope", pd.Series("", runs.index)) == "per_tensor"


def labelled(runs: pd.DataFrame) -> pd.DataFrame:
    """``runs`` with a label and a colour for each method, and for each limit and scope of FedSelect.

    Columns: method, alpha, and by_tensor's.
    """
    is_fedselect, per_tensor = runs["method"] == "fedselect", by_tensor(runs)
    # Label: the method's display name; for FedSelect also the limit and the scope of the ranking.
    limit = "FedSelect, α = " + runs["alpha"].map("{:g}".format).astype(str)
    label = runs["method"].map(NAMES).where(~is_fedselect, limit + per_tensor.map({True: f", {BY_TENSOR}", False: ""}))
    fields = zip(runs["method"], runs["alpha"], is_fedselect, per_tensor, strict=True)
    color = [shade(alpha, apart) if selected else COLORS[name] for name, alpha, selected, apart in fields]
    return runs.assign(label=label, color=color)


def rules(runs: pd.DataFrame) -> pd.DataFrame:
    """``runs`` of FedSelect with a label and a colour for each rule of Table 3, and each scope.

    Columns: ranking, masks, layers, and by_tensor's.
    """
    fixed = {"random": "random, fixed", "common_random": "one random mask for all"}
    named = {
        "change": "most change (FedSelect)",
        "least_change": "least change",
        "random": "random, growing",
        "magnitude": "largest weights",
        "gradient": "largest gradients",
    }
    layered = runs["masks"] == "layers"
    # Growing masks are labelled by their ranking, fixed ones by their kind or their layers.
    label = runs["ranking"].map(named).mask(runs["masks"] != "grown", runs["masks"].map(fixed))
    label = label.mask(layered, "only " + runs["layers"].map(lambda names: ", ".join(names)))
    label += by_tensor(runs).map({True: f", {BY_TENSOR}", False: ""})
    fixed_colors = {named["change"]: COLORS["fedselect"], f"{named['change']}, {BY_TENSOR}": COLORS["pfedgate"]}
    others = [color for color in dict.fromkeys(COLORS.values()) if color not in fixed_colors.values()]
    color = {text: fixed_colors.get(text, others[i % len(others)]) for i, text in enumerate(dict.fromkeys(label))}
    return runs.assign(label=label, color=label.map(color))


def option_text(label: str) -> str:
    """Plain words for the released code's options in a label such as "p=0.5; alpha=0.5"."""
    return "; ".join(
        OPTIONS.get(part, part.replace("alpha=", "α = ").replace("p=", "p = ")) for part in label.split("; ")
    )
