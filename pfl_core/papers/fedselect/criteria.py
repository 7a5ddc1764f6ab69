"""FedSelect: what may decide its claims, and the searches behind its comparisons; committed before the runs.

Where nothing is said of a claim, it needs all conditions of ``study.criteria``.
"""

from __future__ import annotations

from pfl_core.papers.fedselect.settings import SETTINGS
from pfl_core.study.criteria import CONDITIONS, SEARCH, Criteria, Waiver

CRITERIA = Criteria(
    waived={
        6: Waiver(CONDITIONS, "identities"),
        15: Waiver((SEARCH,), "about the masks of one method"),
        16: Waiver((SEARCH,), "about the masks of one method"),
        17: Waiver(CONDITIONS, "counts of what is sent"),
        21: Waiver((SEARCH,), "about the masks of one method"),
        22: Waiver(CONDITIONS, "counts of what is sent"),
    },
    searched=SETTINGS.searched,
)
