"""A few numbers for each tensor of a result, and where two results differ."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

FLOOR = 1e-12  # what counts as zero
DOUBLE, SINGLE = 1e-9, 1e-6  # of the largest of an entry's numbers; train_loss is kept in single precision
FEW = 12  # so many integers are written out

Numbers = dict[str, Any]  # entry -> list of numbers, or text


def digest(value: object, at: str = "") -> Numbers:
    """Every tensor inside ``value``; an entry's name tells where it is, its type and its shape."""
    found = {}
    for name, x in _leaves(value, at):
        if isinstance(x, Tensor):
            shape = "x".join(map(str, x.shape)) or "scalar"
            found[f"{name} {str(x.dtype).removeprefix('torch.')} {shape}"] = _numbers(x.detach())
        elif x is not None:
            found[name] = x
    return found


def _leaves(value: object, at: str) -> Iterator[tuple[str, object]]:
    """(address, tensor or plain value); rows of one shape, or records of one kind, side by side."""
    if isinstance(value, list | tuple) and value:
        if all(isinstance(x, Tensor) and x.shape == value[0].shape for x in value):
            yield at, torch.stack(tuple(value))
        elif dataclasses.is_dataclass(value[0]):
            for f in dataclasses.fields(value[0]):
                yield from _leaves([getattr(x, f.name) for x in value], f"{at}.{f.name}")
        else:
            for i, x in enumerate(value):
                yield from _leaves(x, f"{at}[{i}]")
    elif dataclasses.is_dataclass(value):
        for f in dataclasses.fields(value):
            yield from _leaves(getattr(value, f.name), f"{at}.{f.name}")
    elif isinstance(value, Mapping):
        for name, x in value.items():
            yield from _leaves(x, f"{at}.{name}" if at else name)
    else:
        yield at, value


def _numbers(x: Tensor) -> list[float | int]:
    """Floats: norm, and product with a fixed vector (and how many are no number, if any).

    Masks: True entries of each row, then the sum of their places. Integers: all, or their sum and that by place.
    """
    flat = x.reshape(-1)
    place = torch.arange(1, len(flat) + 1)
    if x.dtype == torch.bool:
        rows = x.flatten(1).sum(1) if x.dim() > 1 else x.sum(0, keepdim=True)
        return [*rows.tolist(), int(place[flat].sum())]
    if not x.is_floating_point():
        flat = flat.long()
        return flat.tolist() if len(flat) <= FEW else [int(flat.sum()), int((flat * place).sum())]
    missing, flat = int(flat.isnan().sum()), flat.double().nan_to_num()
    return [float(flat.norm()), float(flat @ _vector(len(flat)))] + [missing] * (missing > 0)


def _vector(n: int) -> Tensor:
    """[n] fixed numbers in [-1, 1): a swap of two entries changes the product."""
    return 2 * torch.rand(n, generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 1  # exact everywhere


def checksum(*parts: bytes) -> str:
    """12 hex digits of content that must not change by one bit."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)
    return found.hexdigest()[:12]


def differences(old: Numbers, new: Numbers, single: bool = False) -> list[str]:
    """One line for each entry in which the two differ by more than rounding; ``single``: in single precision."""
    both = [name for name in old if name in new and _differ(name, old[name], new[name], single)]
    return [
        *(f"{name}: gone" for name in old if name not in new),
        *(f"{name}: new" for name in new if name not in old),
        *(f"{name}: was {old[name]}, is {new[name]}" for name in both),
    ]


def _differ(name: str, old: Any, new: Any, single: bool) -> bool:
    if isinstance(old, str) or isinstance(new, str):
        return _bytes_differ(old, new) if name.endswith("bytes") else old != new
    if len(old) != len(new):
        return True
    single = single or "float32" in name or name.startswith("train_loss")
    bound = max(FLOOR, (SINGLE if single else DOUBLE) * max(map(abs, old), default=0))
    return any(
        a != b if isinstance(a, int) and isinstance(b, int) else not abs(a - b) <= bound
        for a, b in zip(old, new, strict=True)
    )


def _bytes_differ(old: str, new: str) -> bool:
    """Hex digits of rounded bytes: one in a thousand may be off by one, for processors round floats differently."""
    if len(old) != len(new):
        return True
    off = [abs(a - b) for a, b in zip(bytes.fromhex(old), bytes.fromhex(new), strict=True)]
    return max(off) > 1 or sum(off) > max(1, len(off) // 1000)
