"""FedSelect with few training images: the methods that lose most."""

from __future__ import annotations

import pandas as pd

from pfl_core.study.methods import NAMES

FALLING = ("fedbabu", "fedper")  # lose most with few images, according to Figure 3


def falling(table: pd.DataFrame) -> list[str]:
    """The labels of FALLING that are in the table. Column: method."""
    return [NAMES[method] for method in FALLING if (table["method"] == method).any()]
