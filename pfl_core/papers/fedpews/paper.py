"""FedPeWS: settings, experiments, comparison and claims in one ``Paper`` object."""

from __future__ import annotations

from pfl_core.papers.fedpews import activations, metrics
from pfl_core.papers.fedpews.claims import claim
from pfl_core.papers.fedpews.experiments import EXPERIMENTS, SEEDS
from pfl_core.papers.fedpews.searches import SEARCHES
from pfl_core.papers.fedpews.settings import SETTINGS
from pfl_core.papers.fedpews.tables import TABLES
from pfl_core.study.paper import Paper

EXTRA_METRICS = (metrics.to_target, metrics.late_accuracy, metrics.warmup, activations.own_groups)
PAPER = Paper(
    SETTINGS,
    EXPERIMENTS,
    SEEDS,
    EXTRA_METRICS,
    searches=SEARCHES,
    title="FedPeWS",
    question="Does it help clients with very different data to begin with personal subnetworks?",
    figure="paper/fedpews/four_clients",
    claims=claim,
    tables=TABLES,
    score="acc_pooled",  # the shared model on all test data
    removed=lambda row: row.get("lam") == 0,  # nothing makes the masks differ
    symbols={"lam": "λ", "tau": "τ", "lr_server": "server rate"},
    headline=(
        *(
            (
                2,
                f"lr_server={rate:g}",
                "with the warm-up − FedAvg > -1",
                f"with the warm-up − FedAvg (claim: > −1), server rate {rate:g}",
            )
            for rate in (1, 0.5, 0.25, 0.1)
        ),
        (3, "four clients", "FedAvg, mean of the last ten rounds < 75", "accuracy: FedAvg, four clients (claim < 75)"),
        (
            3,
            "four clients",
            "λ = 0, mean of the last ten rounds > 75",
            "accuracy: with warm-up, four clients (claim > 75)",
        ),
        (5, "cifar_mnist", "with the warm-up − FedAvg > 0", "with the warm-up − FedAvg, CIFAR-MNIST"),
        *(
            (
                1,
                f"lr_server={rate:g}",
                "rounds to the target: FedAvg − with the warm-up > 0",
                f"rounds saved to the target: server rate {rate:g}",
            )
            for rate in (1, 0.5, 0.25, 0.1)
        ),
    ),
)
