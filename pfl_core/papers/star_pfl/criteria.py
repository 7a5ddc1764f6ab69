"""Star-PFL: what may decide its claims, and the searches behind its comparisons; committed before the runs.

Where nothing is said of a claim, it needs all conditions of ``study.criteria``.
"""

from __future__ import annotations

from pfl_core.papers.star_pfl.settings import SETTINGS
from pfl_core.study.criteria import MECHANISM, SEARCH, Criteria, Waiver

CRITERIA = Criteria(
    waived={
        4: Waiver((SEARCH,), "counts of what a round sends and computes"),
        6: Waiver((SEARCH,), "about the parameters of one method"),
        7: Waiver((SEARCH,), "about the parameters of one method"),
        12: Waiver((MECHANISM, SEARCH), "asks whether the mechanism acts"),
    },
    searched=SETTINGS.searched,
)
