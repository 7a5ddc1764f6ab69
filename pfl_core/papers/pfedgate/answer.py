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
    swapped = evidence.number(half, metric="other_gate_change", unit=" points")
    return [
        f"On Fashion-MNIST with searched learning rates ({evidence.seeds(half)}), pFedGate scores {accuracy(*half)} "
        f"with half of the model (s = 0.5), FedAvg {accuracy(*SETTING, 'fedavg')} ({lead('fedavg')}) and FedAvg "
        f"with fine-tuning {accuracy(*SETTING, 'fedavg_ft')} ({lead('fedavg_ft')}).",
        f"It scores {dense} at s = 1, {third} at 0.3 and {tenth} at 0.1 (the share of the model that is kept). "
        f"If clients use another client's gate, the accuracy at s = 0.5 changes by {swapped}: the gates are personal.",
        "At the paper's own setting one run is stored, with s = 0.5 on CIFAR-10: it scores "
        f"{accuracy('paper', 'cifar10', 'pfedgate')}, in the paper 74.1 %.",
    ]
