"""Labels and colours of FedSelect's runs: limits, scopes, rules, options of the released code."""

import math

import pandas as pd

from pfl_core.papers.fedselect import labels
from pfl_core.papers.fedselect.experiments import code_options
from pfl_core.study import plots


def test_limits_are_labelled_and_larger_ones_are_darker():
    rows = [("fedavg", math.nan), ("fedselect", 0.05), ("fedselect", 0.5), ("fedselect", 1.0)]
    table = labels.labelled(pd.DataFrame(rows, columns=["method", "alpha"]))
    assert table["label"].tolist() == ["FedAvg", *(f"FedSelect, α = {alpha}" for alpha in ("0.05", "0.5", "1"))]
    first, *own = table["color"]
    assert first == plots.COLORS["fedavg"]
    assert sorted(own, key=lambda color: -sum(color)) == own and len(set(own)) == 3


def test_runs_that_rank_tensor_by_tensor_have_separate_labels_and_colours():
    rows = [("fedselect", 0.3, "global"), ("fedselect", 0.3, "per_tensor"), ("local", math.nan, math.nan)]
    table = labels.labelled(pd.DataFrame(rows, columns=["method", "alpha", "selection_scope"]))
    assert table["label"].tolist() == ["FedSelect, α = 0.3", "FedSelect, α = 0.3, tensor by tensor", "Local"]
    assert table["color"].nunique() == 3
    rows = [("change", "grown", (), scope) for scope in ("global", "per_tensor")]
    table = labels.rules(pd.DataFrame(rows, columns=["ranking", "masks", "layers", "selection_scope"]))
    assert table["label"].tolist() == ["most change (FedSelect)", "most change (FedSelect), tensor by tensor"]
    assert table["color"].nunique() == 2


def test_rules_are_named_by_ranking_masks_and_layers():
    rows = [
        *(("change", "grown", ()), ("least_change", "grown", ()), ("random", "grown", ()), ("random", "random", ())),
        *(("random", "common_random", ()), ("change", "layers", ("fc1",)), ("gradient", "grown", ())),
    ]
    table = labels.rules(pd.DataFrame(rows, columns=["ranking", "masks", "layers"]))
    assert table["label"].tolist() == [
        *("most change (FedSelect)", "least change", "random, growing", "random, fixed"),
        *("one random mask for all", "only fc1", "largest gradients"),
    ]
    assert table["color"].iloc[0] == plots.COLORS["fedselect"] and table["color"].nunique() == 7


def test_options_of_the_code_have_plain_words():
    assert labels.option_text("p=0.5; alpha=0.5; limit_comparison=inclusive") == (
        "p = 0.5; α = 0.5; grow at the limit, too"
    )


def test_every_option_of_the_code_has_words():
    options = [f"{name}={value}" for option in code_options().values() for name, value in option.items()]
    unknown = [text for text in options if labels.option_text(text) == text]
    assert not unknown
