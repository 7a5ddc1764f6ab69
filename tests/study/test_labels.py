"""Names of data sets in figures."""

from types import SimpleNamespace

import pytest

from pfl_core.study.labels import data_name


@pytest.mark.parametrize(
    ("about", "shown"),
    [
        ("our generator: no centres are published", "generated here: no centres are published"),
        ("CIFAR-10 (JPEG copy)", "CIFAR-10 (JPEG copy)"),
        ("", "mnist"),
    ],
)
def test_figures_name_the_data_of_older_records_in_the_present_words(about, shown):
    record = SimpleNamespace(about=about, spec=SimpleNamespace(data={"name": "mnist"}))
    assert data_name(record) == shown
