"""Rewrites the golden files: ``make golden``, or ``python -m tests.golden.write [kind ...]``. Prints what changed.

An entry that only differs by rounding keeps its old numbers, so that files do not depend on who wrote them.
"""

from __future__ import annotations

import sys

import torch

from tests.golden.cases import KINDS, Kind


def rewrite(kind: Kind) -> None:
    old, new = kind.golden(), {}
    for case in kind.wanted():
        found = kind.numbers(case)
        if case not in old:
            print(f"{kind.component(case)}: {case}: new")
        elif lines := kind.differences(case, found):
            print("\n  ".join([f"{kind.component(case)}: {case}", *lines]))
        else:
            found = old[case]
        new[case] = found
    for case in old.keys() - new.keys():
        print(f"{kind.component(case)}: {case}: gone")
    kind.write(new)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or KINDS:
        rewrite(KINDS[name])
