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
        f"On MNIST in place of the paper's images (15 rounds, {evidence.seeds(own)}), Star-PFL scores "
        f"{merged('star_pfl')} after aggregation, FedAvg {merged('fedavg')} and FedBN {merged('fedbn')}; after local "
        f"training, where the released code scores it, Star-PFL has {evidence.number(own, 'acc_mean_trained')}.",
        f"Clients freeze {share('frozen_local')} of the parameters, the server {share('frozen_global')}; pure noise "
        f"would freeze {share('chance_local')} and {share('chance_global')}.",
        f"It sends {share('sent_share')} of the parameters, where the paper has 66.1 %.",
    ]
