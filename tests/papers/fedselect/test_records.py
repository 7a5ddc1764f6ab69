"""Committed records that must belong together."""

import os
from pathlib import Path

import pytest

from pfl_core.papers.fedselect.paper import PAPER
from pfl_core.runs import Store
from pfl_core.study.mask_overlap import masks

WITHOUT_EFFECT = ({"skip_empty_pass": False}, {"bn_mode": "eval_after_round_0"}, {"tie_rule": "threshold"})


@pytest.mark.parametrize("fields", WITHOUT_EFFECT, ids=lambda fields: next(iter(fields)))
def test_options_that_cannot_act_end_as_the_papers_text(fields):
    """`cnn_small` has no batch norm, and no changes at the cut-off are equal.

    If this fails after a run was added, the two were computed on processors that round differently. Compute both on
    one.
    """
    store = Store(root=Path(os.devnull))
    specs = PAPER.specs("07_paper_vs_code", "real")
    own = [spec for spec in specs if spec.method["name"] == "fedselect" and spec.setting == specs[0].setting]
    texts = {spec.seed: store.get(spec.key()) for spec in own if spec.method == specs[0].method}
    pairs = [(store.get(spec.key()), texts[spec.seed]) for spec in own if spec.method == {**specs[0].method, **fields}]
    compared = [(option.state, text.state) for option, text in pairs if option is not None and text is not None]
    assert compared and all(option == text for option, text in compared)


def test_one_ranking_makes_the_last_layer_of_resnet18_personal():
    """So Figure 4's masks, whose overlap there grows with α, cannot arise from it; ranked by itself, 0.30 is."""
    store, shares = Store(root=Path(os.devnull)), {}
    for spec in PAPER.specs("01_main_comparison", "paper", [0]):
        record = store.get(spec.key())
        if record is not None and spec.method["name"] == "fedselect" and spec.setting == "cifar10":
            both, size = masks(record)["fc.weight"]
            shares[spec.method.get("selection_scope", "global")] = both.diagonal() / size  # of each client
    assert (shares["global"] > 0.99).all()
    assert shares["per_tensor"] == pytest.approx(0.30, abs=0.01)
