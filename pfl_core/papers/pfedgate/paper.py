"""pFedGate's ``Paper`` object: settings, experiments, comparison, claims and metrics."""

from __future__ import annotations

from pfl_core.papers.pfedgate.benchmark import committed_rows
from pfl_core.papers.pfedgate.claims import SETS, STAND_INS, claim
from pfl_core.papers.pfedgate.experiments import EXPERIMENTS, SEEDS
from pfl_core.papers.pfedgate.gate_tree import gate_rank
from pfl_core.papers.pfedgate.gates import extra_metrics
from pfl_core.papers.pfedgate.participation import novel
from pfl_core.papers.pfedgate.searches import SEARCHES
from pfl_core.papers.pfedgate.settings import GATE_PARTS, SETTINGS
from pfl_core.papers.pfedgate.tables import TABLES
from pfl_core.papers.pfedgate.theory import gate_bounds, loss_gap
from pfl_core.study.frame import Row, is_missing
from pfl_core.study.paper import Paper


def removed(row: Row) -> bool:
    """Whether a run's options remove the gate or a part of it: Table 4's ablations, fixed masks, fixed scales."""
    without = any(row.get(name) == part.without for name, part in GATE_PARTS.items())
    return without or row.get("mask", "learned") != "learned" or not is_missing(row.get("gate_override"))


PAPER = Paper(
    SETTINGS,
    EXPERIMENTS,
    SEEDS,
    (extra_metrics, novel, gate_rank, loss_gap, gate_bounds),
    searches=SEARCHES,
    title="pFedGate",
    question="Can each client use its own sparse part of one shared model?",
    figure="real/pfedgate/budgets",
    claims=claim,
    tables=TABLES,
    score="acc_pooled",
    stands_for={name: tuple(own for own in SETS if own not in STAND_INS) for name in STAND_INS},
    removed=removed,
    measured_rows=committed_rows,
    headline=(
        (1, "fashion_mnist", "s = 0.5 − FedAvg > 0", "half of the model − FedAvg"),
        (1, "fashion_mnist", "s = 0.5 − (FedAvg + FT) > 0", "half of the model − FedAvg with fine-tuning"),
        (4, "fashion_mnist", "s = 1 − s = 0.3 < 2.5", "the whole model − 30 % of it"),
        *(
            (
                7,
                f"batch {size}",
                "step ratio: s = 0.3 < 1",
                f"time of a step / FedAvg's: 30 % of the model, batch {size}",
            )
            for size in (32, 128, 512)
        ),
    ),
    symbols={
        **{"keep_ratio": "s", "blocks_per_tensor": "B", "gate_granularity": "gate per", "e_step": "E step"},
        **{"pre_norm": "norm before", "post_norm": "norm after", "without_sigmoid": "in its place"},
        **{"scale_bias_init": "bias", "gate_weight_decay": "decay of the gate"},
    },
)
