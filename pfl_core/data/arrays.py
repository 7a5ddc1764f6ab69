"""Turns a user's arrays into the tensors of a ``Dataset``; see ``Dataset.from_arrays``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_core.seeding import generator

CHANNELS = (1, 3, 4)  # an axis of another size is not taken for the channels
LAYOUTS = ("chw", "hwc")


def samples(x: Any, what: str, layout: str | None) -> Tensor:
    """Images as uint8 [n, c, h, w], feature vectors as float32 [n, f]. ``what``: "x" or "test x", for errors.

    Raises ValueError for other shapes, other types, NaN, and images whose values are not bytes or fractions.
    """
    if layout not in (None, *LAYOUTS):
        raise ValueError(f"layout={layout!r} is unknown; give 'chw' or 'hwc'")
    values = _array(x, what)
    if values.ndim not in (2, 3, 4) or not values.size:
        raise ValueError(
            f"{what} has the shape {list(values.shape)}; give images [n, H, W], [n, C, H, W] or [n, H, W, C], or "
            "features [n, f], at least one sample"
        )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        at = int(np.argwhere(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))[0, 0])
        raise ValueError(f"{what} has NaN or infinite values, first in sample {at}; replace or remove them")
    if values.ndim == 2:
        if values.dtype.kind not in "fiub":
            raise ValueError(f"{what} is {values.dtype}; give numbers")
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
    return _channels_first(torch.from_numpy(np.ascontiguousarray(_bytes(values, what))), what, layout)


def labels(y: Any, n: int, what: str) -> Tensor:
    """Labels [n] or [n, 1] as int64 [n]. Raises ValueError for a missing, negative or non-integer label."""
    if y is None:
        raise ValueError(f"{what} is missing; give a label 0, 1, ... for each of the {n} samples")
    values = _array(y, what)
    if values.shape not in ((n,), (n, 1)):
        raise ValueError(f"{what} has the shape {list(values.shape)}; give [{n}], one label for each sample")
    if values.dtype.kind not in "iub":
        raise ValueError(f"{what} is {values.dtype}; give integers 0, 1, ...")
    values = values.reshape(-1).astype(np.int64)
    if (negative := values < 0).any():
        raise ValueError(f"{what} has {negative.sum()} labels below 0, first {values[negative][0]}; give 0, 1, ...")
    if values.max() >= n:
        raise ValueError(f"{what} has the label {values.max()}, with {n} samples; number the classes 0, 1, ...")
    return torch.from_numpy(values)


def sources(source: Any, n: int) -> Tensor:
    """Source numbers [n] int64 of ids [n], in the sorted order of the ids; zeros for None."""
    if source is None:
        return torch.zeros(n, dtype=torch.int64)
    ids = _array(source, "source")
    if ids.shape != (n,) or ids.dtype.kind not in "biuU":
        raise ValueError(
            f"source is {ids.dtype} {list(ids.shape)}; give [{n}] integers or text, one id for each sample, training "
            "samples first"
        )
    return torch.from_numpy(np.unique(ids, return_inverse=True)[1].astype(np.int64))


def hold_out(y: Tensor, share: float, *key: int | str) -> Tensor:
    """bool [n]: a fraction of the samples of each class, rounded to whole samples. ``key``: of the random draw."""
    held = torch.zeros(len(y), dtype=torch.bool)
    for c in y.unique().tolist():
        members = torch.nonzero(y == c)[:, 0]
        order = torch.randperm(len(members), generator=generator(*key, "test", c))  # type: ignore[arg-type]
        held[members[order[: round(share * len(members))]]] = True
    return held


def _array(values: Any, what: str) -> np.ndarray:
    """A tensor, an array, or a sequence of numbers, arrays or PIL images, as one array."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    try:
        if isinstance(values, Sequence) and len(values) and not np.isscalar(values[0]):
            values = np.stack([np.asarray(each) for each in values])
        array = np.asarray(values)
    except (TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{what} is not one array ({reason}); all samples must have the same shape") from None
    if array.dtype.kind == "O":
        raise ValueError(f"{what} is not an array of numbers; give a NumPy array, a tensor or a list")
    return array


def _bytes(values: np.ndarray, what: str) -> np.ndarray:
    """Images as uint8: bytes as they are; floats in [0, 1] times 255, rounded."""
    if values.dtype == np.uint8:
        return values
    low, high = values.min(), values.max()
    if values.dtype.kind == "f" and 0 <= low and high <= 1:
        return np.rint(values * 255.0).astype(np.uint8)
    if values.dtype.kind in "iu" and 0 <= low and high <= 255:
        return values.astype(np.uint8)
    raise ValueError(
        f"{what} holds images of {values.dtype} from {low} to {high}; give bytes 0..255, or floats in [0, 1]"
    )


def _channels_first(x: Tensor, what: str, layout: str | None) -> Tensor:
    """uint8 [n, h, w], [n, c, h, w] or [n, h, w, c] -> [n, c, h, w]; the axis of the channels has 1, 3 or 4 entries."""
    if x.ndim == 3:
        return x[:, None]
    possible = [name for name, size in zip(LAYOUTS, (x.shape[1], x.shape[3]), strict=True) if size in CHANNELS]
    if layout is None and len(possible) != 1:
        which = "both the second and the last axis" if possible else "neither the second nor the last axis"
        raise ValueError(
            f"{what} has the shape {list(x.shape)}: {which} can be the channels (1, 3 or 4); give layout='chw' for "
            "[n, C, H, W] or layout='hwc' for [n, H, W, C]"
        )
    return x.permute(0, 3, 1, 2).contiguous() if (layout or possible[0]) == "hwc" else x
