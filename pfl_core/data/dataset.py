"""A data set in memory, with images as bytes, and its entry in the catalogue."""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pfl_core.data import arrays
from pfl_core.data.registry import COMBINED, REFUSED, SINGLE, data_dir, is_name
from pfl_core.files import atomic_write

# name -> (mean, std) per channel of v = byte / 255. "unit" gives 0..1, "half" -1..1, "raw" 0..255.
NORMALISE: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "unit": ((0.0,), (1.0,)),
    "half": ((0.5,), (0.5,)),
    "raw": ((0.0,), (1 / 255,)),
    "mnist": ((0.1307,), (0.3081,)),  # in pFedGate's code also for EMNIST and FEMNIST
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),  # in pFedGate's code also for CIFAR-100
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # in FedSelect's code also for CIFAR
}
LUMINANCE = (0.299, 0.587, 0.114)  # weights of red, green, blue (ITU-R BT.601, as Pillow's mode "L")
PLAIN = ((0.0,), (1.0,))  # mean and std that change nothing
CHUNK = 4096  # images resized at a time
UNOFFICIAL = "not the official file"  # in ``note`` of a file with the name of a published set but other images


@dataclass(frozen=True, eq=False)
class Dataset:
    """All samples of a data set. Official test images are marked, so that no partition trains on them by accident.

    Raises ValueError if the fields do not fit together.
    """

    name: str
    x: Tensor  # [n, c, h, w] uint8 images (0..255), or [n, f] float features
    y: Tensor  # [n] int64, 0..num_classes-1
    source: Tensor  # [n] int64: source set, domain or writer; all zeros for a plain set
    is_test: Tensor  # [n] bool: official test part
    num_classes: int
    class_names: tuple[str, ...]
    about: str = ""  # note of the file or the reader, see ``note``
    mean: tuple[float, ...] = (0.0,)  # one value, or one per channel or column; of images after division by 255
    std: tuple[float, ...] = (1.0,)
    differs: str = ""  # how the images differ from the published set of this name; "" if they do not

    def __post_init__(self) -> None:
        problem = _problem(self)
        if problem:
            raise ValueError(f"data set {self.name!r}: {problem}")

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        *,
        test: tuple[Any, Any] | None = None,
        test_share: float = 0.0,
        layout: Literal["chw", "hwc"] | None = None,
        source: Any = None,
        name: str = "arrays",
        about: str = "",
    ) -> Self:
        """A data set from arrays: NumPy, torch, or sequences, also of PIL images.

        ``x``: grey images [n, H, W], images [n, C, H, W] or [n, H, W, C], or feature vectors [n, f]. Images are bytes
        0..255, or floats in [0, 1], which are rounded to bytes; whole numbers below 128 are scaled to 0..255. Features
        are standardised by the training samples, unless they are loaded with ``normalise="raw"``. ``y``: labels [n],
        integers or text; unless they are 0, 1, ... they are numbered in sorted order. ``about`` says what was changed.

        - ``test``: test samples and their labels, in the same form. Or ``test_share``: the fraction of each class that
          is held out as test samples (always the same ones). Without both, only partitions with ``pool="joined"`` work.
        - ``layout``: "chw" for [n, C, H, W], "hwc" for [n, H, W, C]. Needed only if the shape leaves both open.
        - ``source``: writer, site or domain of each sample, integers or text, for the partition ``by_source``.
        - ``about``: a note that is shown beside every result.

        Samples keep their order; those of ``test`` come last. Raises ValueError in one line for NaN, wrong shapes or
        types, volumes, and missing or several labels.
        """
        if test is not None and test_share:
            raise ValueError(f"test_share={test_share} holds out samples, but test samples are given; leave out one")
        if not 0 <= test_share < 1:
            raise ValueError(f"test_share={test_share} is outside [0, 1); give the fraction to hold out, e.g. 0.2")
        parts = [("x", x), *([("test x", test[0])] if test is not None else [])]
        samples, read = arrays.samples(parts, layout)
        n = len(samples) if test is None else len(samples) - len(test[0])
        held = [] if test is None else [("test y", test[1], len(samples) - n)]
        numbers, class_names, numbered = arrays.labels([("y", y, n), *held])
        is_test = torch.arange(len(numbers)) >= n
        if test_share:
            is_test = arrays.hold_out(numbers[:, None], lambda n: round(test_share * n), 0, "arrays")
        mean, std = PLAIN if samples.ndim == 4 else arrays.standard(samples, is_test)
        return cls(
            name=name,
            x=samples,
            y=numbers,
            source=arrays.sources(source, len(numbers)),
            is_test=is_test,
            num_classes=len(class_names),
            class_names=class_names,
            about="; ".join(note for note in (about, read, numbered) if note),
            mean=mean,
            std=std,
        )

    def save(self, file: str, folder: str | Path | None = None) -> Path:
        """Write the data set to the data folder as ``file``, e.g. "mine.npz"; returns the path.

        ``load("mine")`` and ``pfl run METHOD --data mine`` then read it. The file has samples, labels, sources,
        names of classes, mean, std and ``about``; training samples come before test samples. Equal data give equal
        bytes. ``folder``: default PFL_DATA_DIR, else data/.

        Raises ValueError for a name that cannot be loaded or that is a known data set, and for samples that the layout
        does not have: no training samples, or numbers in other shapes than [n, f]. OSError if the file cannot be
        written.
        """
        stem = file.removesuffix(".npz")
        if not is_name(stem):
            raise ValueError(
                f"{file!r} is not a file name for a data set; use letters, digits, - and _, e.g. 'mine.npz'"
            )
        if stem in (*SINGLE, *COMBINED, *REFUSED):
            raise ValueError(f"{stem!r} is a known data set; choose another name for your own")
        if self.is_test.all() or not (self.has_images or self.x.ndim == 2):
            raise ValueError(
                f"{file}: a file has training samples, as bytes (images) or as numbers [n, f]; these are "
                f"{self.x.dtype} {list(self.x.shape)}, {int(self.is_test.sum())} of them for testing"
            )
        path = data_dir(folder) / f"{stem}.npz"
        x = self.x.permute(0, 2, 3, 1) if self.has_images else self.x.to(torch.float32)  # [n, h, w, c] or [n, f]
        members: dict[str, Any] = {}
        if self.class_names != tuple(map(str, range(int(self.y.max()) + 1))):  # what a file without names is read as
            members["class_names"] = np.array(self.class_names)
        if (self.mean, self.std) != PLAIN:
            members |= {"mean": np.array(self.mean), "std": np.array(self.std)}
        for part, chosen in (("train", ~self.is_test), ("test", self.is_test)):
            if chosen.any():
                for kind, values in (("images", x), ("labels", self.y), ("source", self.source)):
                    members[f"{part}_{kind}"] = values[chosen].numpy()
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **members, about=np.array(self.about))
        atomic_write(path, buffer.getvalue())
        return path

    @property
    def note(self) -> str:
        """The note to show beside every result: ``about``, marked if the images are not those of the published set."""
        if not self.differs or UNOFFICIAL in self.about:
            return self.about
        return f"{self.name}, {UNOFFICIAL}: {self.differs}" + (f"; {self.about}" if self.about else "")

    @property
    def has_images(self) -> bool:
        """True for images [n, c, h, w] uint8, False for features."""
        return self.x.dtype == torch.uint8

    def prepare(self, x: Tensor) -> Tensor:
        """The network's input for selected samples: uint8 [m, c, h, w] -> float32 (v / 255 − mean) / std.

        Features [m, f] -> (x − mean) / std. Only selected samples are converted, so that the data set stays at one byte
        per pixel.
        """
        if x.dtype != torch.uint8 and (x.ndim != 2 or (self.mean, self.std) == PLAIN):
            return x
        return standardised(x, self.mean, self.std)


def standardised(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Images x [m, c, h, w] uint8 as float32 (v / 255 − mean) / std; mean and std: one value, or one per channel.

    Features x [m, f]: (x − mean) / std, with one value, or one per column.
    """
    if x.ndim == 2:
        shift, scale = (torch.tensor(v, dtype=torch.float64, device=x.device) for v in (mean, std))
        return ((x.to(torch.float64) - shift) / scale).to(x.dtype)
    # (v / 255 - mean) / std = (v - 255 mean) / (255 std)
    shift, scale = (255 * torch.tensor(v, dtype=torch.float64) for v in (mean, std))
    shift, scale = (v.to(x.device, torch.float32)[:, None, None] for v in (shift, scale))
    return x.to(torch.float32).sub_(shift).div_(scale)


@dataclass(frozen=True)
class Published:
    """Numbers that identify the images of a published set, whatever their order. Empty ones are not compared.

    The checksums of whole files do not serve this purpose: they differ between formats and releases.
    """

    counts: tuple[tuple[int, int], ...] = ()  # (images outside the test part, images in it), one pair per release
    total: int = 0  # images, for sets without an official test part
    shape: tuple[int, ...] = ()  # of an image: [c, h, w]
    per_class: tuple[tuple[int, ...], ...] = ()  # images of each class outside the test part, and in it
    pixels: tuple[int, ...] = ()  # sum of all bytes of the images outside the test part, and in it

    def difference(self, data: Dataset) -> str:
        """How ``data`` differs from the published images; "" if it does not.

        A set with a note of its own (``about``) may have other pixels, for example after JPEG compression.
        """
        parts = [~data.is_test, data.is_test]
        shape, count = tuple(data.x.shape[1:]), tuple(int(part.sum()) for part in parts)
        if (self.counts and count not in self.counts) or (self.total and sum(count) != self.total):
            return f"{sum(count):,} images"
        if self.shape and shape != self.shape:
            return f"images of {'x'.join(map(str, shape))}"
        if self.per_class and any(
            tuple(data.y[part].bincount(minlength=data.num_classes).tolist()) != expected
            for part, expected in zip(parts, self.per_class, strict=True)
        ):
            return "other numbers of images per class"
        if self.pixels and not data.about:
            sums = tuple(int(data.x[part].sum(dtype=torch.int64)) for part in parts)
            return "" if sums == self.pixels else "other pixels"
        return ""


@dataclass(frozen=True)
class DatasetEntry:
    """How a data set is read and downloaded. A file `<name>.npz` in the data folder is read instead of `read`."""

    where: str  # publisher
    licence: str
    size: str  # text for listings
    read: Callable[[Path], Dataset]  # data folder -> data set: reads the publisher's files, or generates the set
    files: tuple[str, ...] = ()  # patterns below the data folder that must all match; () for generated sets
    download: Callable[[Path], None] | None = None  # data folder -> downloads the files; None: provided by the user
    finish: Callable[..., Dataset] = lambda data: data  # (data set, **options) -> data set: applies options of the set
    class_names: tuple[str, ...] = ()  # for files that have labels only
    md5: str = ""  # of the official <name>.npz
    published: Published = Published()
    checked_by_reader: bool = False  # whether `read` compares its files with official checksums


def _problem(data: Dataset) -> str:
    """Why the fields do not fit together; '' if they do."""
    for field in ("x", "y", "source", "is_test"):
        if not isinstance(getattr(data, field), Tensor):
            return f"{field} is a {type(getattr(data, field)).__name__}; give a torch.Tensor"
    x = data.x
    if (x.ndim != 4) if x.dtype == torch.uint8 else (x.ndim < 2 or not x.is_floating_point()):
        return f"x is {x.dtype} {list(x.shape)}; give uint8 [n, c, h, w] images or float [n, f] features"
    for field, dtype in (("y", torch.int64), ("source", torch.int64), ("is_test", torch.bool)):
        value = getattr(data, field)
        if value.dtype != dtype or value.shape != (len(x),):
            return f"{field} is {value.dtype} {list(value.shape)}; give {dtype} [{len(x)}], one entry per sample"
    if not x.numel():
        return f"x is {list(x.shape)}; give at least one sample with at least one value"
    if not data.has_images and not bool(x.isfinite().all()):
        return "x has NaN or infinite features; replace or remove them"
    if int(data.source.min()) < 0:
        return f"source has {data.source.min()}; number the sources 0, 1, ..."
    for values in (data.mean, data.std):
        if len(values) not in (1, x.shape[1]) or not all(map(math.isfinite, values)):
            what = "channels" if data.has_images else "columns"
            return f"mean={data.mean}, std={data.std}; give one finite number, or one for each of {x.shape[1]} {what}"
    if min(data.std) <= 0:
        return f"std={data.std}; give numbers above 0, because samples are divided by them"
    if not 0 <= int(data.y.min()) <= int(data.y.max()) < data.num_classes:
        return f"labels run from {data.y.min()} to {data.y.max()}; with num_classes={data.num_classes} give 0..n-1"
    if len(data.class_names) != data.num_classes:
        return f"{len(data.class_names)} class_names for num_classes={data.num_classes}; give one name per class"
    return ""


def subset(data: Dataset, index: Tensor) -> Dataset:
    """The samples at `index` [m] in that order. Sources are renumbered 0, 1, ...; classes are not."""
    source = data.source[index].unique(return_inverse=True)[1]
    return replace(data, x=data.x[index], y=data.y[index], source=source, is_test=data.is_test[index])


def resized(x: Tensor, size: int) -> Tensor:
    """uint8 [n, c, h, w] -> uint8 [n, c, size, size], bilinear (antialiased when shrinking), rounded to nearest."""
    if x.shape[-2:] == (size, size):
        return x
    out = x.new_empty(*x.shape[:2], size, size)
    for start in range(0, len(x), CHUNK):
        part = x[start : start + CHUNK].to(torch.float32)
        part = functional.interpolate(part, size=(size, size), mode="bilinear", align_corners=False, antialias=True)
        out[start : start + CHUNK] = part.round_().clamp_(0, 255).to(torch.uint8)
    return out


def with_channels(x: Tensor, channels: int) -> Tensor:
    """uint8 [n, c, h, w] with 1 or 3 channels. Grey is repeated (as a view), colour is converted to its luminance."""
    if x.shape[1] == channels:
        return x
    if (x.shape[1], channels) == (1, 3):
        return x.expand(-1, 3, -1, -1)
    if (x.shape[1], channels) == (3, 1):
        grey = cast(Tensor, sum(weight * x[:, c].to(torch.float32) for c, weight in enumerate(LUMINANCE)))
        return grey.round_().to(torch.uint8)[:, None]
    raise ValueError(f"channels={channels}: images with {x.shape[1]} channels can be converted to 1 or 3 channels only")


def finished(data: Dataset, normalise: str, resize: int | None, channels: int | None) -> Dataset:
    """`data` with the requested size, channels and scaling; "unit" keeps the mean and std of `data`."""
    if normalise not in (*NORMALISE, "standard"):
        raise ValueError(f"normalise={normalise!r} is unknown; choose one of {', '.join(NORMALISE)}, standard")
    if not data.has_images:
        if resize is not None or channels is not None or normalise not in ("unit", "raw", "standard"):
            raise ValueError(
                f"data set {data.name!r} holds features, not images; leave out resize and channels, and choose "
                "normalise unit, standard or raw"
            )
        if normalise == "unit" or data.x.ndim != 2:
            return data
        mean, std = PLAIN if normalise == "raw" else arrays.standard(data.x, data.is_test)
        return replace(data, mean=mean, std=std)
    if normalise == "standard":
        raise ValueError(f"normalise='standard' is for features, {data.name!r} has images; leave it out")
    if resize is not None and (not isinstance(resize, int) or resize < 1):
        raise ValueError(f"resize={resize!r} is not an image size; give the side length in pixels, e.g. resize=32")
    x = data.x if channels is None else with_channels(data.x, channels)
    x = x if resize is None else resized(x, resize)
    mean, std = NORMALISE[normalise] if normalise != "unit" else (data.mean, data.std)
    if len(mean) not in (1, x.shape[1]):
        raise ValueError(
            f"normalise={normalise!r} is for {len(mean)} channels, {data.name!r} has {x.shape[1]}; give channels"
        )
    return replace(data, x=x, mean=mean, std=std)
