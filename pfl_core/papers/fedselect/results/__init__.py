"""FedSelect: tables of the notebooks, from stored runs."""

from pfl_core.papers.fedselect.results import limits, overlap, readings, rules, sizes, tables, workshop

__all__ = ["limits", "overlap", "readings", "rules", "sizes", "tables", "workshop"]
