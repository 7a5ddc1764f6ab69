"""Claims 12 to 17 on small synthetic results: each check can hold, fail, and stay undecided."""

import pytest

from pfl_core.papers.fedselect.comparison import COMPARISON
from pfl_core.papers.fedselect.paper import PAPER
from pfl_core.papers.fedselect.settings import LAYERS
from tests.papers.fedselect.invented import CORRUPT, exact, limits, rows, status, verdict
from tests.study.cells import filled
from tests.study.invented import frame, noisy

LEAST, RANDOM, GROWTH = "ranking=least_change", "masks=random", "ranking=random"
NAMES = ("conv1", "conv2", "fc1", "head")


def ablation(rule, value, share=0.302, alpha=0.3, **fields):
    """An ablation's accuracy and personal share."""
    text = f"{rule};alpha={alpha}"
    return rows("fedselect", value, text, **fields) + exact("fedselect", share, "personal_share", text, **fields)


def fedselect(values, share=None, **fields):
    """FedSelect's accuracy at several limits, and its share there."""
    shares = {0.3: 0.302, 0.5: 0.512}
    made = limits(values, **fields)
    for alpha in values:
        made += exact("fedselect", share or shares[alpha], "personal_share", f"alpha={alpha}", **fields)
    return made


def layers(value, names=NAMES, **fields):
    return [row for name in names for row in rows("fedselect", value, f"masks=layers;layers=('{name}',)", **fields)]


def test_12_most_change_against_least():
    own = fedselect({0.3: 80.0, 0.5: 80.0})
    assert verdict(12, own, ablation(LEAST, 78.0)) == (
        "holds", "cifar10 (JPEG copy), real: alpha=0.30 over least change: +2.00 [+2.00, +2.00]",
    )  # fmt: skip
    assert status(12, own, ablation(LEAST, 82.0)) == "does not hold"
    assert status(12, own, ablation(LEAST, noisy(80.0))) == "undecided"
    both = ablation(LEAST, 78.0), ablation(LEAST, 81.0, 0.512, 0.5)
    assert status(12, own, *both) == "does not hold"  # each limit that is stored counts
    assert status(12, own, ablation(RANDOM, 70.0)) == "undecided"


def test_12_every_data_set_counts():
    own = [fedselect({0.3: 80.0}), fedselect({0.3: 80.0}, **CORRUPT), ablation(LEAST, 78.0)]
    found = verdict(12, *own, ablation(LEAST, 82.0, **CORRUPT))
    assert found.status == "does not hold" and "cifar10_c, real: " in found.numbers


def test_12_to_14_leave_out_a_data_set_without_ablations():
    own = [fedselect({0.3: 80.0}), fedselect({0.3: 80.0}, **CORRUPT)]
    six = [ablation(LEAST, 78.0), ablation(RANDOM, 78.0), ablation(GROWTH, 78.0), layers(78.0)]
    for number in (12, 13, 14):
        found = verdict(number, *own, *six)
        assert found.status == "holds"
        assert found.numbers.endswith("; left out, cifar10_c, real: the ablations of Table 3 are not stored")
    assert status(12, *own, *six, ablation(LEAST, noisy(78.0), **CORRUPT)) == "undecided"  # one that is stored counts


@pytest.mark.parametrize("number", [12, 14])
def test_12_and_14_are_about_equal_shares(number):
    own = fedselect({0.3: 80.0}, 0.20)
    found = verdict(number, own, ablation(LEAST, 70.0), ablation(RANDOM, 70.0), ablation(GROWTH, 70.0, 0.20))
    assert found.status == "undecided" and "personal shares differ by -0.102" in found.numbers


def test_13_all_six_ablations():
    own = fedselect({0.3: 80.0, 0.5: 79.0})
    six = [ablation(LEAST, 78.0), ablation(RANDOM, 78.0), layers(78.0)]
    assert status(13, own, *six) == "holds"
    assert f"over layer {NAMES[0]}: +2.00" in verdict(13, own, *six).numbers
    assert status(13, own, *six[:2], layers(78.0, NAMES[:3]), layers(81.0, NAMES[3:])) == "does not hold"
    assert status(13, own, ablation(LEAST, 81.0), *six[1:]) == "does not hold"
    assert status(13, own, ablation(RANDOM, 81.0), ablation(LEAST, 78.0), layers(78.0)) == "does not hold"
    assert status(13, own, *six[:2], layers(noisy(78.0))) == "undecided"
    assert status(13, own, ablation(LEAST, 78.0), layers(78.0)) == "undecided"
    two = verdict(13, own, *six[:2], layers(78.0, NAMES[:2]))
    assert two.status == "undecided" and two.numbers.endswith("2 of 4 groups of layers are stored")


def test_13_layers_are_against_each_limit():
    own = fedselect({0.3: 80.0, 0.5: 77.0})
    six = [ablation(LEAST, 75.0), ablation(RANDOM, 75.0), layers(78.0)]
    at_half = [ablation(LEAST, 75.0, 0.512, 0.5), ablation(RANDOM, 75.0, 0.5, 0.5)]
    assert status(13, own, *six) == "holds"  # alpha = 0.50 has no ablations
    assert status(13, own, *six, *at_half) == "does not hold"
    single = layers(99.0, ("layer1.1.conv2",))  # another reading of the letters
    assert status(13, own, *six, single) == "holds"


def test_14_both_kinds_of_random_masks():
    own = fedselect({0.3: 80.0})
    assert status(14, own, ablation(RANDOM, 78.0, 0.3), ablation(GROWTH, 78.0)) == "holds"
    assert status(14, own, ablation(RANDOM, 81.0, 0.3), ablation(GROWTH, 78.0)) == "does not hold"
    assert status(14, own, ablation(RANDOM, 78.0, 0.3), ablation(GROWTH, 81.0)) == "does not hold"
    assert status(14, own, ablation(RANDOM, noisy(78.0), 0.3), ablation(GROWTH, 78.0)) == "undecided"
    assert status(14, own, ablation(RANDOM, 78.0, 0.3)) == "undecided"


def test_15_contrast_at_each_inner_limit():
    ends = limits({0.0: -9.0, 1.0: -9.0}, "iou_contrast")
    assert verdict(15, limits({0.3: 1.0, 0.8: 0.5}, "iou_contrast"), ends).status == "holds"
    assert verdict(15, limits({0.3: 1.0, 0.8: -0.5}, "iou_contrast")).status == "does not hold"
    assert verdict(15, limits({0.3: 1.0, 0.8: 0.1}, "iou_contrast")).status == "undecided"
    assert "between 0 and 1 is not stored" in verdict(15, ends).numbers


def test_16_slopes():
    def found(contrast, raw):
        return verdict(16, limits(contrast, "iou_contrast"), limits(raw, "iou_raw")).status

    falling, rising = {0.05: 0.4, 0.3: 0.3, 0.8: 0.1}, {0.05: 0.1, 0.3: 0.3, 0.8: 0.7}
    assert found(falling, rising) == "holds"
    assert found(rising, rising) == "does not hold"
    assert found(falling, falling) == "does not hold"
    assert found(falling, {0.05: (0.1, 0.5, 0.3), 0.3: 0.3, 0.8: (0.2, 0.4, 0.7)}) == "undecided"
    assert "fewer than two limits" in verdict(16, limits({0.3: 0.1}, "iou_contrast")).numbers


def traffic(alpha, sent, share, **fields):
    values = {"uplink_fraction": (sent,) * 3, "personal_share": (share,) * 3}
    return [row for metric, value in values.items() for row in limits({alpha: value}, metric, **fields)]


def test_17_leaves_out_a_data_set_without_a_limit_above_one_half():
    found = verdict(17, traffic(0.8, 0.19, 0.81), traffic(0.3, 0.70, 0.30, **CORRUPT))
    assert found.status == "holds"
    assert found.numbers.endswith("; left out, cifar10_c, real: fedselect with a limit above 0.5 is not stored")
    wrong = verdict(17, traffic(0.8, 0.19, 0.81), traffic(0.3, 0.90, 0.30, **CORRUPT))
    assert wrong.status == "does not hold" and "left out" not in wrong.numbers


def test_17_uplink():
    def found(alpha, sent, share):
        return status(17, traffic(alpha, sent, share))

    assert found(0.8, 0.19, 0.81) == "holds"
    assert found(0.8, 0.40, 0.81) == "does not hold"  # not 1 - share
    assert found(0.8, 0.38, 0.64) == "holds"  # small enough, though the limit is not reached
    assert found(0.8, 0.58, 0.44) == "undecided"  # the limit is not reached yet
    assert found(0.51, 0.51, 0.52) == "does not hold"  # not below one half
    assert found(0.3, 0.69, 0.31) == "undecided"  # no limit above one half


# Table 3 in `compare`


@pytest.mark.parametrize(("preset", "model"), [("real", "cnn_small"), ("paper", "resnet18"), ("quick", "mlp")])
def test_the_runs_of_the_ablation_fill_table_3(preset, model):
    """Every rule and, where a network has four groups, every layer; single convolutions fill no cell."""
    made = []
    for i, spec in enumerate(PAPER.specs("03_ablations", preset, [0])):
        if spec.setting == "cifar10":
            assert spec.model["name"] == model
            data = spec.data["name"]
            fields = dict(model=model, preset=preset, dataset=data, data=data)
            made += rows("fedselect", (float(i),), PAPER.variant(spec), seeds=(0,), **fields)
    found = [row for row in filled(COMPARISON, frame(made)) if row["table"] == "table3"]
    rules = {
        "Personalize Least",
        "Random",
        *(f"Layer {letter}" for letter in LAYERS[model]),
        "alpha=0.30",
        "alpha=0.50",
    }
    assert {row["variant"] for row in found} == rules
    assert len({row["ours"] for row in found}) == len(found) == len(rules)
    assert {row["dataset"] for row in found} == {"CIFAR-10"}
