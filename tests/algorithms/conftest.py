"""Fixtures for the tests of all methods."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pfl_core.federation import federation as federation_module


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """``one_by_one()``: from then on rows are trained and averaged one at a time, as if there were memory for one."""
    return lambda: monkeypatch.setattr(federation_module, "ROW_BUDGET", 1)
