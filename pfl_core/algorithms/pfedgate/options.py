"""pFedGate's hyper-parameters, its options where paper and released code differ, and its controls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pfl_core.algorithm import Algorithm, check_choices, check_minimum
from pfl_core.federation.federation import EVAL_BATCH
from pfl_core.options import NonNegativeFloat, NonNegativeInt


@dataclass(frozen=True)
class PFedGateOptions(Algorithm):
    """Fields of pFedGate. ``notebooks/pfedgate/README.md`` compares options with the paper and the released code."""

    keep_ratio: float | tuple[float, ...] = 0.5  # s; several: one for each client, or assigned at random in equal parts
    blocks_per_tensor: int = 5  # B
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
    aggregation: Literal["by_index", "dense", "whole_models"] = "by_index"  # see ``server.py``
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
    probe: bool = False  # not in the paper: record the diagnostics of the final model (``evaluation.py``)

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
        check_choices(self)
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
        check_minimum(self, blocks_per_tensor=2, novel_epochs=0, lr_gate=0)
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
