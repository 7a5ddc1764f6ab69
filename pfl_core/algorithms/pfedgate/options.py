"""pFedGate's options, and the mechanism checks of a run: do the gates learn, and does a client's own gate help?

The options are its hyper-parameters, choices where paper and released code differ, and controls. The bounds of the
checks are not in the paper; they were set before the runs. The checks use only the notes of a run, so they also work on
stored runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge

from pfl_core.algorithm import Algorithm, MechanismCheck
from pfl_core.algorithms.pfedgate.gate import NORMAL_NODES, NORMAL_WEIGHTS, activate
from pfl_core.federation.federation import EVAL_BATCH
from pfl_core.options import NonNegativeFloat, NonNegativeInt
from pfl_core.training import Training

LEAST = 0.05  # smallest distance of scales, which are between 0 and 1 with sigmoids
POINTS = 1.0  # smallest lead, in points of accuracy


@dataclass(frozen=True)
class PFedGateOptions(Algorithm):
    """Fields of pFedGate. ``notebooks/pfedgate/README.md`` compares options with the paper and the released code."""

    keep_ratio: float | tuple[float, ...] = 0.5  # s; several: one for each client, or assigned at random in equal parts
    blocks_per_tensor: Annotated[int, Ge(2)] = 5  # B
    lr_gate: NonNegativeFloat = 0.1  # η; Table 7 gives it by data set and s
    # Blocks and selection
    block_layout: Literal["first_min_ratio", "equal", "balanced", "output_rows"] = "first_min_ratio"
    min_keep_ratio: float | None = None  # s_min; None: given by the rule
    min_keep_rule: Literal["below_budget", "authors_code"] = "below_budget"
    selector: Literal["exact", "greedy", "greedy_groups"] = "exact"
    straight_through: Literal["all", "kept"] = "all"  # blocks whose importance gets a gradient
    # The gate, with the ablations of Table 4
    gate_paths: Literal["two", "shared"] = "two"  # separate paths for M and G, or the same
    gate_init: Literal["independent", "copied"] = "independent"  # how the second path starts
    pre_norm: bool = True
    post_norm: bool = True
    sigmoid: bool = True
    without_sigmoid: Literal["identity", "tangent"] = "identity"  # not in the paper: M = z, or the sigmoid's tangent
    scale_bias_init: float = 0.0  # not in the paper: 3 starts M near 0.9, for short runs
    gate_granularity: Literal["batch", "client", "client_masked_mean"] = "batch"  # M' by batch or by client
    # Training and server
    training: Literal["joint", "alternating"] = "joint"  # "alternating": first the gate, then the model
    keep_momentum: bool = True  # clients keep their momentum between rounds
    gate_weight_decay: NonNegativeFloat | None = None  # None: the same as for the model
    last_batch: Literal["kept", "dropped"] = "kept"
    logit_relu: bool = False  # a ReLU after the last layer, as in the released code
    aggregation: Literal["by_index", "dense", "whole_models"] = "by_index"  # see ``method.py``
    averaged_over: Literal["participants", "everyone"] = "participants"
    execution: Literal["dense", "sliced"] = "dense"  # masked full-size layers, or physically smaller ones
    # Evaluation
    eval_weights: Literal["global", "local"] = "global"  # which of the two scores is reported
    eval_gate: Literal["batch", "client_train_mean", "sample"] = "batch"  # what a test sample's M' is computed from
    eval_batch_size: int = 128
    eval_order: int = 0  # number of the random order of the test samples
    novel_epochs: NonNegativeInt = 1  # epochs in which a novel client trains its gate
    # Controls: does the mask or the scale personalize?
    mask: Literal["learned", "small_blocks", "random"] = "learned"
    gate_override: float | None = None  # M of every block, instead of the gate's
    probe: bool = False  # not in the paper: record the diagnostics of the final model (``local.py``)

    readings: ClassVar = {
        "paper": {},
        "authors_code": {
            "block_layout": "equal",
            "min_keep_rule": "authors_code",
            "selector": "greedy_groups",
            "straight_through": "kept",
            "gate_paths": "shared",
            "gate_init": "copied",
            "last_batch": "dropped",
            "logit_relu": True,
            "aggregation": "whole_models",
            "averaged_over": "everyone",
            "eval_weights": "local",
        },
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        ratios = self.keep_ratio if isinstance(self.keep_ratio, tuple) else (self.keep_ratio,)
        if not ratios or not all(0 < s <= 1 for s in ratios):
            raise ValueError(
                f"PFedGate: keep_ratio={self.keep_ratio} is outside (0, 1]; give the share that is kept, 1 for dense"
            )
        if self.min_keep_ratio is not None and not 0 < self.min_keep_ratio <= min(ratios):
            raise ValueError(
                f"PFedGate: min_keep_ratio={self.min_keep_ratio} is outside (0, s] with s={min(ratios)}; give a value "
                "in this range, or None to use min_keep_rule"
            )
        if self.eval_batch_size < 1 or EVAL_BATCH % self.eval_batch_size:
            raise ValueError(
                f"PFedGate: eval_batch_size={self.eval_batch_size} does not divide {EVAL_BATCH}, the number of samples "
                "that are scored at once; use a divisor such as 128"
            )
        if self.sigmoid and self.without_sigmoid != "identity":
            raise ValueError(f"PFedGate: without_sigmoid={self.without_sigmoid!r} needs sigmoid=False")
        if self.scale_bias_init and not self.sigmoid and self.without_sigmoid == "identity":
            raise ValueError(
                f"PFedGate: scale_bias_init={self.scale_bias_init} needs the sigmoid or its tangent; with M = z, M "
                "starts at 1, so leave it at 0"
            )
        if self.averaged_over == "everyone" and self.aggregation == "by_index":
            raise ValueError(
                'PFedGate: averaged_over="everyone" needs aggregation="dense" or "whole_models"; with "by_index", '
                "absent clients have no blocks to average"
            )
        if self.execution == "sliced" and (self.block_layout, self.straight_through) != ("output_rows", "kept"):
            raise ValueError(
                'PFedGate: execution="sliced" leaves out whole rows; it needs block_layout="output_rows" and '
                'straight_through="kept"'
            )
        if self.execution == "sliced" and (self.alternates or self.logit_relu):
            raise ValueError(
                'PFedGate: execution="sliced" needs training="joint", a gate_granularity other than '
                '"client_masked_mean", and logit_relu=False'
            )

    @property
    def alternates(self) -> bool:
        """Whether a round trains first the gate and then the model."""
        return self.training == "alternating" or self.gate_granularity == "client_masked_mean"

    @property
    def reported(self) -> str:  # type: ignore[override]  # depends on a field here
        return "after_merge" if self.eval_weights == "global" else "after_local_update"

    @property
    def tangent(self) -> tuple[float, ...]:
        """Initial bias of each gate path, if the sigmoid is replaced by its tangent there; else ()."""
        if self.without_sigmoid != "tangent":
            return ()
        return (self.scale_bias_init, 0.0) if self.gate_paths == "two" else (self.scale_bias_init,)

    def mechanism(self, series: Mapping[str, np.ndarray], rounds: int, training: Training) -> list[MechanismCheck]:
        """See ``Algorithm.mechanism``. Checks whose notes are missing in a run are left out."""
        checks = [scales_move(self, series, rounds, training)]
        if self.gate_override is None or self.mask == "learned":
            checks.append(
                lead_over(
                    series,
                    "other_gates_correct",
                    "points that a client's own gate is ahead of other clients' gates",
                    "gates can be exchanged between clients, so they do not personalize; compare with one gate for all "
                    "clients",
                )
            )
        if self.gate_override is None:  # another client's gate may be worse only for its running statistics
            checks.append(
                lead_over(
                    series,
                    "constant_scales_correct",
                    "points that a client's own gate is ahead of one constant scale",
                    "the learned scales do not help here; raise lr_gate, or compare with the mask alone",
                )
            )
        checks.append(budget_is_kept(series))
        return [check for check in checks if check is not None]


def scales_move(
    options: PFedGateOptions, series: Mapping[str, np.ndarray], rounds: int, training: Training
) -> MechanismCheck | None:
    """Distance of the scales from the value they would have after weight decay alone.

    It is the root mean square over the kept blocks, averaged over the clients of the last round. Not checked for gates
    without the second norm or with one image for each client, since their scales differ between blocks from the start.
    """
    applies = options.gate_override is None and options.post_norm and options.gate_granularity != "client"
    if not applies or not {"gate_scale", "gate_spread", "steps"} <= series.keys():
        return None
    mean, spread = series["gate_scale"][-1], series["gate_spread"][-1]  # [N] over the blocks of each client
    present = ~np.isnan(mean)
    if not present.any():
        return None
    steps = round(float(np.nansum(series["steps"], axis=0)[present].mean()))
    by_decay = scale_by_decay(options, training, steps, rounds)
    value = float(np.hypot(mean[present] - by_decay, spread[present]).mean())
    return MechanismCheck(
        "distance of the gates' scales from those that weight decay alone would leave",
        value,
        LEAST,
        value >= LEAST,
        "the gates hardly learned; raise lr_gate or train for more rounds",
    )


def scale_by_decay(options: PFedGateOptions, training: Training, steps: int, rounds: int) -> float:
    """M of a gate after ``steps`` SGD steps in which all gradients but weight decay are 0.

    The second norm gives its outputs mean 0 and variance 1, before gain and bias. Gain and bias shrink by the same
    factor. M is the mean over normal logits, by Gauss-Hermite quadrature.
    """
    decay = training.weight_decay if options.gate_weight_decay is None else options.gate_weight_decay
    gate_training = replace(training, weight_decay=decay)
    left = left_by_decay(gate_training, options.lr_gate, steps, rounds, options.keep_momentum)
    bias = options.scale_bias_init + (1.0 if not options.sigmoid and options.without_sigmoid == "identity" else 0.0)
    logits = torch.from_numpy(left * (bias + NORMAL_NODES))[:, None]
    values = activate(logits, options.sigmoid, options.tangent[:1]).squeeze(1).numpy()
    return float(NORMAL_WEIGHTS @ values)


def left_by_decay(training: Training, lr: float, steps: int, rounds: int, keep_momentum: bool) -> float:
    """Value of a parameter that starts at 1, after ``steps`` SGD steps over all rounds with weight decay alone."""
    parameter, velocity, last = 1.0, 0.0, 0
    for step in range(steps):
        t = step * rounds // steps
        velocity *= training.momentum if keep_momentum or t == last else 0.0
        velocity += training.weight_decay * parameter
        parameter -= lr * training.factor(t, rounds) * velocity
        last = t
    return parameter


def lead_over(series: Mapping[str, np.ndarray], rival: str, what: str, otherwise: str) -> MechanismCheck | None:
    """Accuracy in points with the clients' own gates, minus that of ``rival``, a name in ``series``; all test samples.

    ``what`` and ``otherwise`` are those of the check.
    """
    if rival not in series:
        return None
    lead = series["order_correct"][0].sum() - series[rival].sum(-1).mean()
    value = float(100 * lead / series["test_count"].sum())
    return MechanismCheck(what, value, POINTS, value >= POINTS, otherwise)


def budget_is_kept(series: Mapping[str, np.ndarray]) -> MechanismCheck | None:
    """A failed check for runs that exceed a budget, where nothing is selected and more than s is kept; else None."""
    infeasible = float(np.nanmean(series["infeasible"])) if "infeasible" in series else 0.0
    if not infeasible:
        return None
    return MechanismCheck(
        "share of the clients whose always-kept blocks alone exceed their budget",
        infeasible,
        0.0,
        False,
        "the budget is infeasible for them: nothing can be selected, and they keep more than keep_ratio; raise it, or "
        "lower min_keep_ratio (block_layout='equal' always keeps 1 / blocks_per_tensor)",
    )
