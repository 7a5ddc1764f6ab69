"""Every setting of every paper gives valid runs; overrides are applied, and wrong ones are reported."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from pfl_core import data, methods, papers
from pfl_core.algorithm import MethodEntry
from pfl_core.papers import PAPERS
from pfl_core.papers.fedselect.settings import SETTINGS
from pfl_core.runs import RunSpec, assign, build, load_data
from pfl_core.study.presets import PRESETS
from pfl_core.study.settings import NOT_OF_METHOD, TRAINING, PaperSettings, override
from tests.helpers import one_line


def settings() -> Iterator[tuple[PaperSettings, str, str]]:
    """Every paper's settings with each preset and name."""
    for paper in PAPERS:
        own = papers.paper(paper).settings
        yield from ((own, preset, name) for preset, sets in own.settings.items() for name in sets)


def methods_of(paper: str) -> list[MethodEntry]:
    return [entry for entry in methods().values() if paper in entry.papers]


def test_every_paper_has_all_presets_and_methods():
    for paper in PAPERS:
        assert set(papers.paper(paper).settings.settings) == set(PRESETS), paper
        assert methods_of(paper), paper


def test_every_setting_is_a_run_of_each_of_its_papers_methods():
    for own, preset, name in settings():
        for entry in methods_of(own.paper):
            case, method = (own.paper, preset, name, entry.name), entry.name
            made = own.spec(method, preset=preset, setting=name, seed=2)
            assert (made.paper, made.preset, made.seed, made.method["name"]) == (own.paper, preset, 2, method), case
            assert RunSpec.from_json(made.to_json()) == made, case
        assert set(made.data["name"].split("+")) <= set(data.names()), (own.paper, preset, name)


def test_small_presets_need_no_files_and_their_data_suffice():
    for own, preset, name in settings():
        if preset in ("ci", "quick"):
            _, fed, dealt = build(own.spec("fedavg", preset=preset, setting=name))
            assert fed.num_clients == own.setting(preset, name).clients, (own.paper, preset, name)
            assert all(len(index) for index in (*dealt.train, *dealt.test)), (own.paper, preset, name)


COMPARISONS = {  # on which methods are compared at preset quick; FedPeWS's are on synthetic points
    "fedselect": ("cifar10", "workshop s=2", "workshop s=4"),
    "pfedgate": ("cifar10", "cifar10, sampled", "cifar10, novel", "pathological"),
    "star_pfl": ("axial", "sagital", "traces", "labels"),
}


@pytest.mark.parametrize("paper", COMPARISONS)
def test_quick_compares_on_few_clothes_and_each_client_has_its_own_in_every_part(paper):
    """Few, or all methods would solve them; of the classes that it is tested on it has trained on most."""
    for name in COMPARISONS[paper]:
        made = papers.paper(paper).settings.spec("fedavg", preset="quick", setting=name)
        data = load_data(made)
        dealt = assign(made, data)
        assert made.data == {"name": "fashion_small"}, name
        assert sum(map(len, dealt.train)) <= 2000, name
        for train, val, test in zip(dealt.train, dealt.val, dealt.test, strict=True):
            assert len(val) >= 10 and len(test) >= 10, name
            for held in (val, test):
                known = torch.isin(data.y[held], data.y[train].unique()).double().mean()
                assert known >= (1.0 if paper == "fedselect" else 0.8), name


def test_only_ci_is_on_digits_where_methods_are_compared():
    for paper, names in COMPARISONS.items():
        own = papers.paper(paper).settings
        assert {own.setting("ci", name).data["name"] for name in names if name in own.settings["ci"]} == {"digits"}


def test_the_real_preset_keeps_the_papers_clients_and_training():
    for own, preset, name in settings():
        if preset == "real" and name in own.settings["paper"]:
            real, full = own.setting("real", name), own.setting("paper", name)
            assert real.rounds * real.participation <= full.rounds, (own.paper, name)  # in which a client takes part
            train = replace(full.train, batch_size=real.train.batch_size) if own.paper == "fedselect" else full.train
            if real.data != full.data or "train_per_class" in real.partition:  # a stand-in, or a part of the images
                train = replace(train, lr=real.train.lr)
            assert real.train == train, (own.paper, name)  # FedSelect's network has no batch norm there
            for field in ("clients", "participation", "sampling"):
                assert getattr(real, field) == getattr(full, field), (own.paper, name, field)


def test_the_first_data_set_is_the_default():
    for paper in PAPERS:
        own = papers.paper(paper).settings
        for preset, sets in own.settings.items():
            assert own.setting(preset) == next(iter(sets.values())), (paper, preset)


def test_a_papers_own_settings_of_a_method_are_those_of_all_its_runs():
    for own, preset, name in settings():
        for method, fields in own.method_fields.items():
            assert own.paper in methods()[method].papers, (own.paper, method)
            made = own.spec(method, preset=preset, setting=name).build_method()
            assert {k: getattr(made, k) for k in fields} == fields, (own.paper, preset, name, method)


def test_a_searched_value_replaces_a_papers_own_setting():
    """And what a run asks for replaces both."""
    own = papers.paper("star_pfl").settings
    found = replace(own, searched={("quick", "axial"): {"lotteryfl": {"target_density": 0.1}}})
    spec = found.spec("lotteryfl", preset="quick")
    assert spec.method["target_density"] == found.fields_of(spec)["target_density"] == 0.1
    assert found.spec("lotteryfl", preset="quick", target_density=0.3).method["target_density"] == 0.3


def test_what_goes_with_a_method_are_fields_of_it_or_of_its_training():
    for own, preset, name in settings():
        for entry in methods_of(own.paper):
            fields = {f.name for f in dataclasses.fields(entry.cls)}
            for options in ({}, *entry.variants.values()):
                given = own.with_method({"name": entry.name, **options}, preset, name)
                assert given.keys() <= NOT_OF_METHOD | fields, (own.paper, preset, name, entry.name, options)
                own.spec(entry.name, preset=preset, setting=name, **options)


# ---- overrides ------------------------------------------------------------------------------------------------------


def test_overrides_reach_run_and_training():
    changes = {"rounds": 7, "participation": 1, "lr": 1, "milestones": [0.5], "model": "mlp", "clients": 5}
    made = SETTINGS.spec("fedavg", preset="ci", overrides=changes)
    assert (made.rounds, made.participation, made.clients) == (7, 1.0, 5)
    assert (made.train.lr, made.train.milestones, made.model) == (1.0, (0.5,), {"name": "mlp"})
    assert made.train.batch_size == SETTINGS.setting("ci").train.batch_size, "the rest stays"
    assert type(made.train.lr) is type(made.participation) is float


def test_overrides_take_parts_with_options():
    changes = {"partition": {"name": "dirichlet", "alpha": 0.3}, "data": {"name": "digits", "normalise": "half"}}
    made = override(SETTINGS.spec("local", preset="quick"), changes)
    assert (made.partition, made.data) == (changes["partition"], changes["data"])


def test_no_overrides_and_those_that_say_what_is_there_change_nothing():
    made = SETTINGS.spec("local", preset="quick")
    there = {"rounds": made.rounds, "lr": made.train.lr, "partition": made.partition}
    assert override(made, {}) == made == SETTINGS.spec("local", preset="quick", overrides=there)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"round": 3}, "'round'.*did you mean 'rounds'"),
        ({"LR": 3}, "'LR'"),
        ({"alpha": 0.3}, "'alpha'"),
        ({"train": {"lr": 0.3}}, "'train'"),
        ({"rounds": "many"}, "rounds='many'"),
        ({"lr": "fast"}, "lr='fast'"),
        ({"model": {"hidden": [3]}}, "name"),
    ],
    ids=str,
)
def test_bad_overrides_are_one_line(changes, match):
    with one_line(match):
        SETTINGS.spec("fedavg", preset="ci", overrides=changes)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"preset": "quik"}, "'quik'.*did you mean 'quick'"),
        ({"preset": "ci", "setting": "cifar100"}, "'cifar100'.*cifar10"),
        ({"method": "fedselekt"}, "'fedselekt'"),
        ({"aplha": 0.3}, "'aplha'.*did you mean 'alpha'"),
    ],
    ids=str,
)
def test_unknown_names_are_one_line(change, match):
    asked = {"method": "fedselect", "preset": "ci", **change}
    with one_line(match):
        SETTINGS.spec(asked.pop("method"), **asked)


def test_names_of_run_and_training_do_not_clash():
    """An override says by its name alone where it belongs."""
    assert not TRAINING & {f.name for f in dataclasses.fields(RunSpec)}
