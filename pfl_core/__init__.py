"""The methods of four papers on personalized federated learning, and all baselines of their comparisons.

Importing the package is fast: each public name is imported at its first use.
"""

import importlib

TYPE_CHECKING = False  # as in `typing`, which takes 10 ms to import; type checkers read the next lines
if TYPE_CHECKING:
    from pfl_core.algorithm import Algorithm, State, methods, register
    from pfl_core.engine import Schedule, rounds, run
    from pfl_core.exports import SavedModel, SavedModels, load_models
    from pfl_core.federation import Federation, LocalTraining, Split
    from pfl_core.layout import Layout
    from pfl_core.training import Training

__version__ = "0.1.0"
__all__ = [
    "Algorithm",
    "Federation",
    "Layout",
    "LocalTraining",
    "SavedModel",
    "SavedModels",
    "Schedule",
    "Split",
    "State",
    "Training",
    "load_models",
    "methods",
    "register",
    "rounds",
    "run",
]
_MODULES = {
    **dict.fromkeys(("Algorithm", "State", "methods", "register"), "algorithm"),
    **dict.fromkeys(("Schedule", "rounds", "run"), "engine"),
    **dict.fromkeys(("SavedModel", "SavedModels", "load_models"), "exports"),
    **dict.fromkeys(("Federation", "LocalTraining", "Split"), "federation"),
    "Layout": "layout",
    "Training": "training",
}


def __getattr__(name: str) -> object:
    """Import a public name at its first use (PEP 562), so that importing the package stays fast."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
