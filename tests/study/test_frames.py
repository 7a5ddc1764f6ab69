"""Runs with bitwise identical final states on every seed."""

import pandas as pd

from pfl_core.study.frames import same_end


def test_an_option_without_effect_ends_alike_on_every_common_seed():
    rows = [("plain", 0, "a"), ("plain", 1, "b"), ("void", 0, "a"), ("void", 1, "b")]
    rows += [("once", 0, "a"), ("once", 1, "c"), ("swapped", 0, "b"), ("swapped", 1, "a"), ("short", 0, "a")]
    rows += [("alone", 2, "a")]
    table = pd.DataFrame(rows, columns=["label", "seed", "state"])
    assert same_end(table, "plain") == ["void", "short"]
