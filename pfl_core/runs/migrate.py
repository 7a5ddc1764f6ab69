"""Converts records of format 1 to the current format.

Keys of format 1 included a hash of the code. A record gets a new key only if its old key can be reproduced from its
spec, the checksums of its data (which must be on this machine) and the code hash of the last commit with such keys.
``keys_by_code.json`` holds this information for that commit: the defaults of every method, partition and network, and
the code hash of each combination. A record whose old key is not reproduced stays unchanged and counts as stale.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pfl_core import data
from pfl_core.runs.spec import RunSpec, plain
from pfl_core.runs.store import Store, read_content, record_from_content, write_record
from pfl_core.runs.versions import versions

TABLE = Path(__file__).with_name("keys_by_code.json")
NAMES = {  # module path used in old records -> registered name
    "pfl_core.algorithms.star_pfl_likeness:Likeness": "star_pfl_likeness",
    "pfl_core.partition.sampled:paired_sample": "paired_sample",
    "pfl_core.partition.label_groups:label_groups": "label_groups",
}
TAGS = ("paper", "preset", "setting", "changed")  # fields of a spec that are not part of a key
DATA_DEFAULTS = {"normalise": "unit", "resize": None, "channels": None, "corrupt": False, "corrupt_severity": 3}


def migrate(paths: Iterable[Path], report: Callable[[str], object] = lambda line: None) -> Counter[str]:
    """Convert record files in place. Returns the number of files by outcome:

    - "current": already in the current format.
    - "re-keyed": converted.
    - "superseded": the run is already stored under its new key; the old file is deleted.
    - "stale": the old key is not reproduced, so the current code and data may give other results.
    - "left": its data or its method are not on this machine.
    - "damaged": not a complete record.

    Files with one of the last three outcomes stay unchanged; ``report`` is called with a line about each.
    """
    counts: Counter[str] = Counter()
    for path in paths:
        try:
            outcome, reason = _migrate(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            outcome, reason = "damaged", f"{type(error).__name__}: {error}"
        counts[outcome] += 1
        if reason:
            report(f"{path}: {outcome}, {reason}")
    return counts


def _migrate(path: Path) -> tuple[str, str]:
    """The outcome for one file, and the reason if it was not converted."""
    content = read_content(path)
    if content.get("schema", 1) > 1:
        return "current", ""
    renamed = {k: _renamed(part) if isinstance(part, Mapping) else part for k, part in content["spec"].items()}
    try:
        spec = RunSpec.from_json(renamed)
        reproduced, checksums = old_key(content["spec"]) == content["key"], spec.checksums()
    except (FileNotFoundError, ValueError) as error:
        return "left", str(error)
    if not reproduced:
        return "stale", "its key was computed with other code or other data"
    store = Store(path.parent)
    key, stored = store.locate(spec)
    if stored is not None and stored.key == key and store.path(key).exists():
        path.unlink()
        return "superseded", ""
    record = record_from_content({**content, "spec": renamed})
    record = replace(record, key=key, data=checksums, versions=versions(spec))
    write_record(record, path.with_name(f"{key}.json"))
    path.unlink()
    return "re-keyed", ""


def _renamed(part: Mapping[str, Any]) -> dict[str, Any]:
    """A component of a spec, with its registered name instead of a module path."""
    return {**part, "name": NAMES.get(part["name"], part["name"])} if "name" in part else dict(part)


def old_key(spec: Mapping[str, Any]) -> str | None:
    """The key of a stored spec in format 1; None if its code is not in the table.

    Raises FileNotFoundError if the data are not on this machine.
    """
    identity = _identity(spec)
    code = _code(identity)
    if code is None:
        return None
    # FedMD's public data set, if it is not a split of the clients' data, is part of the key
    public = identity["method"].get("public", "train")
    content = [
        identity,
        _checksum(identity["data"]["name"]),
        code,
        *([] if public in ("train", "val", "test", "public") else [_checksum(public)]),
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _identity(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec with all defaults of format 1 filled in, and without its tags."""
    run = plain({k: v for k, v in spec.items() if k not in TAGS})
    method = run["method"]
    known = table()["methods"].get(method["name"], {"fields": {}, "later": [], "readings": {}})
    given = {k: v for k, v in method.items() if k != "reading"}
    fields = {**known["fields"], **known["readings"].get(method.get("reading", "paper"), {}), **given}
    # fields that were added after records had been stored count only if they differ from their default
    unused = [name for name in known["later"] if fields[name] == known["fields"][name]]
    run["method"] = {k: v for k, v in fields.items() if k not in unused}
    for kind, tables in (("partition", "partitions"), ("model", "networks")):
        default = table()[tables].get(run[kind]["name"], {"defaults": {}})["defaults"]
        run[kind] = {**default, **run[kind]}
    kept = {k: v for k, v in run["data"].items() if k not in ("folder", "offline")}
    return {**run, "data": {**DATA_DEFAULTS, **kept}}


def _code(identity: Mapping[str, Any]) -> str | None:
    """Hash of the code that computed a spec; None if the table has no hash, e.g. for code from outside the package."""
    method, partition = identity["method"], table()["partitions"].get(identity["partition"]["name"])
    label = f"{method['name']}+{method['base']}" if "base" in method else method["name"]
    if partition is None or identity["model"]["name"] not in table()["networks"]:
        return None
    return table()["code"].get(label, {}).get(partition["module"])


def _checksum(name: str) -> str:
    """The checksum in format 1: for generated data sets, which have none today, the hash of their version then, 1."""
    return data.checksum(name) or hashlib.sha256(f"{name}\n1".encode()).hexdigest()


@cache
def table() -> dict[str, Any]:
    """The content of ``keys_by_code.json``."""
    return json.loads(TABLE.read_text(encoding="utf-8"))


def files(folder: Path) -> Iterator[Path]:
    """All record files below a folder."""
    yield from sorted(folder.glob("**/" + "[0-9a-f]" * 16 + ".json"))
