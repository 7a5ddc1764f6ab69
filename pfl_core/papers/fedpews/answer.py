"""The answer of FedPeWS's results page, from the stored runs."""

from __future__ import annotations

from pfl_core.study.report import Evidence


def answer(evidence: Evidence) -> list[str]:
    def sooner(setting: str, warm: str, plain: str) -> str:
        warmed, other = ("paper", setting, "fedpews", warm), ("paper", setting, "fedavg", plain)
        return evidence.difference(warmed, other, "rounds_to_target").replace("points", "rounds")

    def gain(method: str) -> str:
        setting = ("paper", "four clients")
        return evidence.difference((*setting, method, "tau=0.124"), (*setting, "fedavg"))

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
        f"On CIFAR-MNIST ({evidence.seeds(plain)}, 300 rounds) FedPeWS ends at {evidence.number(learned)} with learned "
        f"and {evidence.number(fixed)} with fixed subnetworks, FedAvg at {evidence.number(plain)}.",
    ]
