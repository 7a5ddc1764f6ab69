"""Star-PFL without its parts: rows of runs, and means over seeds beside the shares on noise."""

from dataclasses import replace

import pytest

from pfl_core.papers.star_pfl import figures
from pfl_core.papers.star_pfl.results import ablations
from pfl_core.study.style import BLACK, BLUE, COLORS, GREEN
from tests.papers.star_pfl.invented_runs import MACS, record


def runs(seed=0, upload=22_000):
    shares = {name: [[value] * 20] * 3 for name, value in (("active_share", 0.8), ("active_share_global", 0.9))}
    own = record("star_pfl", upload=upload, upload_bits=upload, weight_macs=float(MACS), **shares)
    never = replace(own, spec=replace(own.spec, method={"name": "star_pfl", "thaw": False}))
    other = replace(own, spec=replace(own.spec, method={"name": "star_pfl", "threshold_rule": "inclusive"}))
    found = [own, never, other, record("fedavg")]
    return [replace(one, spec=replace(one.spec, seed=seed)) for one in found]


def test_a_row_for_each_run_named_by_its_option():
    table = ablations.table(runs())
    assert table["label"].tolist() == ["Star-PFL", "never thawed", "A3 inclusive threshold", "FedAvg"]
    assert table["frozen_local"].tolist()[:3] == pytest.approx([20] * 3) and table["frozen_local"].isna()[3]
    assert ablations.run_label(runs(seed=2)[1]) == "never thawed, axial, seed 2"


def test_cells_are_means_over_seeds_and_noise_has_a_line_of_its_own():
    table = ablations.table(runs() + runs(seed=1, upload=11_000))
    cells = ablations.cells(table).set_index(["metric", "label"])
    sent = cells.loc[("sent_share", "Star-PFL")]
    assert (sent["value"], sent["panel"], sent["dataset"]) == (
        pytest.approx(100 * 16_500 / 44_555),
        "sent (%)",
        "share",
    )
    noise = cells.loc[("frozen_local", "noise alone"), "value"]
    assert noise == pytest.approx(table["chance_local"].iloc[0])
    assert cells.loc[("acc_mean_picked_merged", "FedAvg"), "dataset"] == "accuracy"


def test_an_option_with_fewer_seeds_stands_beside_the_method_on_these_seeds():
    one, two = runs(), runs(seed=1, upload=11_000)
    cells = ablations.cells(ablations.table(one + [run for run in two if "threshold_rule" not in run.spec.method]))
    sent = cells[cells["metric"] == "sent_share"].set_index("label")
    assert sent.loc["A3 inclusive threshold", "same"] == pytest.approx(100 * 22_000 / 44_555), "seed 0 alone"
    assert sent.loc[["Star-PFL", "never thawed", "FedAvg"], "same"].isna().all()
    fig = figures.tables.ablations(cells, "caption")
    assert [line for ax in fig.axes for line in ax.lines if line.get_marker() == "|"]
    assert "|: Star-PFL on the seeds of this line" in fig.get_supxlabel()


def test_colours_tell_parts_from_readings():
    fig = figures.tables.ablations(ablations.cells(ablations.table(runs())), "caption")
    drawn = {line.get_color() for ax in fig.axes for line in ax.lines}
    assert {BLACK, BLUE, GREEN, COLORS["star_pfl"]} <= drawn
