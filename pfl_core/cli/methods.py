"""``pfl methods``: what there is, and the fields of a method with their meaning."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_core.cli.arguments import method
from pfl_core.cli.fields import PACKAGE, Field, declared
from pfl_core.cli.tables import as_json, table
from pfl_core.registry import METHODS

if TYPE_CHECKING:
    from pfl_core.algorithm import Algorithm

SCORED = {"after_merge": "after aggregation", "after_local_update": "after local training"}


def add(commands: argparse._SubParsersAction) -> None:
    methods = commands.add_parser(
        "methods",
        help="list the methods, or show the fields of some of them",
        description="Without METHOD: each method's papers, what is shared, and its file. With METHOD: its fields with "
        "default, type and meaning (the paper's symbol first, where it has one), its readings and variants, where its "
        "accuracy is scored, and what `pfl run` sets without --paper. `--set FIELD=VALUE` of `pfl run` sets a field.",
    )
    methods.add_argument("methods", nargs="*", type=method, metavar="METHOD", help="show these in detail")
    methods.add_argument("--json", action="store_true", help="print a JSON list of objects, with all fields")
    methods.set_defaults(do=do_methods)


def do_methods(args: argparse.Namespace) -> int:
    if args.json:
        print(as_json([described(name) for name in args.methods or sorted(METHODS)]))
    elif args.methods:
        print("\n\n".join(page(described(name)) for name in args.methods))
    else:
        print(table(("name", "papers", "what is shared", "file"), sorted(registered())))
        print("`pfl methods METHOD` shows the fields, readings and variants of a method")
    return 0


def registered() -> Iterator[tuple[str, str, str, str]]:
    """Name, papers, what is shared, and file of each method, from the text of its ``register``; nothing is imported."""
    for module in dict.fromkeys(METHODS.values()):
        path = PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "register":
                given = {word.arg: word.value for word in node.keywords}
                name, papers, shares = map(ast.literal_eval, (node.args[0], given["papers"], given["shares"]))
                yield name, ", ".join(papers), shares, _file(path)


def described(name: str) -> dict[str, Any]:
    """One method as an object of ``pfl methods --json``."""
    from pfl_core import algorithm

    cls = algorithm.method(name)
    entry = algorithm.methods().get(name)  # None for a method of the user
    fields = dataclasses.fields(cls)
    of_source = source_fields(cls)
    complete = all(_default(f) is not dataclasses.MISSING for f in fields)
    return {
        "name": name,
        "papers": list(entry.papers) if entry else [],
        "shares": entry.shares if entry else "",
        "reported": {r: cls.reading(r).reported for r in cls.readings} if complete else {},
        "trial": {**entry.trial, **entry.trial_training} if entry else {},
        "variants": {variant: dict(given) for variant, given in entry.variants.items()} if entry else {},
        "readings": {reading: dict(given) for reading, given in cls.readings.items()},
        "fields": {f.name: _default(f) for f in fields if _default(f) is not dataclasses.MISSING},
        "types": {f.name: of_source[f.name].type if f.name in of_source else str(f.type) for f in fields},
        "meanings": {f.name: of_source[f.name].about if f.name in of_source else "" for f in fields},
        "file": _file(Path(inspect.getfile(cls))),
    }


def _default(field: dataclasses.Field) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def source_fields(cls: type[Algorithm]) -> dict[str, Field]:
    """The fields of a method and of its bases as they are declared; a subclass replaces those of its bases."""
    return {
        field.name: field
        for base in reversed(cls.__mro__)
        if dataclasses.is_dataclass(base)
        for field in declared(Path(inspect.getfile(base)), base.__name__)
    }


def page(shown: dict[str, Any]) -> str:
    """The text of ``pfl methods METHOD``: facts, a table of the fields with a column for each reading, the variants."""
    facts = {name: shown[name] for name in ("shares", "file")} | {"papers": ", ".join(shown["papers"])}
    points = list(dict.fromkeys(shown["reported"].values()))
    for point in points:
        readings = [reading for reading, of_reading in shown["reported"].items() if of_reading == point]
        where = f"; with --reading {' or '.join(readings)} " if point != points[0] else ""
        facts["scored"] = facts.get("scored", "") + where + SCORED[point]
    if shown["trial"]:
        facts["run"] = f"without --paper: {_pairs(shown['trial'])}"
    readings = [reading for reading, given in shown["readings"].items() if given]
    rows = [
        (
            name,
            _text(shown["fields"][name]) if name in shown["fields"] else "",
            *(_text(given[name]) if name in (given := shown["readings"][reading]) else "" for reading in readings),
            re.sub(r"Literal\[(.*?)\]", lambda match: match[1].replace("'", "").replace(", ", " | "), annotation),
            shown["meanings"][name],
        )
        for name, annotation in shown["types"].items()
    ]
    lines = [shown["name"], *(f"{name:<8}{text}" for name, text in facts.items() if text)]
    if rows:
        lines += ["", table(("field", "default", *readings, "type", "meaning"), rows)]
    variants = [(name, _pairs(given)) for name, given in shown["variants"].items()]
    if variants:
        lines += ["", table(("variant", "fields"), variants)]
    return "\n".join(lines)


def _pairs(given: dict[str, Any]) -> str:
    return "  ".join(f"{field}={_text(value)}" for field, value in given.items())


def _text(value: Any) -> str:
    """A value as ``--set`` takes it."""
    return value if isinstance(value, str) else json.dumps(value)


def _file(path: Path) -> str:
    inside = path.is_relative_to(PACKAGE.parent)
    return (path.relative_to(PACKAGE.parent) if inside else path).as_posix()
