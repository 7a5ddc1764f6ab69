"""Pictures stay small, because every redraw stays in the history of every clone (see "Notebooks" in CONTRIBUTING)."""

import base64
import struct

import nbformat
import pytest

from pfl_core import notebooks
from pfl_core.runs.provenance import ROOT

LARGEST, WIDEST = 300_000, 1_600  # bytes and pixels of a file in figures/
LARGEST_SHOWN, WIDEST_SHOWN = 150_000, 800  # of a picture in a notebook
FOLDERS = ("paper", "real", "claims", "cells")


def width(png: bytes) -> int:
    return struct.unpack(">I", png[16:20])[0]


@pytest.mark.parametrize("folder", FOLDERS)
def test_figures_are_small_and_have_their_numbers_beside_them(folder):
    pictures = sorted((ROOT / "figures" / folder).rglob("*.png"))
    assert pictures
    large = [p.name for p in pictures if p.stat().st_size > LARGEST or width(p.read_bytes()) > WIDEST]
    assert large == [] and [p.name for p in pictures if not p.with_suffix(".csv").exists()] == []


@pytest.mark.parametrize("name", notebooks.names())
def test_pictures_in_notebooks_are_small(name):
    cells = nbformat.read(notebooks.path_of(name), as_version=4).cells
    shown = [output.data["image/png"] for cell in cells for output in cell.get("outputs", []) if "data" in output
             and "image/png" in output.data]  # fmt: skip
    pictures = [base64.b64decode(text) for text in shown]
    assert [len(png) for png in pictures if len(png) > LARGEST_SHOWN or width(png) > WIDEST_SHOWN] == []
