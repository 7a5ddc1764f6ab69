"""Star-PFL's ``Paper`` object: settings, experiments, comparison, claims and metrics."""

from __future__ import annotations

from pfl_core.papers.star_pfl import likeness
from pfl_core.papers.star_pfl.claims import claim
from pfl_core.papers.star_pfl.convergence import local_gain, picked
from pfl_core.papers.star_pfl.costs import costs
from pfl_core.papers.star_pfl.experiments import EXPERIMENTS, SEEDS, WITHOUT
from pfl_core.papers.star_pfl.freezing import freezing
from pfl_core.papers.star_pfl.searches import SEARCHES
from pfl_core.papers.star_pfl.settings import BASELINES, SETTINGS
from pfl_core.papers.star_pfl.tables import TABLES
from pfl_core.runs import Record
from pfl_core.study.frame import Row, is_missing
from pfl_core.study.paper import Paper


def of_tables(record: Record) -> dict[str, float]:
    """Costs, accuracies and frozen shares of the methods of Tables 2 and 3; empty for others."""
    if record.spec.method["name"] not in ("star_pfl", *BASELINES):
        return {}
    return costs(record) | picked(record) | freezing(record) | local_gain(record)


def removed(row: Row) -> bool:
    """Whether a run has no thresholds, or no probes: then its checks would ask for what its options take away."""
    return "thaw" in row["changed"] or all(name in row["changed"] and is_missing(row[name]) for name in WITHOUT)


PAPER = Paper(
    SETTINGS,
    EXPERIMENTS,
    SEEDS,
    (of_tables, likeness.extra_metrics),
    searches=SEARCHES,
    title="Star-PFL",
    question="Can clients skip parameters whose updates only oscillate, and is the result personal?",
    figure="real/star_pfl/leads",
    claims=claim,
    tables=TABLES,
    score="acc_mean_picked",
    removed=removed,
    headline=tuple(
        (number, task, effect, f"{words}, {data}")
        for number, effect, words in (
            (2, "Star-PFL − mean of the baselines, as their code scores > 0", "Star-PFL − mean of the baselines"),
            (2, "Star-PFL − mean of the baselines, all after local training > 0", "the same, all after local training"),
            (5, "rounds to 95 % in validation: FedBN / Star-PFL > 1", "rounds to 95 %: FedBN / Star-PFL"),
            (3, "MiB sent until 95 %: percent below the baselines' mean > 0", "MiB sent until 95 %: percent saved"),
        )
        for task, data in (("axial", "MNIST"), ("sagital", "Fashion-MNIST"))
    )
    + (
        (
            9,
            "traces",
            "thresholds − nothing frozen, after aggregation > -0.5",
            "with − without freezing, Fashion-MNIST",
        ),
    ),
)
