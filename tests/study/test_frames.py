"""Data frames from records: identical final states, standings, names of data."""

from types import SimpleNamespace

import pandas as pd
import pytest

from pfl_core.study.frames import data_name, same_end


def test_an_option_without_effect_ends_alike_on_every_common_seed():
    rows = [("plain", 0, "a"), ("plain", 1, "b"), ("void", 0, "a"), ("void", 1, "b")]
    rows += [("once", 0, "a"), ("once", 1, "c"), ("swapped", 0, "b"), ("swapped", 1, "a"), ("short", 0, "a")]
    rows += [("alone", 2, "a")]
    table = pd.DataFrame(rows, columns=["label", "seed", "state"])
    assert same_end(table, "plain") == ["void", "short"]


@pytest.mark.parametrize(
    ("about", "shown"),
    [
        ("our generator: no centres are published", "generated here: no centres are published"),
        ("CIFAR-10 (JPEG copy)", "CIFAR-10 (JPEG copy)"),
        ("", "mnist"),
    ],
)
def test_figures_name_the_data_of_older_records_in_the_present_words(about, shown):
    record = SimpleNamespace(about=about, spec=SimpleNamespace(data={"name": "mnist"}))
    assert data_name(record) == shown
