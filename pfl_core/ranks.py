"""Ranks of scores, and how alike two orders are."""

from __future__ import annotations

import numpy as np


def rank_correlation(scores: np.ndarray) -> np.ndarray:
    """Spearman's correlation of every two rows of [N, d], as [N, N]; equal scores share their mean rank.

    NaN for a row whose scores are all equal.
    """
    ranks = np.array([ranks_of(row) for row in scores])
    ranks -= ranks.mean(1, keepdims=True)
    norm = np.sqrt((ranks**2).sum(1))
    product = norm[:, None] * norm[None, :]
    return np.divide(ranks @ ranks.T, product, out=np.full(product.shape, np.nan), where=product > 0)


def ranks_of(row: np.ndarray) -> np.ndarray:
    """Ranks from 1 of one row, ties sharing their mean."""
    _, place, times = np.unique(row, return_inverse=True, return_counts=True)
    return (np.cumsum(times) - (times - 1) / 2)[place]
