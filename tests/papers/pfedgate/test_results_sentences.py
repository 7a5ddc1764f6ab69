"""Sentences of the notebooks' answers: right for several data sets and seeds, and where something is not stored."""

import math

import pandas as pd

from pfl_core.papers.pfedgate.published import MEASURED, SMALL
from pfl_core.papers.pfedgate.results import sentences


def gated(seeds=(0, 1)):
    rows = [
        ("fashion_mnist", s, f"pFedGate, s = {s}", seed, v) for s, v in (("1", 90.0), ("0.3", 88.0)) for seed in seeds
    ]
    return pd.DataFrame(rows, columns=["where", "s", "label", "seed", "acc_pooled"])


def test_the_accuracy_over_budgets():
    rivals = pd.DataFrame({"label": ["FedAvg", "FedAvg", "FedAvg + FT"], "acc_pooled": [80.0, 82.0, 91.0]})
    assert sentences.over_budgets(gated(), rivals) == [
        "Fashion-MNIST, 2 seeds: the accuracy of pFedGate is 90.0 % at s = 1; 88.0 % at s = 0.3.",
        "For comparison: FedAvg 81.0 %; FedAvg + FT 91.0 %.",
    ]
    assert sentences.over_budgets(gated((0,)), rivals[:0]) == [
        "Fashion-MNIST, 1 seed: the accuracy of pFedGate is 90.0 % at s = 1; 88.0 % at s = 0.3."
    ]
    assert sentences.over_budgets(gated()[:0], rivals[:0]) == []


def test_kept_blocks():
    table = pd.DataFrame({"s": ["0.5", "0.5", "0.3"], "achieved_keep_ratio": [0.4, 0.5, 0.24]})
    assert sentences.kept_blocks(table.assign(distinct_masks=[3.0, 4.0, 1.0])) == [
        "Over the test batches of all clients (mean over seeds), 45 % of the parameters are kept at s = 0.5, with 3.5 "
        "different masks; 24 % of the parameters are kept at s = 0.3, with one mask."
    ]
    assert sentences.kept_blocks(table) == []  # masks were not recorded
    assert sentences.kept_blocks(table.assign(distinct_masks=math.nan)) == []


def test_controls_without_the_papers_gate():
    rows = [("the paper's gate", "first_min_ratio", 91.0), ("learned mask, learned scales", "balanced", 90.0)]
    rows += [("fixed mask, scales of 1", "balanced", 87.0), ("random masks, scales of 1", "balanced", 89.0)]
    tried = pd.DataFrame(rows, columns=["label", "block_layout", "acc_pooled"])
    assert sentences.controls(tried) == [
        "Mask or scales? With blocks of one size, s = 0.5: learned mask, learned scales (90.0 %); "
        "fixed mask, scales of 1 (87.0 %); random masks, scales of 1 (89.0 %)."
    ]
    assert sentences.controls(tried[:1]) == []


def test_measured_steps_beside_the_paper():
    time, memory = MEASURED.values()
    rows = [(time, SMALL, "here, batch 32", 1.4), (memory, SMALL, "here, batch 32", 1.9)]
    rows += [(time, SMALL, "paper, batch 32", 0.75), (memory, SMALL, "paper, batch 32", 0.65)]
    pairs = pd.DataFrame(rows, columns=["panel", "label", "source", "value"])
    here = "Batch 32: a step of pFedGate, s = 0.3 takes 1.40 of FedAvg's time (median) and 1.90 of its peak memory"
    assert sentences.measured(pairs) == [f"{here}; in the paper 0.75 and 0.65."]
    assert sentences.measured(pairs[:2]) == [f"{here}."]  # a batch size that the paper does not have
    counts = pd.DataFrame(
        [(1.0, 1.0, None, None), (1.05, 0.4, 0.4, 0.98), (1.05, 0.32, 0.28, 0.55)],
        columns=["step computed", "upload / d", "parameters kept", "MACs kept"],
        index=["FedAvg", "pFedGate, s = 0.5", SMALL],
    )
    text = sentences.counted(counts)
    assert "keeps 0.40 of the parameters and 0.98 of the multiply-adds (s = 0.5), 0.28 of the parameters" in text
    assert "computes 1.05 of FedAvg's multiply-adds" in text and text.endswith("Its upload is 0.32 of the model.")


def test_what_the_gates_parts_cost():
    rows = [("digits", "full gate", 0, 90.0, 0.0), ("digits", "no sigmoid", 0, 86.0, 4.0)]
    rows += [("digits", "no norm after", 0, 90.04, -0.04)]
    frame = pd.DataFrame(
        [*rows, ("mnist", "full gate", 0, 95.0, 0.0)], columns=["setting", "label", "seed", "accuracy", "lost"]
    )
    assert sentences.ablation(frame) == [
        "Digits, 1 seed: the full gate has 90.0 %. Points lost: no sigmoid (+4.0); no norm after (+0.0)."
    ]


def test_drops_and_gaps_name_every_data_set():
    frame = pd.DataFrame(
        [("digits", "FedAvg", 0, 2.0), ("digits", "FedAvg", 1, 4.0), ("mnist", "pFedGate, s = 1", 0, -0.26)],
        columns=["base", "label", "seed", "mean"],
    )
    what = "points lost with a fifth of the clients in each round"
    assert sentences.drops(frame) == [
        f"Digits, 2 seeds: {what}: FedAvg (+3.0).",
        f"MNIST, 1 seed: {what}: pFedGate, s = 1 (-0.3).",
    ]
    first, _ = sentences.gaps(frame.rename(columns={"mean": "gap"}))
    assert first == "Digits, 2 seeds: points by which novel clients are behind participating ones: FedAvg (+3.0)."
    assert sentences.drops(frame[:0]) == []


def test_correlations_count_the_runs_below_zero():
    masks = (-0.5, 0.01), (-0.7, 0.02), (0.1, 0.6)
    rows = [("pFedGate, s = 0.3", -0.4, 0.01), ("pFedGate, s = 0.3", -0.2, 0.3), ("pFedGate, s = 0.5", 0.5, 0.01)]
    table = pd.DataFrame([(*row, *mask) for row, mask in zip(rows, masks, strict=True)])
    table.columns = ["run", "gates", "p", "masks", "p "]
    first, second = sentences.correlations(table)
    assert first.startswith(
        "pFedGate, s = 0.3: the rank correlation with common labels is, on average, -0.30 (below 0 with p < 0.05 in 1 "
        "of 2 runs) for the distance of gates and -0.60 (below 0 with p < 0.05 in 2 of 2 runs) for the distance of "
        "masks"
    )
    assert "+0.50 (below 0 with p < 0.05 in 0 of 1 run) for the distance of gates" in second
    assert sentences.correlations(table.assign(gates=math.nan)) == []


def test_swapped_gates():
    gates = ["own", "own", "client k + 1's", "client k + 2's", "mean gate"]
    swaps = pd.DataFrame({"gate": gates, "accuracy": [90.0, 92.0, 30.0, 20.0, 50.0]})
    assert sentences.swapped(swaps) == ["A client scores 91.0 % with its own gate, and 25.0 % with another client's."]
    assert sentences.swapped(swaps[:0]) == []
