"""The answer of Star-PFL's results page, from the stored runs."""

from __future__ import annotations

import math

from pfl_core.study.report import Evidence

ALPHA = 0.01  # the paper's most unequal clients; the runs of the three α share a setting and differ in this value only


def answer(evidence: Evidence) -> list[str]:
    frame = evidence.frames["real"]
    runs = frame[(frame["setting"] == "axial") & (frame["dirichlet"] == ALPHA) & (frame["variant"] == "")]

    def mean(method: str, metric: str, digits: int = 1) -> str:
        values = runs.loc[(runs["method"] == method) & (runs["metric"] == metric), "value"].dropna()
        return f"{values.mean():.{digits}f} %" if len(values) else "(not stored)"

    def scores(metric: str) -> str:
        return (
            f"Star-PFL scores {mean('star_pfl', metric)}, FedAvg {mean('fedavg', metric)} "
            f"and FedBN {mean('fedbn', metric)}"
        )

    def share(metric: str) -> str:
        return mean("star_pfl", metric, digits=0)

    def score(method: str, metric: str) -> float:
        return float(runs.loc[(runs["method"] == method) & (runs["metric"] == metric), "value"].mean())

    # largest distance to FedAvg over the two scoring points; NaN if none is stored
    gaps = [abs(score("star_pfl", m) - score("fedavg", m)) for m in ("acc_mean_merged", "acc_mean_trained")]
    # rounded up, so that no gap on the page is larger; 1e-6: rounding error of the scores
    near = f"within {math.ceil(10 * max(gaps) - 1e-6) / 10:.1f} points of" if max(gaps) >= 0 else "(not stored) beside"
    less = score("star_pfl", "frozen_local") < score("star_pfl", "chance_local")
    seeds = runs.loc[runs["method"] == "star_pfl", "seed"].nunique()
    length = runs["rounds"].max() if len(runs) else 0
    return [
        f"In short, by the numbers so far: on MNIST, Star-PFL is {near} FedAvg if both are scored at the same point of "
        "a round." + " Its clients freeze fewer parameters than they would if all updates were pure noise." * less,
        f"On MNIST instead of the paper's medical images (Dirichlet α = {ALPHA}, {length} rounds, "
        f"{seeds} seed{'s' * (seeds != 1)}), after aggregation {scores('acc_mean_merged')}.",
        f"Clients freeze {share('frozen_local')} of the parameters, the server {share('frozen_global')}; with "
        f"updates of pure noise it would be {share('chance_local')} and {share('chance_global')}.",
        f"The released code scores Star-PFL after local training. When all three are scored there, "
        f"{scores('acc_mean_trained')}.",
        f"In these {length} rounds it sends {share('sent_share')} of the parameters; in the paper it is 66.1 %, in "
        "174 rounds on other images.",
    ]
