"""Numbers of a record as short JSON: large arrays compressed, rounds as ranges, constant series stored once."""

from __future__ import annotations

import base64
import math
import zlib
from typing import Any

import numpy as np

COARSE = 8  # bits of a float32's 24 that a compressed number loses: it keeps almost five digits
PACKED = 500  # an array of more numbers is stored as compressed text: a third of the size, or less


def packed(array: Any) -> Any:
    """A rectangular array of more than PACKED numbers as {"dtype", "shape", "data"}; anything else as it is.

    ``data`` is base64 text of zlib's compression. If numbers are missing (NaN), it has only the others, and ``present``
    has a bit for each number. Numbers are int32 or float32, with COARSE fewer bits if they are not whole. The last axis
    of ``shape`` comes first and bytes of equal place stand together: neighbours in time compress well.
    """
    try:
        values = np.asarray(array)
        exact = values if values.dtype.kind == "i" else np.asarray(array, dtype=np.float64)  # None becomes NaN
    except (TypeError, ValueError):  # not rectangular, or no numbers
        return array
    if exact.size <= PACKED:
        return array
    with np.errstate(over="ignore"):
        values = exact.astype(np.int32 if exact.dtype.kind == "i" else np.float32)
    whole = exact == np.round(exact)
    if (values[whole] != exact[whole]).any():  # counts are never rounded
        return array
    if values.dtype.kind == "f":
        values = np.where(whole, values, _coarse(values))
    content = {"dtype": values.dtype.name, "shape": list(values.shape)}
    kept, present = values.T, ~np.isnan(exact.T)
    if not present.all():
        kept, content["present"] = kept[present], _as_text(np.packbits(present))
    places = np.ascontiguousarray(kept).view(np.uint8).reshape(-1, values.itemsize).T
    return {**content, "data": _as_text(places)}


def unpacked(array: Any) -> Any:
    """The array that ``packed`` made text of, as int64 or float64; anything else as it is."""
    if not (isinstance(array, dict) and array.keys() - {"present"} == {"dtype", "shape", "data"}):
        return array
    dtype, shape = np.dtype(array["dtype"]), array["shape"][::-1]
    values = np.ascontiguousarray(_as_bytes(array["data"]).reshape(dtype.itemsize, -1).T).view(dtype).ravel()
    if "present" in array:
        present = np.unpackbits(_as_bytes(array["present"]), count=math.prod(shape)).astype(bool)
        kept, values = values, np.full(len(present), np.nan, dtype)
        values[present] = kept
    return values.reshape(shape).T.astype(np.int64 if dtype.kind == "i" else np.float64)


def _coarse(values: np.ndarray) -> np.ndarray:
    """float32 values rounded so that their last COARSE bits are 0. Infinite values and NaN stay."""
    bits = (values.view(np.uint32) + np.uint32(1 << (COARSE - 1))) >> COARSE << COARSE
    rounded = bits.view(np.float32)
    return np.where(np.isfinite(values) & np.isfinite(rounded), rounded, values)


def _as_text(data: np.ndarray) -> str:
    """Base64 text of the compressed bytes."""
    return base64.b64encode(zlib.compress(data.tobytes(), 9)).decode()


def _as_bytes(text: str) -> np.ndarray:
    """The bytes [n] uint8 that ``_as_text`` made text of."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)


def ranged(rounds: list[int]) -> Any:
    """More than three equally spaced rounds as {"first", "last", "step"}; other rounds as they are."""
    step = rounds[1] - rounds[0] if len(rounds) > 3 else 0
    if step <= 0 or rounds != list(range(rounds[0], rounds[-1] + 1, step)):
        return rounds
    return {"first": rounds[0], "last": rounds[-1], "step": step}


def listed(rounds: Any) -> list[int]:
    """The list of rounds that ``ranged`` made a range of."""
    return list(range(rounds["first"], rounds["last"] + 1, rounds["step"])) if isinstance(rounds, dict) else rounds


def shortened(values: list) -> Any:
    """The values of a series as they are stored: one if all are equal, ``packed`` if they are many numbers."""
    if len(values) > 1 and all(value == values[0] for value in values):
        return values[:1]
    return packed(values)


def in_full(values: Any, rounds: list[int]) -> list:
    """The values of a series, one for each of its rounds, from what ``shortened`` made of them.

    Raises ValueError or TypeError for anything else than numbers, or lists of equal length.
    """
    found = unpacked(values)
    if isinstance(found, np.ndarray):
        missing = np.isnan(found)  # an absent client, or no number
        if missing.any():
            found = found.astype(object)
            found[missing] = None
        return found.tolist()
    np.array(found, dtype=np.float64)  # raises
    return found * len(rounds) if len(found) == 1 else found
