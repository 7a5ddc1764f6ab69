"""Runs notebooks with papermill, and writes the cleaned copies that are committed."""

from pfl_core.notebooks.catalogue import check_parameters, names, path_of, select, title
from pfl_core.notebooks.copies import cleaned, parameters_cell, rewrite, with_preset
from pfl_core.notebooks.runner import NotebookError, run_notebook, terminate

__all__ = [
    "NotebookError",
    "check_parameters",
    "cleaned",
    "run_notebook",
    "names",
    "parameters_cell",
    "path_of",
    "rewrite",
    "select",
    "terminate",
    "title",
    "with_preset",
]
