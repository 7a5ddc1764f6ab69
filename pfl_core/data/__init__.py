"""Named data sets.

`load(name)` returns a `Dataset`; `names()` lists the data sets; `fetch()` downloads and checks files; `checksum(name)`
identifies the content; `corrupt()` applies image corruptions. Only `fetch()` and `load(..., offline=False)` use the
network. Each public name is imported at its first use.
"""

import importlib
from typing import TYPE_CHECKING

from pfl_core.data.registry import data_dir

if TYPE_CHECKING:
    from pfl_core.data.catalogue import VERSIONS, Info, check_load, checksum, fetch, load, names, versions
    from pfl_core.data.corruptions import CORRUPTIONS, corrupt
    from pfl_core.data.dataset import NORMALISE, Dataset

__all__ = [
    "CORRUPTIONS",
    "NORMALISE",
    "VERSIONS",
    "Dataset",
    "Info",
    "check_load",
    "checksum",
    "corrupt",
    "data_dir",
    "fetch",
    "load",
    "names",
    "versions",
]
_MODULES = {
    **dict.fromkeys(("VERSIONS", "Info", "check_load", "checksum", "fetch", "load", "names", "versions"), "catalogue"),
    **dict.fromkeys(("CORRUPTIONS", "corrupt"), "corruptions"),
    **dict.fromkeys(("NORMALISE", "Dataset"), "dataset"),
}


def __getattr__(name: str) -> object:
    """Import a public name at its first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
