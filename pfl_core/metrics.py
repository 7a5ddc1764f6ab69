"""Scores of each client beside its accuracy, computed by torchmetrics: macro F1, AUC and calibration error.

They are off by default. ``RunSpec.metrics`` names those of a run. They are scored once, after the last round, on the
client's test samples, with the model of the metric ``correct`` (after aggregation).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

from pfl_core.vision import torchvision

BINS = 15  # of the calibration error, as in Guo et al. 2017


def check_installed() -> None:
    """Raise ValueError if torchmetrics is not installed."""
    if find_spec("torchmetrics") is None:
        raise ValueError("metrics need torchmetrics, which is not installed; pip install torchmetrics")


def score(names: Sequence[str], outputs: Sequence[tuple[Tensor, Tensor]]) -> dict[str, list[float]]:
    """Name -> one value per client. ``outputs``: each client's class scores [n, C] before the softmax, and labels [n].

    NaN where a value is not defined: without samples, and AUC of a client whose samples are all of one class.
    """
    return {
        name: [FUNCTIONS[name](scores.softmax(1), y) if len(y) else math.nan for scores, y in outputs] for name in names
    }


def f1(probabilities: Tensor, y: Tensor) -> float:
    """Macro F1: the mean F1 of the classes that occur among the client's labels or predictions."""
    num_classes = probabilities.shape[1]
    return float(_library().multiclass_f1_score(probabilities, y, num_classes=num_classes, average="macro"))


def auc(probabilities: Tensor, y: Tensor) -> float:
    """Area under the ROC curve, one class against the rest: the mean over the classes of the client's labels."""
    classes = y.unique().tolist()
    if len(classes) < 2:
        return math.nan
    areas = [_library().binary_auroc(probabilities[:, c], (y == c).to(torch.int64)) for c in classes]
    return float(torch.stack(areas).mean())


def ece(probabilities: Tensor, y: Tensor) -> float:
    """Expected calibration error (Guo et al. 2017, Eq. 3): mean |accuracy - confidence| over 15 bins, by samples."""
    num_classes = probabilities.shape[1]
    return float(_library().multiclass_calibration_error(probabilities, y, num_classes=num_classes, n_bins=BINS))


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], float]] = {"f1": f1, "auc": auc, "ece": ece}


def _library() -> ModuleType:
    torchvision()  # torchmetrics imports it, which would fail with some CPU builds
    from torchmetrics.functional import classification

    return classification
