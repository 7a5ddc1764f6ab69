"""Records of the first format, whose keys hashed code, brought to today's.

A record of that format is re-keyed only if its old key is reproduced: from its spec, the checksums of its data, which
must be here, and the hash of the code of the last commit that had such keys. ``keys_by_code.json`` holds what that
commit says of them: the defaults of every method, partition and network, and the hash of the code behind each
combination. A record whose old key is another one stays as it is, and so is stale.
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
from pfl_core.runs.store import Store, from_content, whole, write_record
from pfl_core.runs.versions import versions

TABLE = Path(__file__).with_name("keys_by_code.json")
NAMES = {  # what records named by its module, and its registered name
    "pfl_core.algorithms.star_pfl_likeness:Likeness": "star_pfl_likeness",
    "pfl_core.partition.sampled:paired_sample": "paired_sample",
    "pfl_core.partition.label_groups:label_groups": "label_groups",
}
TAGS = ("paper", "preset", "setting", "changed")
DATA_DEFAULTS = {"normalise": "unit", "resize": None, "channels": None, "corrupt": False, "corrupt_severity": 3}


def migrate(paths: Iterable[Path], say: Callable[[str], object] = lambda line: None) -> Counter[str]:
    """Bring record files to today's format, in place: how many were "re-keyed", "stale", "left", ... or "current".

    "stale": its old key is not reproduced, so nothing shows that today's code and the data here give the same. "left":
    its data or its method are not here. "damaged": it is no whole record. These three stay as they are, with a line to
    ``say``. "superseded": the run is stored under its new key already; the old file goes.
    """
    counts: Counter[str] = Counter()
    for path in paths:
        try:
            what, why = _migrate(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            what, why = "damaged", f"{type(error).__name__}: {error}"
        counts[what] += 1
        if why:
            say(f"{path}: {what}, {why}")
    return counts


def _migrate(path: Path) -> tuple[str, str]:
    """What became of one file, and why where that needs a word."""
    content = whole(path)
    if content.get("schema", 1) > 1:
        return "current", ""
    names = {k: _named(part) if isinstance(part, Mapping) else part for k, part in content["spec"].items()}
    try:
        spec = RunSpec.from_json(names)
        reproduced, data_here = old_key(content["spec"]) == content["key"], spec.checksums()
    except (FileNotFoundError, ValueError) as error:
        return "left", str(error)
    if not reproduced:
        return "stale", "its key was made by other code or other data"
    store = Store(path.parent)
    key, stored = store.locate(spec)
    if stored is not None and stored.key == key and store.path(key).exists():
        path.unlink()
        return "superseded", ""
    record = from_content({**content, "spec": names})
    record = replace(record, key=key, data=data_here, versions=versions(spec))
    write_record(record, path.with_name(f"{key}.json"))
    path.unlink()
    return "re-keyed", ""


def _named(part: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a spec with its registered name in place of a module's path."""
    return {**part, "name": NAMES.get(part["name"], part["name"])} if "name" in part else dict(part)


def old_key(spec: Mapping[str, Any]) -> str | None:
    """The key that the last commit with such keys gave a spec (as stored); None where its code is not in the table.

    Raises FileNotFoundError if the data are not here.
    """
    identity = _identity(spec)
    code = _code(identity)
    if code is None:
        return None
    public = identity["method"].get("public", "train")
    content = [
        identity,
        _checksum(identity["data"]["name"]),
        code,
        *([] if public in ("train", "val", "test", "public") else [_checksum(public)]),
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _identity(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec with every default of that time written out, and without its tags."""
    run = plain({k: v for k, v in spec.items() if k not in TAGS})
    method = run["method"]
    known = table()["methods"].get(method["name"], {"fields": {}, "later": [], "readings": {}})
    given = {k: v for k, v in method.items() if k != "reading"}
    fields = {**known["fields"], **known["readings"].get(method.get("reading", "paper"), {}), **given}
    unused = [name for name in known["later"] if fields[name] == known["fields"][name]]
    run["method"] = {k: v for k, v in fields.items() if k not in unused}
    for kind, tables in (("partition", "partitions"), ("model", "networks")):
        default = table()[tables].get(run[kind]["name"], {"defaults": {}})["defaults"]
        run[kind] = {**default, **run[kind]}
    kept = {k: v for k, v in run["data"].items() if k not in ("folder", "offline")}
    return {**run, "data": {**DATA_DEFAULTS, **kept}}


def _code(identity: Mapping[str, Any]) -> str | None:
    """Hash of the code that computed a spec; None for code from outside the package."""
    method, partition = identity["method"], table()["partitions"].get(identity["partition"]["name"])
    label = f"{method['name']}+{method['base']}" if "base" in method else method["name"]
    if partition is None or identity["model"]["name"] not in table()["networks"]:
        return None
    return table()["code"].get(label, {}).get(partition["module"])


def _checksum(name: str) -> str:
    """As it was then; a generated set, which has none today, had its version, 1."""
    return data.checksum(name) or hashlib.sha256(f"{name}\n1".encode()).hexdigest()


@cache
def table() -> dict[str, Any]:
    """What the last commit with such keys says of them."""
    return json.loads(TABLE.read_text(encoding="utf-8"))


def files(folder: Path) -> Iterator[Path]:
    """All record files below a folder."""
    yield from sorted(folder.glob("**/" + "[0-9a-f]" * 16 + ".json"))
