"""A user's partition: a CSV file that names the client of every sample."""

import csv
import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pfl_core.data.registry import data_dir
from pfl_core.options import Part
from pfl_core.partition.base import Partition, assemble, grouped, pools

if TYPE_CHECKING:
    from pfl_core.data import Dataset

COLUMNS = ["index", "client"]


def from_csv(
    data: "Dataset",
    num_clients: int,
    seed: int,
    *,
    file: str,
    sha256: str = "",
    pool: str = "official",
    val: Part = 0.0,
    test: Part = 0.2,
) -> Partition:
    """Each sample goes to the client that ``file`` names: a CSV file with the columns ``index`` and ``client``.

    A sample without a line is not used. ``index`` counts from 0, in the order of ``load``: that of the arrays given to
    ``Dataset.from_arrays``; in the layout ``NAME.npz`` training, validation, then test samples. ``client`` is 0..N-1,
    or a name; names are numbered in their sorted order. With ``pool="official"`` a client's official test samples are
    its test part; with ``pool="joined"`` it is a fraction ``test`` of its samples.

    ``file``: a path, or a file in the data folder. ``sha256``: of its content, which a run's key has in place of the
    path (see ``with_checksum``).
    Raises ValueError in one line for a file that is missing, has changed, or does not fit the data and ``num_clients``.
    """
    path = _found(file)
    content = path.read_bytes()
    if sha256 and hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(f"partition csv: {file} has changed since the run was described; describe the run again")
    client = _clients(content, file, len(data.y), num_clients)

    def assign(indices: Tensor, name: str) -> list[Tensor]:
        return grouped(indices, client, num_clients + 1)[:num_clients]

    return assemble(data, seed, pools(data, pool), assign, val, test)


def with_checksum(component: Mapping[str, Any]) -> dict[str, Any]:
    """The component with the checksum of its file, so that a run is identified by the file's content.

    Components of other partitions, and those that have a checksum, are returned unchanged.
    Raises ValueError if no file is named, or if it is missing.
    """
    if component["name"] != "csv" or "sha256" in component:
        return dict(component)
    file = component.get("file")
    if not isinstance(file, str):
        raise ValueError(f"partition csv: file={file!r} is not a file name; give e.g. csv:clients.csv")
    return {**component, "sha256": hashlib.sha256(_found(file).read_bytes()).hexdigest()}


def _found(file: str) -> Path:
    for path in (Path(file).expanduser(), data_dir() / file):
        if path.is_file():
            return path
    raise ValueError(f"partition csv: there is no file {file}, neither here nor in {data_dir()}")


def count_clients(file: str) -> int:
    """The number of clients that a file names."""
    return len({row[1] for row in _rows(_found(file).read_bytes(), file)})


def _wrong(file: str, problem: str) -> ValueError:
    return ValueError(f"partition csv: {file} {problem}")


def _rows(content: bytes, file: str) -> list[list[str]]:
    """The lines below the header, each with an index and a client."""
    try:
        header, *rows = csv.reader(content.decode("utf-8-sig").splitlines(), skipinitialspace=True, strict=True)
    except (ValueError, csv.Error) as error:  # also of an empty file, and of bytes that are not UTF-8
        raise _wrong(file, f"is not a CSV file ({error})") from None
    if header != COLUMNS:
        raise _wrong(file, f"has the columns {', '.join(header)[:80]}; expected index,client")
    if not rows:
        raise _wrong(file, "has no line below its header")
    for line, row in enumerate(rows, start=2):
        if len(row) != len(COLUMNS) or not row[1]:
            raise _wrong(file, f"line {line}: {','.join(row)[:80]!r} is not an index and a client")
    return rows


def _clients(content: bytes, file: str, num_samples: int, num_clients: int) -> Tensor:
    """The client [n] int64 of every sample; ``num_clients`` for a sample without a line."""
    name_of: dict[int, str] = {}
    for line, (index, name) in enumerate(_rows(content, file), start=2):
        if not index.isdecimal() or int(index) >= num_samples:
            raise _wrong(file, f"line {line}: index {index!r} is not a sample; the data set has 0..{num_samples - 1}")
        if int(index) in name_of:
            raise _wrong(file, f"line {line}: index {index} is there twice")
        name_of[int(index)] = name
    client = torch.full((num_samples,), num_clients)
    client[list(name_of)] = torch.tensor(_numbered(list(name_of.values()), num_clients, partial(_wrong, file)))
    return client


def _numbered(names: list[str], num_clients: int, wrong: Callable[[str], ValueError]) -> list[int]:
    """Clients 0..N-1 as numbers; other names are numbered in their sorted order."""
    distinct = sorted(set(names))
    if len(distinct) != num_clients:
        raise wrong(f"has {len(distinct)} clients, the run {num_clients}; set the run's number of clients (--clients)")
    if all(name.isdecimal() for name in distinct):
        if {int(name) for name in distinct} != set(range(num_clients)):
            raise wrong(f"has clients up to {max(map(int, distinct))}; number them 0..{num_clients - 1}, or use names")
        return [int(name) for name in names]
    number = {name: i for i, name in enumerate(distinct)}
    return [number[name] for name in names]
