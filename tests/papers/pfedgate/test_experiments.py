"""The runs of pFedGate's notebooks."""

import pytest

from pfl_core.algorithm import build
from pfl_core.papers.pfedgate.experiments import controls
from pfl_core.papers.pfedgate.paper import PAPER


def test_controls_cross_masks_with_scales_at_equal_shares():
    """Each mask with learned scales and with scales of 1, on blocks of one size; and the paper's gate."""
    methods = [build(name, fields) for name, fields in controls()]
    paper, *rest = methods
    assert (paper.block_layout, paper.mask, paper.gate_override) == ("first_min_ratio", "learned", None)
    assert {method.block_layout for method in rest} == {"balanced"} and {method.keep_ratio for method in methods} == {
        0.5
    }
    masks = ("learned", "small_blocks", "random")
    assert [(method.mask, method.gate_override) for method in rest] == [(m, s) for m in masks for s in (None, 1.0)]


@pytest.mark.parametrize("preset", ["quick", "real", "paper"])
def test_the_ablation_has_a_tangent_gate_with_the_bias_of_the_full_one(preset):
    methods = [method.build_method() for method in PAPER.specs("04_gate_ablation", preset, [0])]
    full = methods[0]
    (tangent,) = {
        method for method in methods if method.without_sigmoid == "tangent" and method.lr_gate == full.lr_gate
    }
    assert not tangent.sigmoid and tangent.scale_bias_init == full.scale_bias_init
