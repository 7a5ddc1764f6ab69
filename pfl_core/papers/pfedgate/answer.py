"""The answer of pFedGate's results page, from the stored runs."""

from __future__ import annotations

from pfl_core.study.report import Evidence

SETTING = ("real", "fashion_mnist")


def answer(evidence: Evidence) -> list[str]:
    def accuracy(*runs: str) -> str:
        return evidence.number(runs, "acc_pooled")  # the paper's mean accuracy is over all test images

    def lead(rival: str) -> str:
        return evidence.difference(half, (*SETTING, rival), "acc_pooled")

    def side(rival: str) -> str:
        return evidence.side(half, (*SETTING, rival), "acc_pooled")

    half = (*SETTING, "pfedgate")  # s = 0.5
    dense, third, tenth = (accuracy(*half, f"keep_ratio={s}") for s in ("1", "0.3", "0.1"))

    def change(metric: str) -> str:
        return evidence.number(half, metric, unit=" points")

    masks = evidence.number(half, "distinct_masks", unit="", digits=0)
    masks_third = evidence.number((*half, "keep_ratio=0.3"), "distinct_masks", unit="", digits=0)
    return [
        f"In short, by the numbers so far: with half of the model, pFedGate is {side('fedavg')} FedAvg, "
        f"and {side('fedavg_ft')} FedAvg with "
        "fine-tuning.",
        f"On Fashion-MNIST with searched learning rates ({evidence.seeds(half)}), pFedGate with half of the model "
        f"(s = 0.5) scores {accuracy(*half)}. FedAvg scores {accuracy(*SETTING, 'fedavg')}, so pFedGate's lead is "
        f"{lead('fedavg')}. FedAvg with fine-tuning scores {accuracy(*SETTING, 'fedavg_ft')}; the lead over it is "
        f"{lead('fedavg_ft')}. FedRep scores {accuracy(*SETTING, 'fedrep')}; the lead over it is {lead('fedrep')}.",
        f"With another share s of the model pFedGate scores {dense} (s = 1), {third} (s = 0.3) and {tenth} (s = 0.1).",
        f"Its scales are personal: at s = 0.5, accuracy changes by {change('constant_scales_change')} with one scale "
        f"for all blocks and clients, by {change('mean_gate_change')} with the mean of all gates, and by "
        f"{change('other_gate_change')} with another client's gate.",
        f"Its masks are personal only in part: the test batches of all clients have {masks} different masks at s = 0.5 "
        f"and {masks_third} at s = 0.3 (average over seeds).",
        "At the paper's own setting one run is stored, with s = 0.5 on CIFAR-10. It scores "
        f"{accuracy('paper', 'cifar10', 'pfedgate')}; the paper has 74.1 %.",
    ]
