"""The algorithms of four papers on personalized federated learning, and every baseline that they compare with.

Light on purpose: torch and numpy; data readers, figures and notebooks are imported where they are used.
"""

from pfl_core.algorithm import Algorithm, State, methods, register
from pfl_core.engine import Schedule, rounds, run
from pfl_core.federation import Federation, LocalTraining, Split
from pfl_core.layout import Layout
from pfl_core.training import Training

__version__ = "0.1.0"
__all__ = [
    "Algorithm",
    "Federation",
    "Layout",
    "LocalTraining",
    "Schedule",
    "Split",
    "State",
    "Training",
    "methods",
    "register",
    "rounds",
    "run",
]
