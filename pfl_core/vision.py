"""Imports torchvision; works around CPU builds without compiled operators.

With a CPU build of torch, torchvision may lack its compiled operators. Its import then fails with the error
``operator torchvision::nms does not exist``, although data sets, models and transforms do not need them. Declaring the
two detection operators by name, without an implementation, makes the import succeed.
"""

import importlib
import sys
from functools import cache
from types import ModuleType

import torch

MISSING = "torchvision::nms"  # named in the error of the failed import


def torchvision() -> ModuleType:
    """The imported torchvision, with its submodules datasets, models and transforms.

    Missing compiled operators are declared by name only: ``torchvision.ops.nms`` and ``torchvision.io`` cannot be used.
    Raises ImportError if torchvision is not installed.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if MISSING not in str(error):
            raise
    for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
        del sys.modules[name]  # modules left by the failed import
    _declare_operators()
    return importlib.import_module("torchvision")


@cache  # keeps the library object alive: its operators are removed with it
def _declare_operators() -> torch.library.Library:
    """Declare them as a FRAGMENT, because a process may hold only one DEF of a namespace."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library
