"""Mechanism checks of a pFedGate run: do the gates learn, and is a client's own gate better than others or none?

The bounds are not in the paper; they were set before the runs. The checks use only the notes of a run, so they also
work on stored runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from pfl_core.algorithm import MechanismCheck
from pfl_core.algorithms.pfedgate.adapt import tangent
from pfl_core.algorithms.pfedgate.gate import activate
from pfl_core.algorithms.pfedgate.options import PFedGateOptions
from pfl_core.training import Training

LEAST = 0.05  # smallest distance of scales, which are between 0 and 1 with sigmoids
POINTS = 1.0  # smallest lead, in points of accuracy
INFEASIBLE = "share of the clients whose always-kept blocks alone exceed their budget"


def mechanism_checks(
    options: PFedGateOptions, series: Mapping[str, np.ndarray], rounds: int, training: Training
) -> list[MechanismCheck]:
    """See ``Algorithm.mechanism``. Checks whose notes are missing in a run are left out."""
    functions = [scales_move, beats_other_gates, beats_a_constant, budget_is_kept]
    checks = [function(options, series, rounds, training) for function in functions]
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
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    logits = torch.from_numpy(left * (bias + nodes))[:, None]
    values = activate(logits, options.sigmoid, tangent(options)[:1]).squeeze(1).numpy()
    return float(weights @ values / weights.sum())


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


def beats_other_gates(
    options: PFedGateOptions, series: Mapping[str, np.ndarray], rounds: int, training: Training
) -> MechanismCheck | None:
    """Lead of a client's own gate over other clients' gates, over all test samples. Needs a learned mask or scale."""
    if options.gate_override is not None and options.mask != "learned":
        return None
    return _lead(
        series,
        "other_gates_correct",
        "points that a client's own gate is ahead of other clients' gates",
        "gates can be exchanged between clients, so they do not personalize; compare with one gate for all clients",
    )


def beats_a_constant(
    options: PFedGateOptions, series: Mapping[str, np.ndarray], rounds: int, training: Training
) -> MechanismCheck | None:
    """Lead of a client's own gate over one constant scale for all blocks and clients.

    A second comparison is needed, because another client's gate may be worse only for its running statistics.
    """
    if options.gate_override is not None:
        return None
    return _lead(
        series,
        "constant_scales_correct",
        "points that a client's own gate is ahead of one constant scale",
        "the learned scales do not help here; raise lr_gate, or compare with the mask alone",
    )


def _lead(series: Mapping[str, np.ndarray], rival: str, what: str, otherwise: str) -> MechanismCheck | None:
    """Accuracy in points with the clients' own gates, minus that of ``rival``, a name in ``series``."""
    if rival not in series:
        return None
    lead = series["order_correct"][0].sum() - series[rival].sum(-1).mean()
    value = float(100 * lead / series["test_count"].sum())
    return MechanismCheck(what, value, POINTS, value >= POINTS, otherwise)


def budget_is_kept(
    options: PFedGateOptions, series: Mapping[str, np.ndarray], rounds: int, training: Training
) -> MechanismCheck | None:
    """A failed check for runs that exceed a budget, where nothing is selected and more than s is kept; else None."""
    infeasible = float(np.nanmean(series["infeasible"])) if "infeasible" in series else 0.0
    if not infeasible:
        return None
    return MechanismCheck(
        INFEASIBLE,
        infeasible,
        0.0,
        False,
        "the budget is infeasible for them: nothing can be selected, and they keep more than keep_ratio; raise it, or "
        "lower min_keep_ratio (block_layout='equal' always keeps 1 / blocks_per_tensor)",
    )
