"""Costs of Star-PFL's comparison: the columns of Table 3 to the printed digit."""

import json

import pytest

from pfl_core.papers.star_pfl import costs
from pfl_core.papers.star_pfl.settings import SETTINGS
from pfl_core.runs.build import build
from pfl_core.study import network
from tests.papers.star_pfl.invented_runs import MACS, D, record


@pytest.mark.parametrize(
    ("method", "upload", "comm"),
    [("fedavg", D, "3.403"), ("fedap", 44_511, "3.403"), ("fedbn", 44_511, "3.396"), ("local", 0, "0.000")],
)
def test_costs_of_dense_methods_match_table_3(method, upload, comm):
    metrics = costs.costs(record(method, upload=upload))
    assert f"{metrics['comm_mb_per_client_per_round']:.3f}" == comm
    assert f"{metrics['flops_1e10_per_round']:.3f}" == "2.978"  # 3.005 in the paper: explained to one per cent
    assert metrics["dense_1e10_per_round"] < metrics["flops_1e10_per_round"]  # no gradient of the images


def test_a_mask_saves_traffic_and_weight_gradients():
    half = costs.costs(record("star_pfl", upload=22_000, upload_bits=D, weight_macs=MACS / 2))
    assert half["comm_mb_per_client_per_round"] == pytest.approx(4 * (22_000 + 44) * 20 / 2**20)
    assert half["flops_1e10_per_round"] == pytest.approx(10 * 1761.5 * 2 * 2.5 * MACS / 1e10)
    assert (half["upload_bytes"], half["mask_bytes"]) == (4 * 22_044, 5570)
    assert half["download_bytes"] == 4 * 44_599 + 5570


def test_operations_of_lotteryfl_follow_its_density():
    metrics = costs.costs(record("lotteryfl", upload=30_000, density=0.64))
    assert metrics["flops_1e10_per_round"] == pytest.approx(10 * 1761.5 * 2 * 2.64 * MACS / 1e10)
    assert metrics["comm_mb_per_client_per_round"] == pytest.approx(4 * (30_000 + 44) * 20 / 2**20)


def test_download_of_lotteryfl_is_the_mask_before_the_round():
    uploads = [[D] * 20, [30_000] * 20, [30_000] * 10 + [20_000] * 10]
    metrics = costs.costs(record("lotteryfl", upload=uploads, density=1.0))
    before = [D, D, 30_000]
    assert metrics["download_bytes"] == pytest.approx(4 * (sum(before) / 3 + 44))
    so_far = costs.progress(record("lotteryfl", upload=uploads, density=1.0))["megabytes"]
    up = [D, 30_000, 25_000]
    assert so_far.iloc[-1] == pytest.approx(4e-6 * (sum(up) + sum(before) + 6 * 44))


def test_clients_and_rounds_are_averaged():
    uploads = [[0] * 10 + [40_000] * 10, [20_000] * 20, [20_000] * 20]
    metrics = costs.costs(record("star_pfl", upload=uploads, weight_macs=float(MACS)))
    assert metrics["upload_bytes"] == 4 * 20_044


def test_the_image_side_follows_from_the_network_size():
    layout, uses = network.network(record("fedavg"))
    assert (layout.num_params, int(uses.sum())) == (D, MACS)
    small = SETTINGS.spec("fedavg", preset="quick")
    model = json.dumps(small.model)
    layout, uses = network._network(model, 10, 1_746)
    assert layout.num_params == 1_746 and int(uses.sum()) == 4 * 9 * 64 + 8 * 36 * 16 + 32 * 32 + 320
    _, fed, _ = build(small)
    assert network._network(model, 10, fed.num_params)[0].num_params == fed.num_params
    with pytest.raises(ValueError, match="none of the image sizes"):
        network._network(model, 10, 1)
