"""Turns a user's arrays into the tensors of a ``Dataset``; see ``Dataset.from_arrays``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_core.seeding import Key, shuffled

CHANNELS = (1, 3, 4)  # an axis of another size is not taken for the channels
LAYOUTS = ("chw", "hwc")
BRIGHT = 128  # whole numbers below it are not bytes: 0..16 of scikit-learn's digits, 0/1 of black and white images


def samples(parts: Sequence[tuple[str, Any]], layout: str | None) -> tuple[Tensor, str]:
    """All parts as one tensor, images uint8 [n, c, h, w] or features float32 [n, f], and how pixels were read.

    ``parts``: (name for errors, samples) of each part.
    Raises ValueError for other shapes, other types, NaN, and images whose values are not bytes or fractions.
    """
    if layout not in (None, *LAYOUTS):
        raise ValueError(f"layout={layout!r} is unknown; give 'chw' or 'hwc'")
    arrays = [_checked(x, what) for what, x in parts]
    what, first = parts[0][0], arrays[0].shape[1:]
    for (other, _), values in zip(parts, arrays, strict=True):
        if values.shape[1:] != first:
            raise ValueError(f"a sample of {what} is {list(first)}, of {other} {list(values.shape[1:])}")
    values = np.concatenate(arrays)
    if values.ndim == 2:
        if np.abs(values, dtype=np.float64).max() > np.finfo(np.float32).max:
            raise ValueError(f"{what} has features beyond 3.4e38, the largest number of float32; scale them")
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)), ""
    images, note = _bytes(values, what)
    return _channels_first(torch.from_numpy(np.ascontiguousarray(images)), what, layout), note


def _checked(x: Any, what: str) -> np.ndarray:
    values = _array(x, what)
    if values.ndim == 5:
        raise ValueError(f"{what} has volumes, {list(values.shape)}; only images and features can be used, e.g. slices")
    if values.ndim not in (2, 3, 4) or not values.size:
        raise ValueError(
            f"{what} has the shape {list(values.shape)}; give images [n, H, W], [n, C, H, W] or [n, H, W, C], or "
            "features [n, f], at least one sample"
        )
    if values.dtype.kind not in "fiub":
        raise ValueError(f"{what} is {values.dtype}; give numbers")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        at = int(np.argwhere(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))[0, 0])
        raise ValueError(f"{what} has NaN or infinite values, first in sample {at}; replace or remove them")
    return values


def labels(parts: Sequence[tuple[str, Any, int]]) -> tuple[Tensor, tuple[str, ...], str]:
    """Labels of all parts, numbered from 0 [n] int64, the names of the classes, and how labels were numbered.

    ``parts``: (name for errors, labels [n] or [n, 1], n) of each part. Names, and integers other than 0, 1, ... without
    gaps, are numbered in sorted order. Raises ValueError for missing, several, negative and fractional labels.
    """
    arrays = [_checked_labels(y, n, what) for what, y, n in parts]
    if len({values.dtype.kind == "U" for values in arrays}) > 1:
        raise ValueError("some labels are numbers and some are text; give one kind for all parts")
    classes, y = np.unique(np.concatenate(arrays), return_inverse=True)
    names = tuple(map(str, classes.tolist()))
    plain = names == tuple(map(str, range(len(names))))
    note = "" if plain else f"labels {names[0]} to {names[-1]} were numbered 0 to {len(names) - 1}"
    return torch.from_numpy(y.astype(np.int64)), names, note


def _checked_labels(y: Any, n: int, what: str) -> np.ndarray:
    if y is None:
        raise ValueError(f"{what} is missing; give a label for each of the {n} samples")
    values = _array(y, what)
    if values.ndim == 2 and values.shape[1] > 1:
        raise ValueError(f"{what} has {values.shape[1]} labels for each sample; the methods need one class per sample")
    if values.shape not in ((n,), (n, 1)):
        raise ValueError(f"{what} has the shape {list(values.shape)}; give [{n}], one label for each sample")
    if values.dtype.kind not in "iubU":
        raise ValueError(f"{what} is {values.dtype}; give integers 0, 1, ... or names")
    if values.dtype.kind == "i" and (negative := values < 0).any():
        raise ValueError(f"{what} has {negative.sum()} labels below 0, first {values[negative][0]}; give 0, 1, ...")
    values = values.reshape(-1)
    return values if values.dtype.kind == "U" else values.astype(np.int64)


def standard(x: Tensor, is_test: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each column of x [n, f] over the samples that are not test samples.

    The deviation is 1 for a column whose values are all equal. Without such samples, all are used.
    """
    columns = (x if bool(is_test.all()) else x[~is_test]).numpy().astype(np.float64)
    std = np.where(np.ptp(columns, axis=0) > 0, columns.std(axis=0), 1.0)
    return tuple(columns.mean(axis=0).tolist()), tuple(std.tolist())


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


def hold_out(groups: Tensor, count: Callable[[int], int], seed: int, *key: Key) -> Tensor:
    """bool [n]: ``count(m)`` random ones of the m samples of each group.

    ``groups`` [n, g]: the samples with equal rows are a group, e.g. those of one source and class.
    """
    held = torch.zeros(len(groups), dtype=torch.bool)
    for group in groups.unique(dim=0):
        members = torch.nonzero((groups == group).all(1))[:, 0]
        held[shuffled(members, seed, *key, "test", *group.tolist())[: count(len(members))]] = True
    return held


def _array(values: Any, what: str) -> np.ndarray:
    """A tensor, an array, or a sequence of numbers, arrays or PIL images, as one array."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    try:
        if isinstance(values, Sequence) and len(values) and not np.isscalar(values[0]):
            values = np.stack([np.asarray(each) for each in values])
        array = np.asarray(values)
        if array.dtype.kind in "ST" or (array.dtype.kind == "O" and all(isinstance(each, str) for each in array.flat)):
            array = array.astype(str)
    except (TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{what} is not one array ({reason}); all samples must have the same shape") from None
    if array.dtype.kind == "O":
        raise ValueError(f"{what} is not an array of numbers or names; give a NumPy array, a tensor or a list")
    return array


def _bytes(values: np.ndarray, what: str) -> tuple[np.ndarray, str]:
    """Images as uint8, and how their values were read: their range decides, not their type."""
    low, high = values.min(), values.max()
    if 0 <= low and high <= 1:
        note = "" if values.dtype.kind == "f" else "pixels 0 and 1 were scaled to 0 and 255"
        return np.rint(values * 255.0).astype(np.uint8), note
    whole = values.dtype.kind != "f" or not (values % 1).any()
    if not whole or low < 0 or high > 255:
        raise ValueError(
            f"{what} holds images of {values.dtype} from {low} to {high}; give bytes 0..255, or floats in [0, 1]"
        )
    if high >= BRIGHT:
        return values.astype(np.uint8), ""
    return np.rint(values * (255.0 / high)).astype(np.uint8), f"pixels up to {int(high)} were scaled to 0..255"


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
