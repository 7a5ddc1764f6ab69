"""FedPeWS: what may decide its claims, and the searches behind its comparisons; committed before the runs.

Where nothing is said of a claim, it needs all conditions of ``study.criteria``.
"""

from __future__ import annotations

from pfl_core.papers.fedpews.settings import SETTINGS
from pfl_core.study.criteria import CONDITIONS, SEARCH, Criteria, Waiver

CRITERIA = Criteria(
    waived={
        14: Waiver((SEARCH,), "about the activations of one method"),
        15: Waiver(CONDITIONS, "a bound"),
        16: Waiver(CONDITIONS, "counts of what is sent"),
    },
    searched=SETTINGS.searched,
)
