"""All cases, kind by kind, and the files that hold their numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.golden import components, defaults, engine, files, methods
from tests.golden.digest import Numbers, differences

HERE = Path(__file__).parent


@cache
def read(path: Path) -> dict[str, Numbers]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


@dataclass(frozen=True)
class Kind:
    """``<name>.json`` holds the numbers of each case under its name."""

    name: str
    wanted: Callable[[], tuple[str, ...]]  # names of the cases; for methods and partitions records are read
    numbers: Callable[[str], Numbers]
    component: Callable[[str], str]  # whose version goes with the case
    single: Callable[[str], bool] = lambda case: False  # whether its numbers are of single precision

    @property
    def path(self) -> Path:
        return HERE / f"{self.name}.json"

    def golden(self) -> dict[str, Numbers]:
        return read(self.path)

    def differences(self, case: str, new: Numbers) -> list[str]:
        """A line for each entry that is not as in the file."""
        return differences(self.golden()[case], new, self.single(case))

    def complaint(self, case: str, new: Numbers) -> str:
        """What to say of a case whose numbers are not those of the file; "" if they are."""
        lines = self.differences(case, new)
        if lines and all(line.endswith(": new") for line in lines):
            advice = "a field was added, which raises no version: `make golden`"
        else:
            advice = (
                f"results changed: raise the version of {self.component(case)} if that is meant, then `make golden`"
            )
        return "\n  ".join([advice, case, *lines]) if lines else ""

    def write(self, found: dict[str, Numbers]) -> None:
        """A line for each entry, so that a change of results is a small change of the file."""
        cases = [
            f"{json.dumps(case)}: {{\n"
            + ",\n".join(
                f" {json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}" for name, value in of.items()
            )
            + "\n}"
            for case, of in found.items()
        ]
        self.path.write_text("{\n" + ",\n".join(cases) + "\n}\n", encoding="utf-8")


KINDS = {
    kind.name: kind
    for kind in (
        Kind("methods", methods.wanted, methods.numbers, methods.component, methods.single),
        Kind("engine", lambda: tuple(engine.CASES), engine.numbers, lambda case: "engine"),
        Kind("partitions", components.partitions, components.partition_numbers, components.partition_component),
        Kind("networks", components.networks, components.network_numbers, components.network_component),
        Kind("data", files.wanted, files.numbers, files.component),
        Kind("defaults", defaults.wanted, defaults.numbers, defaults.component),
    )
}
