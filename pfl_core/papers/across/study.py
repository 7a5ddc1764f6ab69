"""The comparison of all methods as one ``Study`` object."""

from __future__ import annotations

from collections.abc import Iterator

from pfl_core.papers.across.experiments import EXPERIMENTS, SEEDS
from pfl_core.papers.across.searches import SEARCHES
from pfl_core.papers.across.settings import SETTINGS
from pfl_core.registry import METHODS
from pfl_core.runs import Record
from pfl_core.study.claims import Claims, Effect, Pick
from pfl_core.study.paper import Study

# All methods are scored at the same two points of the last round, wherever their papers report their score.
SCORE, TRAINED = "acc_mean_merged", "acc_mean_trained"
EQUAL = f"{SCORE}_equal_passes"
REFERENCE = "local"
ON = tuple(dict.fromkeys(name for settings in SETTINGS.settings.values() for name in settings))


def at_equal_passes(record: Record) -> dict[str, float]:
    """SCORE in the last scored round by which a client has made no more passes than FedAvg makes in all rounds."""
    spent = record.values("passes").mean(axis=1).cumsum()
    scores = record.curve()["acc_mean"]
    within = spent.reindex(scores.index) <= 1.01 * record.rounds * record.spec.train.epochs
    return {EQUAL: float(scores[within].iloc[-1])} if within.any() else {}


claim = Claims()


@claim(1, "not in a paper", on=ON)
def better_than_alone(r: Pick) -> Iterator[Effect]:
    """Every method is more accurate after aggregation than training alone."""
    for name in METHODS:
        if name != REFERENCE:
            yield r(name) - r(REFERENCE) > 0


STUDY = Study(
    SETTINGS,
    EXPERIMENTS,
    SEEDS,
    (at_equal_passes,),
    searches=SEARCHES,
    title="All methods",
    question="On one federation and at searched settings, which of the 28 methods is worth what it costs?",
    figure="real/across/fronts",
    claims=claim,
    score=SCORE,
)
