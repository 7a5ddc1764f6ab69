"""What the papers say, as data: their tables, their claims, and both beside stored results.

Results arrive as one tidy frame, a row for each run and metric of its last round; ``pfl_core.paper.results`` says which
columns and metrics. This package reads CSV and TOML files in ``data/paper/`` and knows data frames only: no method, no
run, no store.
"""

from pfl_core.paper.claims import Claim, claims, claims_table
from pfl_core.paper.compare import as_frame, compare
from pfl_core.paper.results import Interval, leads, paired
from pfl_core.paper.tables import PAPERS, notes, remarks, table
from pfl_core.paper.verdicts import Verdict

__all__ = [
    "PAPERS",
    "Claim",
    "Interval",
    "Verdict",
    "as_frame",
    "claims",
    "claims_table",
    "compare",
    "leads",
    "notes",
    "paired",
    "remarks",
    "table",
]
