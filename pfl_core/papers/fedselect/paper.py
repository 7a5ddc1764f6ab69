"""FedSelect: settings, experiments, comparison and claims in one ``Paper`` object."""

from __future__ import annotations

from pfl_core.papers.fedselect.claims import claim
from pfl_core.papers.fedselect.experiments import EXPERIMENTS, SEEDS
from pfl_core.papers.fedselect.searches import SEARCHES
from pfl_core.papers.fedselect.settings import SETTINGS, WITH_VALIDATION
from pfl_core.papers.fedselect.tables import TABLES, with_group
from pfl_core.study.paper import Paper

PAPER = Paper(
    SETTINGS,
    EXPERIMENTS,
    SEEDS,
    searches=SEARCHES,
    title="FedSelect",
    question="Should the parameters that change most in a client's local training be personal, and the others shared?",
    figure="real/fedselect/leads",
    claims=claim,
    tables=TABLES,
    renamed=with_group,
    searched_first=(WITH_VALIDATION, ""),
    symbols={"alpha": "α", "keep_rate": "p"},
    headline=(
        (3, "cifar10", "α = 0.3 − Local > 0", "FedSelect − training alone, CIFAR-10"),
        (3, "cifar10_c", "α = 0.3 − Local > 0", "FedSelect − training alone, CIFAR10-C"),
        (3, "cifar10", "α = 0.3 − (FedAvg + FT) > 0", "FedSelect − FedAvg with fine-tuning, CIFAR-10"),
        (3, "cifar10_c", "α = 0.3 − (FedAvg + FT) > 0", "FedSelect − FedAvg with fine-tuning, CIFAR10-C"),
        (
            13,
            "cifar10",
            "α = 0.3 − α = 0.3, ranking = least_change > 0",
            "most changed personal − least changed, CIFAR-10",
        ),
        (13, "cifar10", "α = 0.3 − α = 0.3, masks = random > 0", "most changed personal − random parameters, CIFAR-10"),
    ),
)
