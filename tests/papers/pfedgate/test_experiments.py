"""Which runs pFedGate's notebooks ask for."""

import pytest

from pfl_core.papers.pfedgate import experiments
from pfl_core.papers.pfedgate.paper import PAPER


def test_no_run_is_asked_for_twice():
    for notebook in PAPER.experiments:
        for preset in ("ci", "quick", "real"):
            made = PAPER.specs(notebook, preset, [0])
            assert len({str(one.identity()) for one in made}) == len(made), (notebook, preset)


def test_a_search_chooses_among_the_runs_that_the_comparison_makes():
    """So that the chosen run is not made again."""
    for (preset, setting), searches in PAPER.searches.items():
        asked = [one for one in PAPER.specs("01_main_comparison", preset, [0]) if one.setting == setting]
        for search in searches:
            values = {name: grid[0] for name, grid in search.grid.items()}
            tried = search.spec(PAPER.settings, preset, setting, values).method
            same = {k: v for k, v in tried.items() if k not in search.grid}
            found = [{k: v for k, v in one.method.items() if k not in search.grid} for one in asked]
            assert same in found, search.method


def test_controls_cross_masks_with_scales_at_equal_shares():
    """Each mask with learned scales and with scales of 1, all of blocks of one size; beside the paper's gate."""
    made = [one.build_method() for one in experiments.controls("cifar10", "quick", [0], {})]
    paper, *rest = made
    assert (paper.block_layout, paper.mask, paper.gate_override) == ("first_min_ratio", "learned", None)
    assert {one.block_layout for one in rest} == {"balanced"} and {one.keep_ratio for one in made} == {0.5}
    masks = ("learned", "small_blocks", "random")
    assert [(one.mask, one.gate_override) for one in rest] == [(m, s) for m in masks for s in (None, 1.0)]


@pytest.mark.parametrize("preset", ["quick", "real", "paper"])
def test_the_ablation_has_a_gate_without_sigmoid_that_starts_like_the_full_one(preset):
    made = [one.build_method() for one in PAPER.specs("04_gate_ablation", preset, [0])]
    full = made[0]
    (tangent,) = {one for one in made if one.without_sigmoid == "tangent" and one.lr_gate == full.lr_gate}
    assert not tangent.sigmoid and tangent.scale_bias_init == full.scale_bias_init
