"""Shared by the studies of all papers: settings, data frames, statistics, comparison, claims, plots."""
