"""The answer of Star-PFL's results page, from the stored runs."""

from __future__ import annotations

from pfl_core.papers.star_pfl.settings import SETTINGS
from pfl_core.study.report import Evidence

ALPHA = 0.1  # of the Dirichlet split; the runs of the three α share a setting and differ in this value only
MNIST = ("real", "axial")  # MNIST stands in for the paper's Axial
POINTS = {"after aggregation": "acc_mean_merged", "after local training": "acc_mean_trained"}


def answer(evidence: Evidence) -> list[str]:
    found = evidence.where(dirichlet=ALPHA)
    own, fedavg, fedbn, local = ((*MNIST, name) for name in ("star_pfl", "fedavg", "fedbn", "local"))

    def share(metric: str) -> str:
        return found.number(own, metric, digits=0)

    def scores(point: str) -> str:
        metric = POINTS[point]
        star, average, norms = (found.number(runs, metric) for runs in (own, fedavg, fedbn))
        lead = found.difference(own, fedavg, metric)
        return f"Star-PFL scores {star}, FedAvg {average} and FedBN {norms}; its lead over FedAvg is {lead}"

    sides: dict[str, list[str]] = {}
    for point, metric in POINTS.items():
        sides.setdefault(found.side(own, fedavg, metric), []).append(point)
    beside = " and ".join(f"{side} FedAvg {' and '.join(points)}" for side, points in sides.items())
    less = (found.values(own, "frozen_local") < found.values(own, "chance_local")).all() and len(found.values(own))
    frame = found.frames.get(MNIST[0])
    searched = " with searched learning rates" if MNIST in SETTINGS.searched else ""
    length = 0 if frame is None else frame.loc[frame["setting"] == MNIST[1], "rounds"].max()
    return [
        f"In short, by the numbers so far: on MNIST, Star-PFL is {beside}."
        + " Its clients freeze fewer parameters than they would if all updates were pure noise." * bool(less),
        f"On MNIST instead of the paper's medical images{searched} (Dirichlet α = {ALPHA}, {length} rounds, "
        f"{found.seeds(own)}), after aggregation {scores('after aggregation')}. Training alone scores "
        f"{found.number(local, POINTS['after aggregation'])}.",
        f"Clients freeze {share('frozen_local')} of the parameters, the server {share('frozen_global')}; with "
        f"updates of pure noise it would be {share('chance_local')} and {share('chance_global')}.",
        f"The released code scores Star-PFL after local training. When all are scored there, "
        f"{scores('after local training')}.",
        f"In these {length} rounds it sends {share('sent_share')} of the parameters; in the paper it is 66.1 %, in "
        "174 rounds on other images.",
    ]
