"""The answer of pFedGate's results page, from the stored runs."""

from __future__ import annotations

from pfl_core.study.report import Evidence

SETTING = ("real", "fashion_mnist")


def answer(evidence: Evidence) -> list[str]:
    def accuracy(*runs: str) -> str:
        return evidence.number(runs, "acc_pooled")  # the paper's mean accuracy is over all test images

    def lead(rival: str) -> str:
        return evidence.difference(half, (*SETTING, rival), "acc_pooled")

    half = (*SETTING, "pfedgate")  # s = 0.5
    dense, third, tenth = (accuracy(*half, f"keep_ratio={s}") for s in ("1", "0.3", "0.1"))

    def change(metric: str) -> str:
        return evidence.number(half, metric, unit=" points")

    masks = evidence.number(half, "distinct_masks", unit="", digits=0)
    masks_third = evidence.number((*half, "keep_ratio=0.3"), "distinct_masks", unit="", digits=0)
    return [
        f"On Fashion-MNIST with searched learning rates ({evidence.seeds(half)}), pFedGate scores {accuracy(*half)} "
        f"with half of the model (s = 0.5), FedAvg {accuracy(*SETTING, 'fedavg')} ({lead('fedavg')}) and FedAvg "
        f"with fine-tuning {accuracy(*SETTING, 'fedavg_ft')} ({lead('fedavg_ft')}); it scores {dense} at s = 1, "
        f"{third} at 0.3 and {tenth} at 0.1 (the share of the model that is kept).",
        f"Its scales are personal, its masks only partly: the test batches of all clients have {masks} different masks "
        f"at s = 0.5 and {masks_third} at s = 0.3 (average over seeds). At s = 0.5, accuracy changes by "
        f"{change('constant_scales_change')} with one scale for all blocks and clients, by "
        f"{change('mean_gate_change')} with the mean of all gates, and by {change('other_gate_change')} with another "
        "client's gate.",
        "At the paper's own setting one run is stored, with s = 0.5 on CIFAR-10: it scores "
        f"{accuracy('paper', 'cifar10', 'pfedgate')}, in the paper 74.1 %.",
    ]
