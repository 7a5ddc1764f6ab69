"""Small files in the layouts of the real data sets, and a local web server in place of the network."""

import gzip
import hashlib
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from pfl_core.seeding import numpy_generator

FILES_OF_CIFAR = {
    "CIFAR10": ("cifar-10-batches-py", [f"data_batch_{i}" for i in range(1, 6)], ["test_batch"], "batches.meta"),
    "CIFAR100": ("cifar-100-python", ["train"], ["test"], "meta"),
}


def some_images(*shape: int) -> np.ndarray:
    return numpy_generator(0, "images", *shape).integers(0, 256, shape, dtype=np.uint8)


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def idx(array: np.ndarray) -> bytes:
    """The format of the MNIST family: 0, 0, 8 (bytes), number of axes, sizes as big-endian integers, the values."""
    return (
        bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">i4").tobytes() + array.astype(np.uint8).tobytes()
    )


def npz_file(
    folder: Path, name: str, *, train: int = 6, test: int = 4, shape: tuple[int, ...] = (4, 4), classes: int = 2, **more
) -> dict[str, np.ndarray]:
    """Writes <name>.npz with `train` and `test` random images of the given shape, labels 0, 1, ... in turn."""
    arrays = {}
    for part, n in (("train", train), ("test", test)):
        arrays[f"{part}_images"] = some_images(n, *shape)
        arrays[f"{part}_labels"] = (np.arange(n) % classes)[:, None].astype(np.uint8)
    arrays |= more
    np.savez(folder / f"{name}.npz", **arrays)
    return arrays


def idx_files(raw: Path, prefixes: tuple[str, str], images: np.ndarray, labels: np.ndarray, pack: bool = False) -> None:
    """Writes the four raw files of one set of the MNIST family; `pack`: as the .gz that is downloaded."""
    raw.mkdir(parents=True)
    half = len(labels) // 2
    for prefix, part in zip(prefixes, (slice(half), slice(half, None)), strict=True):
        for kind, values in (("images-idx3", images[part]), ("labels-idx1", labels[part])):
            target = raw / f"{prefix}-{kind}-ubyte"
            if pack:
                target.with_suffix(".gz").write_bytes(gzip.compress(idx(values), mtime=0))
            else:
                target.write_bytes(idx(values))


def cifar_files(folder: Path, class_name: str, label_key: str, classes: int) -> dict[str, object]:
    """Writes a CIFAR of two images a file; returns what torchvision's reader must know, their MD5 sums."""
    from pfl_core.vision import torchvision

    base, train, test, meta = FILES_OF_CIFAR[class_name]
    (folder / base).mkdir()
    for i, file in enumerate([*train, *test]):
        rows = some_images(2, 3072) // 8 + i  # file i holds i..i+31
        (folder / base / file).write_bytes(pickle.dumps({"data": rows, label_key: [i % classes, (i + 1) % classes]}))
    known = getattr(torchvision().datasets, class_name).meta
    (folder / base / meta).write_bytes(pickle.dumps({known["key"]: [f"class {c}" for c in range(classes)]}))
    sums = {file: md5(folder / base / file) for file in [*train, *test, meta]}
    return {
        "train_list": [[file, sums[file]] for file in train],
        "test_list": [[file, sums[file]] for file in test],
        "meta": known | {"md5": sums[meta]},
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, set as the default."""
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def write_npz(folder: Path) -> Callable[..., dict[str, np.ndarray]]:
    return partial(npz_file, folder)


@pytest.fixture
def write_idx() -> Callable[..., None]:
    return idx_files


@pytest.fixture
def write_cifar(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, int], Path]:
    """``cifar_files`` with their MD5 sums registered in torchvision, which checks them as usual."""
    from pfl_core.vision import torchvision

    def write(class_name: str, label_key: str, classes: int) -> Path:
        for name, value in cifar_files(folder, class_name, label_key, classes).items():
            monkeypatch.setattr(getattr(torchvision().datasets, class_name), name, value)
        return folder / FILES_OF_CIFAR[class_name][0]

    return write


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """(address, folder served) of a web server on the loopback interface."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    served = tmp_path_factory.mktemp("served")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(served))) as web:
        thread = Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{web.server_port}", served
        web.shutdown()
        thread.join()
