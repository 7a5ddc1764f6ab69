"""Running notebooks: papermill, made strict, and the cleaned copies that are committed."""

from pfl_core.notebooks.catalogue import check, chosen, names, path_of, title
from pfl_core.notebooks.copies import cleaned, parameters_cell, rewrite, with_preset
from pfl_core.notebooks.runner import NotebookError, Outcome, execute

__all__ = [
    "NotebookError",
    "Outcome",
    "check",
    "chosen",
    "cleaned",
    "execute",
    "names",
    "parameters_cell",
    "path_of",
    "rewrite",
    "title",
    "with_preset",
]
