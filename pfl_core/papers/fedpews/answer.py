"""The answer of FedPeWS's results page, from the stored runs."""

from __future__ import annotations

import numpy as np

from pfl_core.papers.fedpews.results import rounds_to_target
from pfl_core.papers.fedpews.settings import RATES, SETTINGS
from pfl_core.study.report import Evidence


def answer(evidence: Evidence) -> list[str]:
    def sooner(setting: str, warm: str, plain: str) -> str:
        warmed, other = ("paper", setting, "fedpews", warm), ("paper", setting, "fedavg", plain)
        return evidence.difference(warmed, other, "rounds_to_target").replace("points", "rounds")

    def gain(method: str) -> str:
        setting = ("paper", "four clients")
        return evidence.difference((*setting, method, "tau=0.124"), (*setting, "fedavg"))

    grid = ("real", "sensitivity", "fedpews", "tau=0.2;lam=2")
    rate = SETTINGS.searched["real", "sensitivity"]["fedpews"]["lr"]
    plain_runs = [r for r in evidence.records["real"] if r.spec.setting == RATES and r.spec.train.lr == rate]
    plain_rounds = f"{np.mean([rounds_to_target(r) for r in plain_runs]):.0f}" if plain_runs else "(not stored)"
    images = ("paper", "cifar_mnist")
    learned, fixed = (*images, "fedpews", "tau=0.5;lam=2"), (*images, "fedpews_fixed", "tau=0.4")
    plain = (*images, "fedavg")
    slow = sooner("lr_server=0.25", "tau=0.1875;lr_server=0.25;lam=1", "lr_server=0.25")
    return [
        f"On the paper's synthetic data ({evidence.seeds(('paper', 'lr_server=1', 'fedavg'))}), FedPeWS and FedAvg "
        f"differ in the first round that reaches the target accuracy by {sooner('lr_server=1', '', '')} at server "
        f"learning rate 1 and by {slow} at 0.25; a negative number means that FedPeWS is faster.",
        f"With four clients the final accuracy differs from FedAvg's by {gain('fedpews')} with learned subnetworks and "
        f"by {gain('fedpews_fixed')} with fixed ones.",
        "On the grid of λ and τ with searched learning rates "
        f"({evidence.seeds(grid)}), nearly all cells end above 99 %. At FedPeWS's rate, FedAvg reaches 99 % in round "
        f"{plain_rounds} and FedPeWS (λ = 2, τ = 0.2) in round "
        f"{evidence.number(grid, 'rounds_to_target', unit='', digits=0)}.",
        f"On CIFAR-MNIST ({evidence.seeds(plain)}, 300 rounds) FedPeWS ends at {evidence.number(learned)} with learned "
        f"and {evidence.number(fixed)} with fixed subnetworks, FedAvg at {evidence.number(plain)}.",
    ]
