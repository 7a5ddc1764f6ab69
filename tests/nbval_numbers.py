"""nbval compares texts; here their numbers may differ as much as another processor makes them.

Sums are rounded in another order on another kind of processor, so that now and then a mask takes another entry. (On one
machine equal runs have equal bits; tests of the engine and of each method see to that.) Between the three processors
that were at hand Star-PFL's notebooks, which differed most, did so by 3 % or 0.07 at most, and by 7 % against 8 % where
no decimal is printed; the others by 0.02 at most. Whole numbers below 7, such as those of seeds and rounds, must be the
same.
"""

from __future__ import annotations

import math
import re

from nbval.plugin import IPyNbCell

NUMBER = re.compile(r"[-+−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
RELATIVE, ABSOLUTE = 0.05, 0.02
ABSOLUTE_STAR_PFL = 0.08
RELATIVE_WHOLE = 0.15  # of numbers without decimals


class Alike(str):
    """A cell's output, equal to another with the same words and, within the tolerances, the same numbers."""

    absolute = ABSOLUTE

    def close(self, one: str, other: str) -> bool:
        a, b = (float(text.replace("−", "-")) for text in (one, other))
        if one.lstrip("-+−").isdigit() and other.lstrip("-+−").isdigit():
            return math.isclose(a, b, rel_tol=RELATIVE_WHOLE)
        return math.isclose(a, b, rel_tol=RELATIVE, abs_tol=self.absolute)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return False
        (words, numbers), (others, their_numbers) = parts(self), parts(other)
        return words == others and all(map(self.close, numbers, their_numbers))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


class AlikeStarPFL(Alike):
    absolute = ABSOLUTE_STAR_PFL


def parts(text: str) -> tuple[str, list[str]]:
    """The words, spaces counting once and each number as '#'; and the numbers."""
    return " ".join(NUMBER.sub("#", text).split()), NUMBER.findall(text)


def install() -> None:
    sanitize = IPyNbCell.sanitize

    def sanitized(cell: IPyNbCell, text: object) -> object:
        found, kind = sanitize(cell, text), AlikeStarPFL if cell.path.parent.name == "star_pfl" else Alike
        return kind(found) if isinstance(found, str) else found

    IPyNbCell.sanitize = sanitized
