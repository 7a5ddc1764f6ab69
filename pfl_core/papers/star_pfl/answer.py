"""The answer of Star-PFL's results page, from the stored runs."""

from __future__ import annotations

import numpy as np

from pfl_core.papers.star_pfl.claims.freezing import UNFROZEN
from pfl_core.papers.star_pfl.settings import SETTINGS
from pfl_core.study.report import NEITHER, Evidence
from pfl_core.study.statistics import interval
from pfl_core.study.verdicts import UNDECIDED, holm

ALPHA = 0.1  # of the Dirichlet split; the runs of the three α share a setting and differ in this value only
STAND_INS = {"MNIST": ("real", "axial"), "Fashion-MNIST": ("real", "sagital")}  # for the paper's Axial and Sagittal
MNIST = STAND_INS["MNIST"]
# both in the round that is best on validation images, as in the figures of leads
POINTS = {"after aggregation": "acc_mean_picked_merged", "after local training": "acc_mean_picked_trained"}


def _sides(found: Evidence) -> dict[tuple[str, str], tuple[float, str]]:
    """For each data set and scoring point: Star-PFL's lead over FedAvg, and its side by Holm's correction."""
    differences, words = {}, {}
    for data, task in STAND_INS.items():
        for point, metric in POINTS.items():
            runs = (*task, "star_pfl"), (*task, "fedavg")
            star, average = (found.values(run, metric) for run in runs)
            differences[data, point] = interval((star - average).dropna())
            words[data, point] = found.side(*runs, metric)
    statuses = holm(differences)
    return {
        place: (
            differences[place].mean,
            NEITHER if side in ("ahead of", "behind") and statuses[place] == UNDECIDED else side,
        )
        for place, side in words.items()
    }


def _beside_fedavg(found: Evidence) -> str:
    """Star-PFL beside FedAvg on both data sets and at both scoring points."""
    placed = _sides(found)
    means = [mean for mean, _ in placed.values() if not np.isnan(mean)]
    spread = f"leads of {min(means):+.1f} to {max(means):+.1f} points, " if means else ""
    leads = f"{spread}four comparisons by Holm's method"
    sides: dict[str, list[str]] = {}
    for (data, point), (_, side) in placed.items():
        sides.setdefault(side, []).append(f"on {data} {point}")
    if len(sides) == 1:
        return f"on {' and '.join(STAND_INS)}, {' and '.join(POINTS)}, Star-PFL is {next(iter(sides))} FedAvg ({leads})"
    return (
        "Star-PFL is " + "; ".join(f"{side} FedAvg {', '.join(where)}" for side, where in sides.items()) + f" ({leads})"
    )


def answer(evidence: Evidence) -> list[str]:
    found = evidence.where(dirichlet=ALPHA)
    own, local = (*MNIST, "star_pfl"), (*MNIST, "local")
    sides = _sides(found)

    def share(metric: str) -> str:
        return found.number(own, metric)

    def last_round(task: tuple[str, str]) -> str:
        return found.difference((*task, "star_pfl"), (*task, "fedavg"), "acc_mean_trained")

    def failed_checks() -> str:
        """The checks of the mechanism that fail in the runs on both data sets; "" if there are none."""
        runs = [
            record
            for record in evidence.records.get(MNIST[0], ())
            if (MNIST[0], record.spec.setting) in STAND_INS.values()
            and record.spec.method["name"] == "star_pfl"
            and record.spec.partition["alpha"] == ALPHA
            and not evidence.paper.variant(record.spec)
        ]
        failed = [[check.what for check in record.mechanism if not check.acts] for record in runs]
        names = list(dict.fromkeys(what for of_run in failed for what in of_run))
        which = f"{sum(map(bool, failed))} of these {len(runs)} runs"
        return (
            f" In {which} a check of the mechanism fails ({', '.join(names)}); they decide no claim on accuracy."
            * bool(names)
        )

    def scores(point: str, task: tuple[str, str] = MNIST) -> str:
        metric = POINTS[point]
        star, average, norms = (found.number((*task, name), metric) for name in ("star_pfl", "fedavg", "fedbn"))
        lead = found.difference((*task, "star_pfl"), (*task, "fedavg"), metric)
        data = next(name for name, own in STAND_INS.items() if own == task)
        alone = found.side((*task, "star_pfl"), (*task, "fedavg"), metric) != sides[data, point][1]
        unclear = ", not clear by Holm's method" if alone else ""
        return f"Star-PFL scores {star}, FedAvg {average} and FedBN {norms}; its lead over FedAvg is {lead}{unclear}"

    def gain(name: str) -> str:
        """What local training adds to the received model on each data set, in points."""
        trained, merged = (
            [found.values((*task, name), metric) for task in STAND_INS.values()]
            for metric in (POINTS["after local training"], POINTS["after aggregation"])
        )
        gains = [(after - before).mean() for after, before in zip(trained, merged, strict=True)]
        return " and ".join("(not stored)" if np.isnan(points) else f"{points:+.1f}" for points in gains)

    less = (found.values(own, "frozen_local") < found.values(own, "chance_local")).all() and len(found.values(own))
    frame = found.frames.get(MNIST[0])
    chosen = SETTINGS.searched.get(MNIST, {}).get("star_pfl", {})
    searched = " with searched learning rates" if chosen else ""
    at_rate = f" with the searched learning rate of {chosen['lr']:g}" if chosen else ""
    length = 0 if frame is None else frame.loc[frame["setting"] == MNIST[1], "rounds"].max()
    fashion = STAND_INS["Fashion-MNIST"]
    alone, mixed = (found.number((*fashion, name), POINTS["after aggregation"]) for name in ("local", "fedap"))
    sent = " and ".join(found.number((*task, "star_pfl"), "sent_share", digits=0) for task in STAND_INS.values())
    trained = POINTS["after local training"]
    chance = f"({share('chance_local')} and {share('chance_global')})"
    return [
        f"In short, by the numbers so far (α = {ALPHA}, {found.seeds(own)}): {_beside_fedavg(found)}, and its clients "
        f"send {sent} of the parameters in a round; the paper has 66.1 % on medical images.{failed_checks()}",
        f"On MNIST{at_rate}, clients freeze {share('frozen_local')} of the parameters and the server "
        f"{share('frozen_global')}, {'fewer than' if less else 'beside those frozen'} with updates of pure noise "
        f"{chance}; compared with nothing frozen, accuracy after local training changes by "
        f"{found.difference(own, (*own, UNFROZEN), trained)}.",
        f"Local training of the received model adds {gain('star_pfl')} points on {' and '.join(STAND_INS)}; with "
        f"FedAvg, whose clients freeze nothing, it adds {gain('fedavg')}: such gains need no masks.",
        f"On MNIST instead of the paper's medical images{searched} (Dirichlet α = {ALPHA}, {length} rounds, "
        f"{found.seeds(own)}), in the round that is best on validation images and after aggregation "
        f"{scores('after aggregation')}. Training alone scores {found.number(local, POINTS['after aggregation'])}.",
        f"The released code scores Star-PFL after local training. When all are scored there, "
        f"{scores('after local training')}. In the last round the lead after local training is {last_round(MNIST)} on "
        f"MNIST and {last_round(fashion)} on Fashion-MNIST.",
        f"On Fashion-MNIST in the same federation ({found.seeds((*fashion, 'star_pfl'))}), after aggregation "
        f"{scores('after aggregation', fashion)}; training alone scores {alone} and FedAP {mixed}. After local "
        f"training {scores('after local training', fashion)}.",
    ]
