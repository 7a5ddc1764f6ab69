"""pFedGate's hyper-parameters and readings: specification sections 4, 5 and 11 (notebook C)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pfl_core.algorithm import Algorithm, check_choices
from pfl_core.federation.federation import EVAL_BATCH
from pfl_core.options import NonNegativeFloat, NonNegativeInt


@dataclass(frozen=True)
class PFedGateOptions(Algorithm):
    """s, B and the gate's rate; then the readings (section 5) and the controls (section 11, C)."""

    keep_ratio: float | tuple[float, ...] = 0.5  # s; several: one each, or dealt to the clients at random in even parts
    blocks_per_tensor: int = 5  # B
    lr_gate: NonNegativeFloat = 0.1  # η; Table 7 has it by data and s
    # blocks and selection: 4.1, 4.4, 4.5, 7
    block_layout: Literal["first_min_ratio", "equal", "balanced", "output_rows"] = "first_min_ratio"
    min_keep_ratio: float | None = None  # s_min; None: by the rule
    min_keep_rule: Literal["below_budget", "authors_code"] = "below_budget"
    selector: Literal["exact", "greedy", "greedy_groups"] = "exact"
    straight_through: Literal["all", "kept"] = "all"
    # the gate: 4.2, 4.10 and the ablations of Table 4
    gate_paths: Literal["two", "shared"] = "two"
    gate_init: Literal["independent", "copied"] = "independent"
    pre_norm: bool = True
    post_norm: bool = True
    sigmoid: bool = True
    without_sigmoid: Literal["identity", "tangent"] = "identity"  # ours: M = z, or as steep as the sigmoid at the start
    scale_bias_init: float = 0.0  # ours: 3 starts M near 0.9, for short runs
    gate_granularity: Literal["batch", "client", "client_masked_mean"] = "batch"
    # training and server: 4.6, 4.7
    training: Literal["joint", "alternating"] = "joint"
    keep_momentum: bool = True
    gate_weight_decay: NonNegativeFloat | None = None  # of the gate alone; None: that of the training
    last_batch: Literal["kept", "dropped"] = "kept"
    logit_relu: bool = False
    aggregation: Literal["by_index", "dense", "whole_models"] = "by_index"
    averaged_over: Literal["participants", "everyone"] = "participants"
    execution: Literal["dense", "sliced"] = "dense"  # masked dense kernels, or smaller ones (section 7)
    # evaluation: 4.9, 4.11
    eval_weights: Literal["global", "local"] = "global"  # of the two scores, the reported one
    eval_gate: Literal["batch", "client_train_mean", "sample"] = "batch"
    eval_batch_size: int = 128
    eval_order: int = 0  # which of the random orders of the test samples
    novel_epochs: NonNegativeInt = 1
    # controls: does the mask or the scale personalize?
    mask: Literal["learned", "small_blocks", "random"] = "learned"
    gate_override: float | None = None  # M of every block, in place of the gate's
    probe: bool = False  # ours: also keep how the end scores with other gates or none, and in other orders of samples

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
                f"PFedGate: keep_ratio={self.keep_ratio} is outside (0, 1]; it is the share that is kept, 1 is dense"
            )
        if self.min_keep_ratio is not None and not 0 < self.min_keep_ratio <= min(ratios):
            raise ValueError(
                f"PFedGate: min_keep_ratio={self.min_keep_ratio} is outside (0, s] with s={min(ratios)}; leave it out "
                "for the rule"
            )
        for name, low in (("blocks_per_tensor", 2), ("novel_epochs", 0), ("lr_gate", 0)):
            if not getattr(self, name) >= low:
                raise ValueError(f"PFedGate: {name}={getattr(self, name)} is below {low}")
        if self.eval_batch_size < 1 or EVAL_BATCH % self.eval_batch_size:
            raise ValueError(
                f"PFedGate: eval_batch_size={self.eval_batch_size} does not divide {EVAL_BATCH}, the samples that are "
                "scored at once; take 128"
            )
        if self.sigmoid and self.without_sigmoid != "identity":
            raise ValueError(f"PFedGate: without_sigmoid={self.without_sigmoid!r} needs sigmoid=False")
        if self.scale_bias_init and not self.sigmoid and self.without_sigmoid == "identity":
            raise ValueError(
                f"PFedGate: scale_bias_init={self.scale_bias_init} belongs to the sigmoid or its tangent; where M = z, "
                "M starts at 1, so leave it at 0"
            )
        if self.averaged_over == "everyone" and self.aggregation == "by_index":
            raise ValueError(
                'PFedGate: averaged_over="everyone" needs aggregation="dense" or "whole_models": by index, absent '
                "clients have no blocks to average"
            )
        if self.execution == "sliced" and (self.block_layout, self.straight_through) != ("output_rows", "kept"):
            raise ValueError(
                'PFedGate: execution="sliced" leaves dropped rows out altogether: it needs '
                'block_layout="output_rows" and straight_through="kept"'
            )
        if self.execution == "sliced" and (self.alternates or self.logit_relu):
            raise ValueError('PFedGate: execution="sliced" is for joint training with plain logits')

    @property
    def alternates(self) -> bool:
        """Whether the gate is trained first and the model after it."""
        return self.training == "alternating" or self.gate_granularity == "client_masked_mean"

    @property
    def reported(self) -> str:
        return "after_merge" if self.eval_weights == "global" else "after_local_update"
