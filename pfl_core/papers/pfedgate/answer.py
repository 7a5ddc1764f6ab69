"""The answer of pFedGate's results page, from the stored runs."""

from __future__ import annotations

from pfl_core.study.report import Evidence, points

SETTING = ("real", "fashion_mnist")


def answer(evidence: Evidence) -> list[str]:
    def accuracy(*runs: str) -> str:
        return evidence.number(runs, "acc_pooled")  # the paper's mean accuracy is over all test images

    def lead(rival: str) -> str:
        return evidence.difference(half, (*SETTING, rival), "acc_pooled")

    def side(rival: str) -> str:
        return evidence.side(half, (*SETTING, rival), "acc_pooled")

    def control(*options: str) -> str:
        """The accuracy with blocks of equal size; with its number of seeds if that is not the comparison's."""
        runs = (*half, ";".join(("block_layout=balanced", *options)))
        other = evidence.seeds(runs) if len(evidence.values(runs)) not in (0, len(evidence.values(half))) else ""
        return accuracy(*runs) + (f" ({other})" if other else "")

    half, sparse = (*SETTING, "pfedgate"), (*SETTING, "pfedgate", "keep_ratio=0.3")  # half: s = 0.5
    dense, third, tenth = (accuracy(*half, f"keep_ratio={s}") for s in ("1", "0.3", "0.1"))

    def change(metric: str) -> str:
        return evidence.number(half, metric, unit=" points")

    own, tuned = (evidence.values(runs, metric) for runs, metric in (
        (half, "acc_pooled_trained"), ((*SETTING, "fedavg_ft"), "acc_pooled"),
    ))  # fmt: skip
    masks = evidence.number(half, "distinct_masks", unit="", digits=0)
    masks_third = evidence.number((*half, "keep_ratio=0.3"), "distinct_masks", unit="", digits=0)
    return [
        f"In short, by the numbers so far: with half of the model, pFedGate is {side('fedavg')} FedAvg, "
        f"and {side('fedavg_ft')} FedAvg with "
        "fine-tuning.",
        f"On Fashion-MNIST with searched learning rates ({evidence.seeds(half)} on one split of the images), pFedGate "
        f"with half of the model (s = 0.5) scores {accuracy(*half)}. FedAvg scores {accuracy(*SETTING, 'fedavg')}, so "
        f"pFedGate's lead is {lead('fedavg')}. FedAvg with fine-tuning scores {accuracy(*SETTING, 'fedavg_ft')}; the "
        f"lead over it is {lead('fedavg_ft')}. FedRep scores {accuracy(*SETTING, 'fedrep')}; the lead over it is "
        f"{lead('fedrep')}.",
        f"With another share s of the model pFedGate scores {dense} (s = 1), {third} (s = 0.3) and {tenth} (s = 0.1). "
        f"At s = 0.3 its lead over FedRep is {evidence.difference(sparse, (*SETTING, 'fedrep'), 'acc_pooled')}; "
        "pFedGate's rates were searched at s = 0.5, and FedRep trains twice as many passes in a round.",
        f"Its gates are personal: in a trained model at s = 0.5, accuracy changes by {change('other_gate_change')} "
        f"with another client's gate, by {change('mean_gate_change')} with the mean of all gates, and by "
        f"{change('constant_scales_change')} with the client's own mask and one scale for all blocks and clients.",
        "Scored after local training, with each client's own weights, pFedGate at s = 0.5 has "
        f"{evidence.number(half, 'acc_pooled_trained')}; the difference to FedAvg with fine-tuning is "
        f"{points((own - tuned).dropna())}.",
        f"Its masks are personal only in part: the test batches of all clients have {masks} different masks at s = 0.5 "
        f"and {masks_third} at s = 0.3 (average over seeds).",
        "Trained with blocks of equal size and s = 0.5, learned masks and scales "
        f"score {control()}. With learned scales, fixed masks score {control('mask=small_blocks')} and random masks "
        f"{control('mask=random')}. With scales of 1, learned masks score {control('gate_override=1')}, random masks "
        f"{control('mask=random', 'gate_override=1')} and fixed masks "
        f"{control('mask=small_blocks', 'gate_override=1')}.",
        "At the paper's own setting one run is stored, with s = 0.5 on CIFAR-10. It scores "
        f"{accuracy('paper', 'cifar10', 'pfedgate')} after aggregation; the paper has 74.1 %.",
    ]
