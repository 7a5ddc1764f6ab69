"""Ranks and Spearman's rank correlation."""

from __future__ import annotations

import numpy as np


def rank_correlation(scores: np.ndarray) -> np.ndarray:
    """Spearman's correlation of all pairs of rows of [N, d] -> [N, N]; equal scores get their mean rank.

    NaN for a row whose scores are all equal.
    """
    ranks = np.array([ranks_of(row) for row in scores])
    ranks -= ranks.mean(1, keepdims=True)
    norm = np.sqrt((ranks**2).sum(1))
    product = norm[:, None] * norm[None, :]
    return np.divide(ranks @ ranks.T, product, out=np.full(product.shape, np.nan), where=product > 0)


def ranks_of(row: np.ndarray) -> np.ndarray:
    """Ranks of a row, from 1; ties get their mean rank."""
    _, inverse, counts = np.unique(row, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]
