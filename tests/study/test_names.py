"""Names that tables and figures show."""

import pandas as pd

from pfl_core.study.methods import NAMES
from pfl_core.study.names import in_figure, plain


def test_symbols_are_written_as_such_and_not_inside_of_words():
    assert in_figure("η_g = 0.5") == r"$η_{\mathrm{g}}$ = 0.5"
    assert in_figure("warmup_cost") == "warmup_cost"
    assert (
        plain("CIFAR-10, augment=crop_flip") == "CIFAR-10, crops and flips" == in_figure("cifar10, augment=crop_flip")
    )


def test_a_class_of_ones_own_has_its_own_name():
    assert list(pd.Series(["ditto", "mine:HalfStep"]).map(NAMES)) == ["Ditto", "HalfStep"]


def test_names_of_settings_are_spelled_as_words():
    assert plain("sagital, alpha=0.1") == "sagittal, alpha=0.1" and plain("my_sagital") == "my_sagital"
