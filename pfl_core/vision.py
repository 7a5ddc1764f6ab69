"""The only door to torchvision.

Beside the CPU build of torch, torchvision can lack its compiled operators. Its import then stops at ``operator
torchvision::nms does not exist``, although data sets, models and transforms need no such operator. Declaring the two
detection operators by name, without an implementation, lets the import through.
"""

import importlib
import sys
from functools import cache
from types import ModuleType

import torch

MISSING = "torchvision::nms"  # how the failed import names the compiled part


def torchvision() -> ModuleType:
    """The imported torchvision, with its submodules datasets, models and transforms.

    Where the compiled operators are missing, they are declared by name only: ``torchvision.ops.nms`` and
    ``torchvision.io`` stay unusable. Raises ImportError if torchvision is not installed.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if MISSING not in str(error):
            raise
    for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
        del sys.modules[name]  # half-imported parts of the failed attempt
    _declare_operators()
    return importlib.import_module("torchvision")


@cache  # keeps the library alive: its operators vanish with it
def _declare_operators() -> torch.library.Library:
    """A FRAGMENT, because only one DEF of a namespace may exist in a process."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library
