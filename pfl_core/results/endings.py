"""Which runs end alike, to the last bit."""

from __future__ import annotations

import pandas as pd


def same_end(table: pd.DataFrame, own: str) -> list[str]:
    """The other labels whose runs end with the bits of ``own``'s on every seed: there, nothing was changed.

    Columns: label, seed, and state, the hash of the final state's bits.
    """
    states = table.pivot(index="seed", columns="label", values="state")
    same = states.drop(columns=own).eq(states[own], axis=0).all()
    return [label for label in dict.fromkeys(table["label"]) if same.get(label, False)]
