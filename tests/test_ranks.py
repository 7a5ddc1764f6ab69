"""Ranks and rank correlation: against scipy, and for constant rows."""

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr

from pfl_core.ranks import rank_correlation, ranks_of


def test_ties_share_their_mean_rank():
    row = np.array([0.5, 0.1, 0.5, 0.9, 0.1, 0.5])
    assert ranks_of(row).tolist() == rankdata(row).tolist() == [4, 1.5, 4, 6, 1.5, 4]


def test_rank_correlation_is_spearmans():
    stream = np.random.default_rng(0)
    scores = stream.integers(0, 5, (4, 30)) / 4.0  # with many ties
    np.testing.assert_allclose(rank_correlation(scores), spearmanr(scores, axis=1).statistic, atol=1e-12)
    np.testing.assert_allclose(rank_correlation(np.exp(3 * scores)), rank_correlation(scores))


def test_a_row_without_order_has_no_rank_correlation():
    found = rank_correlation(np.array([[1.0, 2.0, 3.0], [0.5, 0.5, 0.5], [3.0, 2.0, 1.0]]))
    assert np.isnan(found[1]).all() and np.isnan(found[:, 1]).all()
    assert found[0, 2] == pytest.approx(-1) and found[0, 0] == pytest.approx(1)
