"""Star-PFL's costs against the numbers of the paper's tables and abstract."""

from __future__ import annotations

import math

import pytest
import torch

from pfl_core import Federation, Split, Training
from pfl_core.algorithms.star_pfl.costs import (
    as_paper_comm,
    paper_values,
    round_flops,
    rounds_to_convergence,
    rounds_to_plateau,
    traffic,
)
from pfl_core.costs import step_flops, weight_uses
from pfl_core.models import build
from pfl_core.study import published
from tests.helpers import cnn, federation, mlp

SHAPE, MACS = (1, 28, 28), 281_724


@pytest.fixture(scope="module")
def fed():
    split = Split.of([(torch.zeros(2, *SHAPE), torch.tensor([0, 1]))])
    net = build("lenet_star", SHAPE, 11, 0)
    return Federation(net, {"train": split, "test": split}, seed=0, rounds=1, train=Training(lr=0.1))


def printed(table, metric):
    """(dataset, method, variant) -> the paper's number."""
    rows = published.table("star_pfl", table).fillna({"value": 0.0})
    rows = rows[rows["metric"] == metric]
    return dict(zip(zip(rows["dataset"], rows["method"], rows["variant"], strict=True), rows["value"], strict=True))


# ---- communication --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "values", "text"),
    [("fedavg", 44_599, "3.403"), ("fedap", 44_599, "3.403"), ("fedbn", 44_511, "3.396"), ("local", 0, "0.000")],
)
def test_the_papers_communication_to_the_last_printed_digit(fed, method, values, text):
    assert paper_values(method, fed.layout) == values
    assert f"{as_paper_comm(4 * values):.3f}" == text
    names = {"fedavg": "FedAvg", "fedap": "FedAP", "fedbn": "FedBN", "local": "Local"}
    comm = printed("table3", "comm_mb_per_client_per_round")
    assert {comm[data, names[method], "alpha=0.1"] for data in ("Axial", "Sagital")} == {float(text)}


@pytest.mark.parametrize(
    ("data", "method", "share"),
    [
        ("Axial", "Star-PFL", 66.1),
        ("Sagital", "Star-PFL", 68.2),
        ("Axial", "LotteryFL", 68.0),
        ("Sagital", "LotteryFL", 68.2),
    ],
)
def test_shares_of_values_sent_that_follow_from_table_3(data, method, share):
    comm = printed("table3", "comm_mb_per_client_per_round")[data, method, "alpha=0.1"]
    assert round(100 * comm / as_paper_comm(4 * 44_599), 1) == share


def test_masked_methods_are_charged_for_what_they_send(fed):
    assert paper_values("star_pfl", fed.layout, 30_000) == 30_044
    assert paper_values("lotteryfl", fed.layout, 30_000) == 30_044


def test_full_accounting_of_traffic(fed):
    """Bytes: 4 a value, 44 statistics where they travel; a mask of 44,555 bits is 5,570 bytes."""
    d = 44_555
    star = traffic("star_pfl", fed.layout, 30_000, d)
    assert (star.upload_payload, star.upload_mask, star.download) == (4 * 30_044, 5_570, 4 * 44_599 + 5_570)
    assert star.total == 4 * 30_044 + 5_570 + 4 * 44_599 + 5_570
    avg = traffic("fedavg", fed.layout, d)
    assert (avg.upload_payload, avg.upload_mask, avg.download) == (178_396, 0, 178_396)
    for method in ("fedbn", "fedap"):
        own = traffic(method, fed.layout, 44_511)
        assert (own.upload_payload, own.upload_mask, own.download) == (178_044, 0, 178_044)
    lottery = traffic("lotteryfl", fed.layout, 20_000, 44_296)
    assert (lottery.upload_payload, lottery.upload_mask, lottery.download) == (80_176, 5_537, 80_176)
    assert traffic("local", fed.layout, 0).total == 0


# ---- FLOPs ----------------------------------------------------------------------------------------------------------


def test_uses_of_lenets_weights(fed):
    """A weight of conv1 is used 576 times, of conv2 64 times, of a linear layer once; biases and norms count 0."""
    uses = fed.layout.unflatten(weight_uses(fed, fed.theta0))
    assert {name: set(u.flatten().tolist()) for name, u in uses.items() if u.any()} == {
        "conv1.weight": {576},
        "conv2.weight": {64},
        "fc1.weight": {1},
        "fc2.weight": {1},
        "head.weight": {1},
    }
    assert int(weight_uses(fed, fed.theta0).sum()) == MACS
    assert 2 * MACS == step_flops(build("lenet_star", SHAPE, 11, 0), SHAPE)[0]  # torch's own count


@pytest.mark.parametrize(("make", "shape"), [(mlp, (6,)), (cnn, (1, 4, 4))])
def test_uses_add_up_to_torchs_count(make, shape):
    fed = federation(make(), shape=shape)
    assert 2 * int(weight_uses(fed, fed.theta0).sum()) == step_flops(make(), shape)[0]


def test_flops_per_image(fed):
    uses = weight_uses(fed, fed.theta0)
    dense = fed.layout.mask(lambda f: f.layer in ("fc1", "fc2", "head"))[: fed.num_params]
    for active, flops in ((uses >= 0, 1_690_344), (uses < 0, 1_126_896), (~dense, 1_606_896)):
        assert round_flops(MACS, int((uses * active).sum()), samples=1, epochs=1) == flops


@pytest.mark.parametrize(("samples", "flops"), [(1761.45, 2.977), (1765.5, 2.984), (752.65, 1.272)])
def test_the_papers_flops_are_explained_to_one_percent(samples, flops):
    """Table 3 prints 3.005e10 for both tasks; 752.65 images are Sagittal's."""
    got = round_flops(MACS, MACS, samples, epochs=10)
    assert round(got / 1e10, 3) == flops
    assert (abs(got / 3.005e10 - 1) < 0.01) == (samples > 1000)


def test_with_bias_additions_the_papers_flops_are_explained_to_a_thousandth():
    """One addition for each output of conv1, conv2 and the linear layers."""
    biases = 6 * 24 * 24 + 16 * 8 * 8 + 120 + 84 + 11
    got = round_flops(MACS, MACS, 1761.45, epochs=10, bias_adds=biases)
    assert got == round_flops(MACS, MACS, 1761.45, epochs=10) + 10 * 1761.45 * 3 * biases
    assert got == pytest.approx(3.005e10, rel=1e-3)


@pytest.mark.parametrize(("data", "frozen"), [("Axial", 9.3), ("Sagital", 6.8)])
def test_frozen_shares_that_follow_from_table_3(data, frozen):
    """The saved share of the weight gradients, which are a third of all FLOPs."""
    flops = printed("table3", "flops_1e10_per_round")[data, "Star-PFL", "alpha=0.1"]
    assert round(100 * 3 * (1 - flops / 3.005), 1) == frozen


# ---- rounds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "best"),
    [([0.1, 0.3, 0.2], 2), ([0.3, 0.1, 0.3], 1), ([0.5], 1), ([math.nan, 0.2, 0.1], 2), ([0.1, 0.2, 0.3], 3)],
)
def test_convergence_is_the_first_best_round(values, best):
    assert rounds_to_convergence(values) == best


def test_plateau_by_hand():
    """Best 0.9, so a mean of at least 0.895: rounds 2 to 6 have 0.875, 3 to 7 0.8954; with a best of 0.91 never."""
    values = [0.5, 0.8, 0.88, 0.897, 0.9, 0.9, 0.9]
    assert rounds_to_plateau(values) == 7
    assert rounds_to_plateau([*values, 0.91]) is None
    assert rounds_to_plateau([*values, 0.9049, 0.9]) == 8
    assert rounds_to_plateau([0.9] * 5) == 5
    assert rounds_to_plateau([0.9] * 4) is None and rounds_to_plateau([]) is None
    assert rounds_to_plateau([0.5, 0.5, 0.5, 0.5, 0.5, 0.9]) is None


# ---- the abstract's percentages -------------------------------------------------------------------------------------


def saved(metric):
    """Percent by which Star-PFL's total (metric times rounds) is below the five baselines' mean, for both tasks."""
    per_round, rounds = printed("table3", metric), printed("table3", "rounds_to_convergence")
    total = {key[:2]: per_round[key] * rounds[key] for key in per_round}
    out = []
    for data in ("Axial", "Sagital"):
        others = [total[data, m] for m in ("Local", "FedAvg", "FedBN", "FedAP", "LotteryFL")]
        out.append(100 * (1 - total[data, "Star-PFL"] / (sum(others) / 5)))
    return out


@pytest.mark.parametrize(
    ("metric", "axial", "sagital", "mean"),
    [("comm_mb_per_client_per_round", 41.0, 31.7, 36.3), ("flops_1e10_per_round", 26.4, 10.1, 18.3)],
)
def test_the_abstracts_savings(metric, axial, sagital, mean):
    """The mean over the five baselines, where Local counts as 0."""
    got = saved(metric)
    assert [round(x, 1) for x in (*got, sum(got) / 2)] == [axial, sagital, mean]


def test_the_abstracts_accuracy():
    accuracy = printed("table2", "mean_client_accuracy")
    star_pfl = [v for key, v in accuracy.items() if key[1] == "Star-PFL"]
    others = [v for key, v in accuracy.items() if key[1] != "Star-PFL"]
    assert len(star_pfl) == 6 and len(others) == 30
    assert round(100 * (sum(star_pfl) / 6 - sum(others) / 30), 2) == 3.14
