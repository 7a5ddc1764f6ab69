"""Did pFedGate's mechanism act in a run? Gates learn, and a client's own is better for it than another's or none.

Bounds are ours, set before the runs that they judge. A run's notes are enough, so a stored run needs no new training.
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

LEAST = 0.05  # of a scale, which is between 0 and 1 with sigmoids
POINTS = 1.0  # of accuracy
INFEASIBLE = "share of the clients whose always-kept blocks alone exceed their budget"


def mechanism_checks(
    options: PFedGateOptions, series: Mapping[str, np.ndarray], rounds: int, training: Training
) -> list[MechanismCheck]:
    """See ``Algorithm.mechanism``; a check whose numbers a run does not have is left out."""
    checks = [scales_move, beats_other_gates, beats_a_constant, budget_is_kept]
    found = [check(options, series, rounds, training) for check in checks]
    return [check for check in found if check is not None]


def scales_move(
    options: PFedGateOptions, series: Mapping[str, np.ndarray], rounds: int, training: Training
) -> MechanismCheck | None:
    """How far scales are from where weight decay alone would leave them: root mean square over the blocks in use.

    Of the last round's clients, on average. Gates without the second norm, or with one image for a client, are not
    judged: their blocks' scales differ from the start.
    """
    judged = options.gate_override is None and options.post_norm and options.gate_granularity != "client"
    if not judged or not {"gate_scale", "gate_spread", "steps"} <= series.keys():
        return None
    mean, spread = series["gate_scale"][-1], series["gate_spread"][-1]
    here = ~np.isnan(mean)
    if not here.any():
        return None
    steps = round(float(np.nansum(series["steps"], axis=0)[here].mean()))
    by_decay = scale_by_decay(options, training, steps, rounds)
    value = float(np.hypot(mean[here] - by_decay, spread[here]).mean())
    return MechanismCheck(
        "distance of the gates' scales from those that weight decay alone would leave",
        value,
        LEAST,
        value >= LEAST,
        "the gates learned next to nothing: raise lr_gate, or train for more rounds",
    )


def scale_by_decay(options: PFedGateOptions, training: Training, steps: int, rounds: int) -> float:
    """M of a gate that nothing but weight decay moved, after so many steps with the gate's rate and momentum.

    After the second norm logits have mean 0 and variance 1 before its bias is added; gain and bias shrink alike.
    """
    decay = training.weight_decay if options.gate_weight_decay is None else options.gate_weight_decay
    own = replace(training, weight_decay=decay)
    left = left_by_decay(own, options.lr_gate, steps, rounds, options.keep_momentum)
    bias = options.scale_bias_init + (1.0 if not options.sigmoid and options.without_sigmoid == "identity" else 0.0)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    logits = torch.from_numpy(left * (bias + nodes))[:, None]
    values = activate(logits, options.sigmoid, tangent(options)[:1]).squeeze(1).numpy()
    return float(weights @ values / weights.sum())


def left_by_decay(training: Training, lr: float, steps: int, rounds: int, keep_momentum: bool) -> float:
    """The share that is left of a parameter that nothing but weight decay moves, after SGD steps spread over rounds."""
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
    """Over all test samples; nothing to judge where gates decide nothing."""
    if options.gate_override is not None and options.mask != "learned":
        return None
    return _lead(
        series,
        "other_gates_correct",
        "points that a client's own gate is ahead of other clients' gates",
        "gates are exchangeable, so they do not personalize: compare with one gate for all",
    )


def beats_a_constant(
    options: PFedGateOptions, series: Mapping[str, np.ndarray], rounds: int, training: Training
) -> MechanismCheck | None:
    """Another's gate may be worse for its norms' running statistics alone, so one scale for all is a second rival."""
    if options.gate_override is not None:
        return None
    return _lead(
        series,
        "constant_scales_correct",
        "points that a client's own gate is ahead of one constant scale",
        "the scales that gates learned are worth nothing here: raise lr_gate, or compare with the mask alone",
    )


def _lead(series: Mapping[str, np.ndarray], rival: str, what: str, otherwise: str) -> MechanismCheck | None:
    if rival not in series:
        return None
    lead = series["order_correct"][0].sum() - series[rival].sum(-1).mean()
    value = float(100 * lead / series["test_count"].sum())
    return MechanismCheck(what, value, POINTS, value >= POINTS, otherwise)


def budget_is_kept(
    options: PFedGateOptions, series: Mapping[str, np.ndarray], rounds: int, training: Training
) -> MechanismCheck | None:
    """Only of runs that break a budget: there nothing is chosen, and more than s is kept."""
    infeasible = float(np.nanmean(series["infeasible"])) if "infeasible" in series else 0.0
    if not infeasible:
        return None
    return MechanismCheck(
        INFEASIBLE,
        infeasible,
        0.0,
        False,
        "infeasible: nothing is left to choose for them, and they keep more than keep_ratio; raise it, or lower "
        "min_keep_ratio (block_layout='equal' keeps 1 / blocks_per_tensor in any case)",
    )
