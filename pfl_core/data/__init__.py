"""Named data sets.

`load(name)` gives a `Dataset`; `names()` tells what there is, `fetch()` gets and checks files, `checksum(name)`
identifies content, `corrupt()` damages images on purpose. Nothing here touches the network unless it is asked to.
"""

from pfl_core.data.catalogue import VERSIONS, Info, checksum, fetch, load, names, versions
from pfl_core.data.corrupt import CORRUPTIONS, corrupt
from pfl_core.data.dataset import NORMALISE, Dataset
from pfl_core.data.registry import data_dir

__all__ = [
    "CORRUPTIONS",
    "NORMALISE",
    "VERSIONS",
    "Dataset",
    "Info",
    "checksum",
    "corrupt",
    "data_dir",
    "fetch",
    "load",
    "names",
    "versions",
]
