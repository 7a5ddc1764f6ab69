"""The answer of FedPeWS's results page, from the stored runs."""

from __future__ import annotations

import pandas as pd

from pfl_core.papers.fedpews.claims.tables import LATE
from pfl_core.papers.fedpews.settings import SETTINGS
from pfl_core.study.report import Evidence


def _cells(evidence: Evidence) -> pd.Series:
    """The final accuracy of each stored cell of the grid of λ and τ, mean over seeds."""
    frame = evidence.frames["real"]
    methods = frame["method"].isin(("fedpews", "fedpews_fixed"))
    cells = frame[methods & (frame["setting"] == "sensitivity") & (frame["metric"] == "acc_pooled")]
    return cells.groupby(["method", "variant"])["value"].mean()


def answer(evidence: Evidence) -> list[str]:
    def sooner(setting: str, warm: str, plain: str) -> str:
        warmed, other = ("paper", setting, "fedpews", warm), ("paper", setting, "fedavg", plain)
        return evidence.difference(warmed, other, "rounds_to_target").replace("points", "rounds")

    def gain(method: str) -> str:
        setting = ("paper", "four clients")  # the last round alone varies by ten points and more
        return evidence.difference((*setting, method, "tau=0.124"), (*setting, "fedavg"), LATE)

    def late(method: str) -> str:
        setting = ("paper", "four clients")
        return evidence.side((*setting, method, "tau=0.124"), (*setting, "fedavg"), LATE)

    def first(runs: tuple[str, ...]) -> str:
        return evidence.number(runs, "rounds_to_target", unit="", digits=0)

    grid = ("real", "sensitivity", "fedpews", "tau=0.2;lam=2")
    plain_grid = ("real", "sensitivity", "fedavg")
    cells = _cells(evidence)
    images = ("paper", "cifar_mnist")
    learned, fixed = (*images, "fedpews", "tau=0.5;lam=2"), (*images, "fedpews_fixed", "tau=0.4")
    plain = (*images, "fedavg")
    slow = sooner("lr_server=0.25", "tau=0.1875;lr_server=0.25;lam=1", "lr_server=0.25")
    two = ("paper", "lr_server=1")
    # fewer rounds are better
    soon = {"ahead of": "later than FedAvg", "behind": "sooner than FedAvg"}.get(
        evidence.side((*two, "fedpews"), (*two, "fedavg"), "rounds_to_target"),
        "neither clearly sooner nor clearly later than FedAvg",
    )
    length = SETTINGS.setting("paper", "cifar_mnist").rounds
    return [
        f"In short, by the numbers so far: with two clients and server learning rate 1, FedPeWS "
        f"reaches the target accuracy {soon}. With four "
        f"clients and learned subnetworks, it is {late('fedpews')} FedAvg; with fixed subnetworks, it is "
        f"{late('fedpews_fixed')} FedAvg.",
        f"On the paper's synthetic data ({evidence.seeds(('paper', 'lr_server=1', 'fedavg'))}), the round in which "
        f"FedPeWS reaches the target accuracy differs from FedAvg's by {sooner('lr_server=1', '', '')} at server "
        f"learning rate 1, and by {slow} at 0.25. Negative means that FedPeWS is faster.",
        f"With four clients, the mean accuracy of the last ten rounds differs from FedAvg's by {gain('fedpews')} with "
        f"learned subnetworks and by {gain('fedpews_fixed')} with fixed ones.",
        f"On the grid of λ and τ with searched learning rates ({evidence.seeds(grid)}), {(cells > 99).sum()} of "
        f"{len(cells)} cells end above 99 %. FedAvg reaches 99 % in round {first(plain_grid)} and FedPeWS (λ = 2, "
        f"τ = 0.2) in round {first(grid)}.",
        f"On CIFAR-MNIST ({evidence.seeds(plain)}, {length} rounds) FedPeWS ends at {evidence.number(learned)} with "
        f"learned and {evidence.number(fixed)} with fixed subnetworks, FedAvg at {evidence.number(plain)}.",
    ]
