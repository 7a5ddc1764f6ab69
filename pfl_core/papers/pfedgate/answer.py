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

    def balanced(*options: str) -> tuple[str, ...]:
        return (*half, ";".join(("block_layout=balanced", *options)))

    def control(*options: str) -> str:
        """The accuracy with blocks of equal size; with its number of seeds if that is not the comparison's."""
        runs = balanced(*options)
        other = evidence.seeds(runs) if len(evidence.values(runs)) not in (0, len(evidence.values(half))) else ""
        return accuracy(*runs) + (f" ({other})" if other else "")

    half, sparse = (*SETTING, "pfedgate"), (*SETTING, "pfedgate", "keep_ratio=0.3")  # half: s = 0.5
    dense, third, tenth = (accuracy(*half, f"keep_ratio={s}") for s in ("1", "0.3", "0.1"))

    def change(metric: str) -> str:
        return evidence.number(half, metric, unit=" points")

    own, tuned = (evidence.values(runs, metric) for runs, metric in (
        (half, "acc_pooled_trained"), ((*SETTING, "fedavg_ft"), "acc_pooled"),
    ))  # fmt: skip

    def masks(*runs: str) -> str:
        return evidence.number(runs, "distinct_masks", unit="")

    def learned_over(*options: str) -> str:
        """The lead of learned masks and scales over a control, all trained with blocks of equal size."""
        return evidence.difference(balanced(), balanced(*options), "acc_pooled")

    stored = ("paper", "cifar10", "pfedgate")
    other_images = (
        f"on CIFAR-10 at the paper's own setting ({evidence.seeds(stored)}) {masks(*stored)} and "
        f"{masks(*stored, 'keep_ratio=0.3')}"
    )
    own_setting = (
        f"At the paper's own setting on CIFAR-10 ({evidence.seeds(stored)}) it scores {accuracy(*stored)} at s = 0.5 "
        f"and {accuracy(*stored, 'keep_ratio=1')} at s = 1, FedAvg {accuracy(*stored[:2], 'fedavg')}; the paper has "
        "74.1 %, 75.2 % and 68.3 %."
    )
    return [
        f"In short, by the numbers so far: on Fashion-MNIST ({evidence.seeds(half)}), pFedGate with a budget of half "
        f"of the model (s = 0.5) is {side('fedavg')} FedAvg ({lead('fedavg')}) and {side('fedavg_ft')} FedAvg with "
        f"fine-tuning ({lead('fedavg_ft')}). {own_setting}",
        f"With the paper's blocks, all clients together use {masks(*half)} different masks (choices of blocks) at s = "
        f"0.5 and {masks(*sparse)} at s = 0.3 on Fashion-MNIST, {other_images}. With blocks of equal size (on "
        f"Fashion-MNIST) they use {masks(*balanced())} at s = 0.5; trained with these, learned masks and scales score "
        f"{control()}, learned scales with random masks {control('mask=random')}, learned masks with scales of 1 "
        f"{control('gate_override=1')}, and random masks with scales of 1 {control('mask=random', 'gate_override=1')}.",
        f"With learning rates searched at s = 0.5 ({evidence.seeds(half)} on one split of the images), pFedGate scores "
        f"{dense} (s = 1), {accuracy(*half)} (s = 0.5), {third} (s = 0.3) and {tenth} (s = 0.1), FedAvg "
        f"{accuracy(*SETTING, 'fedavg')}, FedAvg with fine-tuning {accuracy(*SETTING, 'fedavg_ft')} and FedRep "
        f"{accuracy(*SETTING, 'fedrep')}.",
        f"The lead over FedRep is {lead('fedrep')} at s = 0.5 and "
        f"{evidence.difference(sparse, (*SETTING, 'fedrep'), 'acc_pooled')} at s = 0.3; pFedGate's rates were searched "
        "at s = 0.5, and FedRep trains twice as many passes in a round.",
        "When a gate is exchanged in a trained model at s = 0.5, without new training, accuracy changes by "
        f"{change('other_gate_change')} with another client's gate, by {change('mean_gate_change')} with the mean of "
        f"all gates, and by {change('constant_scales_change')} with the client's own mask and one scale for all.",
        "Scored after local training, with each client's own weights, pFedGate at s = 0.5 has "
        f"{evidence.number(half, 'acc_pooled_trained')}; the difference to FedAvg with fine-tuning is "
        f"{points((own - tuned).dropna())}.",
        "Trained with blocks of equal size, learned masks have a lead of "
        f"{learned_over('mask=random')} over random ones and of {learned_over('mask=small_blocks')} over fixed ones; "
        f"learned scales have {learned_over('gate_override=1')} over scales of 1. Fixed masks score "
        f"{control('mask=small_blocks')}, and {control('mask=small_blocks', 'gate_override=1')} with scales of 1.",
    ]
