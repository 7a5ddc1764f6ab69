"""Fixtures for the tests of all methods."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pfl_core.federation import federation as federation_module
from tests.helpers import same_bits


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """``one_by_one()``: from then on rows are trained and averaged one at a time, as if there were memory for one."""
    return lambda: monkeypatch.setattr(federation_module, "ROW_BUDGET", 1)


@pytest.fixture
def same_in_chunks(one_by_one: Callable[[], None]) -> Callable[..., None]:
    """``same_in_chunks(play, *series)``: ``play() -> (state, history)`` gives the same bits with rows one at a time."""

    def check(play: Callable, *series: str) -> None:
        whole, history = play()
        one_by_one()
        parts, other = play()
        assert same_bits(whole, parts)
        for metric in series or ("loss_trained",):
            assert same_bits(history.series[metric], other.series[metric])

    return check
