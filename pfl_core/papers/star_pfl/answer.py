"""The answer of Star-PFL's results page, from the stored runs."""

from __future__ import annotations

from pfl_core.study.report import Evidence


def answer(evidence: Evidence) -> list[str]:
    own = ("real", "axial", "star_pfl")

    def merged(method: str) -> str:
        return evidence.number(("real", "axial", method), "acc_mean_merged")

    def share(metric: str) -> str:
        return evidence.number(own, metric, digits=0)

    return [
        f"On MNIST instead of the paper's medical images (15 rounds, {evidence.seeds(own)}), Star-PFL scores "
        f"{merged('star_pfl')} after aggregation, FedAvg {merged('fedavg')} and FedBN {merged('fedbn')}. "
        f"After local training, where the released code scores it, Star-PFL has "
        f"{evidence.number(own, 'acc_mean_trained')}.",
        f"Clients freeze {share('frozen_local')} of the parameters, the server {share('frozen_global')}; with "
        f"updates of pure noise it would be {share('chance_local')} and {share('chance_global')}.",
        f"It sends {share('sent_share')} of the parameters; in the paper it is 66.1 %.",
    ]
