"""Every method runs in the federation of all methods, at each preset, and has a search."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pfl_core import methods, papers
from pfl_core.papers.across.experiments import ONE_SEED
from pfl_core.papers.across.searches import SEARCHES
from pfl_core.papers.across.settings import PUBLIC, SETTINGS
from pfl_core.papers.across.study import EQUAL, STUDY, at_equal_passes
from pfl_core.runs import Record, assign, load_data
from pfl_core.study.paper import Paper

NAME = "00_all_methods"


def test_it_is_a_study_and_no_paper():
    assert papers.study("across") is STUDY and not isinstance(STUDY, Paper)
    assert "across" not in papers.PAPERS and papers.study("fedselect") is papers.paper("fedselect")
    with pytest.raises(ValueError, match="unknown paper 'across'"):
        papers.paper("across")


def test_a_preset_that_it_lacks_is_one_line():
    assert STUDY.presets == ("ci", "quick", "real")
    assert papers.has_preset(f"across/{NAME}", "real") and not papers.has_preset(f"across/{NAME}", "paper")
    assert papers.has_preset("fedselect/00_walkthrough", "paper")
    for ask in (lambda: STUDY.specs(NAME, "paper"), lambda: SETTINGS.setting("paper")):
        with pytest.raises(ValueError, match="across has no preset 'paper'; choose from real, quick, ci"):
            ask()


@pytest.mark.parametrize("preset", STUDY.presets)
def test_all_methods_run_on_every_data_set(preset):
    specs = STUDY.specs(NAME, preset, (0, 1, 2))
    for name in SETTINGS.settings[preset]:
        seeds = {0} if name in ONE_SEED else {0, 1, 2}
        found = {(spec.method["name"], spec.seed) for spec in specs if spec.setting == name}
        assert found == {(method, seed) for method in methods() for seed in seeds}


@pytest.mark.parametrize("preset", ["ci", "quick"])
def test_clients_have_equally_many_images(preset):
    """So that weights by samples and equal weights are the same."""
    spec = SETTINGS.spec("fedavg", preset=preset)
    dealt = assign(spec, load_data(spec))
    for part in (dealt.train, dealt.val, dealt.test):
        assert len({len(index) for index in part}) == 1
    assert len(dealt.train[0]) % spec.train.batch_size == 0, "no smaller last batch"


def test_public_images_are_of_another_data_set():
    assert set(PUBLIC) == {setting.data["name"] for sets in SETTINGS.settings.values() for setting in sets.values()}
    for preset, sets in SETTINGS.settings.items():
        for name, setting in sets.items():
            public = SETTINGS.spec("fedmd", preset=preset, setting=name).build_method().public
            assert public == PUBLIC[name]["public"] != setting.data["name"]


def test_every_method_has_one_search_in_each_setting():
    assert set(SEARCHES) == {(preset, name) for preset in ("quick", "real") for name in SETTINGS.settings[preset]}
    for searches in SEARCHES.values():
        assert sorted(search.method for search in searches) == sorted(methods())


def test_searched_values_are_those_of_the_runs():
    """A fixed value of a field must not win over the search."""
    for (preset, name), chosen in SETTINGS.searched.items():
        for method, values in chosen.items():
            spec = SETTINGS.spec(method, preset=preset, setting=name)
            built = spec.build_method()
            found = {field: getattr(spec.train if field == "lr" else built, field) for field in values}
            assert found == values, method


def test_quick_is_searched_for_every_method():
    assert set(SETTINGS.searched["quick", "fashion_small"]) == set(methods())


@pytest.mark.parametrize(("passes", "score"), [(3.0, 40.0), (4.5, 20.0), (9.0, 10.0), (15.0, None)])
def test_the_score_at_equal_passes_is_that_of_the_last_round_within_them(passes, score):
    """Four rounds of three epochs, scored in rounds 1, 2 and 4: FedAvg makes 12 passes."""
    spec = replace(SETTINGS.spec("fedavg", preset="quick"), rounds=4)
    scored = ([1, 2, 4], [[1], [2], [4]]), ([1, 2, 4], [[10]] * 3)
    passed = ([1, 2, 3, 4], [[passes]] * 4)
    record = Record("key", spec, {"correct": scored[0], "count": scored[1], "passes": passed}, {}, num_params=100)
    assert at_equal_passes(record) == ({} if score is None else {EQUAL: score})
