"""Every setting of every paper is a run that can be made, and says what its paper says."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch

from pfl_core import data, methods, presets
from pfl_core.experiments import EXPERIMENTS, fedselect
from pfl_core.presets import METHODS, PRESETS, SETTINGS, override, setting, spec
from pfl_core.runs import RunSpec, build
from pfl_core.runs.build import assign, load_data

PAPERS = sorted({paper for paper, _ in SETTINGS})
ALL = [(paper, preset, name) for (paper, preset), sets in SETTINGS.items() for name in sets]
MAIN = "fedselect/01_main_comparison"
WITHOUT_FILES = [case for case in ALL if case[1] in ("ci", "quick")]


def one_line(match: str):
    return pytest.raises(ValueError, match=re.compile(rf"\A(?=.*{match})[^\n]+\Z"))


def test_every_paper_has_all_presets():
    assert set(SETTINGS) == {(paper, preset) for paper in PAPERS for preset in PRESETS}
    for paper in PAPERS:
        assert {p for entry in methods().values() for p in entry.papers} >= {paper}


@pytest.mark.parametrize("case", ALL, ids="-".join)
def test_every_setting_is_a_run_of_each_of_its_papers_methods(case):
    paper, preset, name = case
    for method in (entry.name for entry in methods().values() if paper in entry.papers):
        made = spec(paper, method, preset=preset, dataset=name, seed=2)
        assert (made.paper, made.preset, made.seed, made.method["name"]) == (paper, preset, 2, method)
        assert RunSpec.from_json(made.to_json()) == made
    assert set(made.data["name"].split("+")) <= set(data.names())


@pytest.mark.parametrize("case", WITHOUT_FILES, ids="-".join)
def test_small_presets_need_no_files_and_their_data_suffice(case):
    paper, preset, name = case
    _, fed, assigned = build(spec(paper, "fedavg", preset=preset, dataset=name))
    assert fed.num_clients == setting(paper, preset, name).clients
    assert all(len(index) for index in (*assigned.train, *assigned.test))


@pytest.mark.realdata("cifar10")
def test_the_paper_scale_of_fedselect_deals_100_training_images_a_client():
    made = spec("fedselect", "fedselect", preset="real")
    _, fed, _ = build(made)
    assert fed.splits["train"].sizes.tolist() == [100] * 10
    assert fed.splits["test"].sizes.tolist() == [200] * 10


def test_fedselect_has_the_stated_values_of_its_paper():
    """fedselect.md section 8: clients, classes, images, rounds, epochs; batch and rate of the authors' code."""
    frame = setting("fedselect", "paper", "cifar10")
    assert (frame.clients, frame.rounds, frame.participation) == (10, 200, 1.0)
    assert (frame.train.epochs, frame.train.batch_size, frame.train.lr) == (3, 32, 0.05)
    assert frame.train.momentum == frame.train.weight_decay == 0
    assert frame.partition["classes_per_client"] * frame.partition["train_per_class"] == 100
    assert frame.model["name"] == "resnet18"
    mini = setting("fedselect", "paper", "mini_imagenet")
    assert (mini.clients, mini.partition["classes_per_client"], mini.partition["train_per_class"]) == (20, 10, 50)
    office = setting("fedselect", "paper", "office_home")
    assert (office.clients, office.rounds, office.train.lr, office.model["pretrained"]) == (4, 30, 0.01, True)
    assert office.partition == {"name": "by_source", "pool": "joined", "test": 0.5}  # the seed says which half


@pytest.mark.parametrize("case", [case for case in ALL if case[1] == "real"], ids="-".join)
def test_the_real_preset_shrinks_rounds_and_network_alone(case):
    paper, _, name = case
    real, full = setting(paper, "real", name), setting(paper, "paper", name)
    assert real.rounds <= full.rounds
    same = ("train", "clients", "participation", "sampling", *(("data", "partition") if paper == "fedselect" else ()))
    assert [getattr(real, f) for f in same] == [getattr(full, f) for f in same]


def test_the_first_data_set_is_the_default():
    for (paper, preset), sets in SETTINGS.items():
        assert setting(paper, preset) == next(iter(sets.values()))


@pytest.mark.parametrize("case", METHODS, ids="-".join)
def test_a_papers_own_settings_of_a_method_are_those_of_all_its_runs(case):
    paper, method = case
    assert paper in methods()[method].papers
    for _, preset, name in (of for of in ALL if of[0] == paper):
        made = spec(paper, method, preset=preset, dataset=name).build_method()
        assert {k: getattr(made, k) for k in METHODS[case]} == METHODS[case]


@pytest.mark.parametrize("case", ALL, ids="-".join)
def test_what_goes_with_a_method_are_fields_of_it_or_of_its_training(case):
    paper, preset, name = case
    for entry in (entry for entry in methods().values() if paper in entry.papers):
        for options in ({}, *entry.variants.values()):
            given = presets.PAPERS[paper].training({"name": entry.name, **options}, preset, name)
            assert given.keys() <= presets.NOT_OF_METHOD | {f.name for f in dataclasses.fields(entry.cls)}
            spec(paper, entry.name, preset=preset, dataset=name, **options)


def test_a_reading_has_its_own_training_at_the_papers_size_alone():
    code = {p: spec("fedselect", "fedselect", preset=p, reading="authors_code").train for p in ("paper", "real")}
    assert (code["paper"].epochs, code["paper"].augment) == (15, "crop_flip")
    assert (code["real"].epochs, code["real"].augment) == (3, "none")
    asked = spec("fedselect", "fedselect", preset="paper", reading="authors_code", overrides={"epochs": 2}).train
    assert (asked.epochs, asked.augment) == (2, "crop_flip")


def test_settings_of_the_paper_then_those_asked_for():
    assert spec("fedselect", "fedavg_ft", preset="ci").build_method().finetune_epochs == 3
    assert spec("fedselect", "fedavg_ft", preset="ci", finetune_epochs=1).build_method().finetune_epochs == 1
    code = spec("fedselect", "fedselect", preset="ci", reading="authors_code", p=0.5).build_method()
    assert (code.p, code.alpha, code.selection_scope) == (0.5, 0.8, "per_tensor")


@pytest.mark.parametrize("name", ["cifar10", "office_home"])
def test_the_released_codes_reading_has_its_training_and_its_network(name):
    """At preset paper alone; what the reading does not speak of stays the data set's."""
    code = spec("fedselect", "fedselect", preset="paper", dataset=name, reading="authors_code")
    text = spec("fedselect", "fedselect", preset="paper", dataset=name)
    assert (code.train.epochs, code.train.lr, code.train.batch_size, code.train.augment) == (15, 0.05, 32, "crop_flip")
    assert code.model == {**text.model, "stem": "imagenet"}
    small = (spec("fedselect", "fedselect", preset="quick", reading=reading) for reading in ("paper", "authors_code"))
    assert len({str((one.train, one.model)) for one in small}) == 1


@pytest.mark.parametrize(("preset", "changes"), [("quick", {}), ("real", {}), ("paper", {}), ("paper", {"epochs": 3})])
def test_every_method_of_the_workshops_comparison_has_the_same_local_epochs(preset, changes):
    """FedRep's are its own fields; FedSelect's search and Ditto's second model come on top."""
    for one in EXPERIMENTS["fedselect/06_workshop_gradltn"](preset, (0,), changes):
        if one.method["name"] == "fedrep":
            rule = one.build_method()
            assert rule.head_epochs + rule.body_epochs == one.train.epochs


@pytest.mark.parametrize(("preset", "changes"), [("ci", {}), ("paper", {}), ("quick", {"epochs": 5})])
def test_every_baseline_also_runs_with_twice_the_epochs(preset, changes):
    """Of its own, where it has some; but for Ditto, which trains two models as it is, and stands beside them so."""
    specs = EXPERIMENTS["fedselect/07_paper_vs_code"](preset, (0,), changes)
    once, twice = (
        {one.method["name"]: one for one in specs if one.setting == name and one.method["name"] != "fedselect"}
        for name in ("cifar10", "cifar10, twice the epochs")
    )
    assert once.keys() == set(fedselect.BASELINES) and twice.keys() == once.keys() - {"ditto"}
    for name, one in twice.items():
        assert one.train.epochs == 2 * once[name].train.epochs
    assert {0.3, 0.5} <= {one.build_method().alpha for one in specs if one.method["name"] == "fedselect"}
    before, after = (vars(runs["fedrep"].build_method()) for runs in (once, twice))
    assert [after[part] for part in ("head_epochs", "body_epochs")] == [
        2 * before[part] for part in ("head_epochs", "body_epochs")
    ]


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("preset", PRESETS)
def test_experiments_ask_for_runs_and_for_each_once(name, preset):
    specs = EXPERIMENTS[name](preset, (0, 1), {"rounds": 3})
    assert {s.preset for s in specs} == {preset} and {s.seed for s in specs} == {0, 1}
    assert {s.rounds for s in specs} == {3}
    identities = [str(s.identity()) for s in specs]
    assert len(set(identities)) == len(identities)


@pytest.mark.parametrize("preset", PRESETS)
def test_one_run_of_table_2_leaves_nothing_shared(preset):
    """Of claim 6; at the default p the rounds are too few. Its network has no batch norm but at preset paper."""
    specs = EXPERIMENTS["fedselect/02_personalization_limit"](preset, (0,), {})
    full = [one for one in specs if one.method.get("alpha") == 1 and one.method.get("p") == 1]
    averaged = [one for one in specs if one.method.get("buffer_policy") == "average"]
    names = fedselect.DATASETS if preset == "paper" else fedselect.DATASETS[:1]
    assert [one.setting for one in full] == list(names)
    assert [one.setting for one in averaged] == [one.setting for one in full if one.model["name"] == "resnet18"]


def test_the_real_comparison_has_the_corrupted_set_with_every_seed():
    specs = EXPERIMENTS[MAIN]("real", (0, 1), {})
    clean, corrupted = ([one for one in specs if one.setting == name] for name in ("cifar10", "cifar10_c"))
    assert [(one.method, one.seed) for one in corrupted] == [(one.method, one.seed) for one in clean]
    assert {(one.seed, one.data["corrupt"]) for one in corrupted} == {(0, True), (1, True)}


def test_learning_rates_are_chosen_on_images_that_no_client_trains_or_is_tested_on():
    """As many to train on as elsewhere, and as many again to choose by; all methods at each rate, FedSelect at the two
    limits that are fixed."""
    specs = EXPERIMENTS[MAIN]("quick", (0, 1), {})
    main = [one for one in specs if one.setting == "cifar10" and one.seed == 0]
    assert [one.method["alpha"] for one in main if "alpha" in one.method] == [0.3, 0.5, 0.05, 0.8]
    main = [one for one in main if one.method.get("alpha") not in (0.05, 0.8)]
    for rate in fedselect.LEARNING_RATES:
        tried = [one for one in specs if one.setting == f"cifar10, lr={rate:g}"]
        assert [one.method for one in tried] == [one.method for one in main]
        assert {(one.train.lr, one.seed) for one in tried} == {(rate, 0)}
        of_all_seeds = [one for one in EXPERIMENTS[MAIN]("real", (0, 1), {}) if one.setting == tried[0].setting]
        assert [one.seed for one in of_all_seeds] == [0] * len(main) + [1] * len(main)
    fed, held = build(main[0])[1], build(tried[0])[1]
    assert (
        held.splits["train"].sizes.tolist() == held.splits["val"].sizes.tolist() == fed.splits["train"].sizes.tolist()
    )
    assigned = assign(tried[0], load_data(tried[0]))
    for parts in zip(assigned.train, assigned.val, assigned.test, strict=True):
        assert len(torch.cat(parts).unique()) == sum(map(len, parts))


# ---- overrides ------------------------------------------------------------------------------------------------------


def test_overrides_reach_run_and_training():
    changes = {"rounds": 7, "participation": 1, "lr": 1, "milestones": [0.5], "model": "mlp", "clients": 5}
    made = spec("fedselect", "fedavg", preset="ci", overrides=changes)
    assert (made.rounds, made.participation, made.clients) == (7, 1.0, 5)
    assert (made.train.lr, made.train.milestones, made.model) == (1.0, (0.5,), {"name": "mlp"})
    assert made.train.batch_size == setting("fedselect", "ci").train.batch_size, "the rest stays"
    assert type(made.train.lr) is type(made.participation) is float


def test_overrides_take_parts_with_options():
    changes = {"partition": {"name": "dirichlet", "alpha": 0.3}, "data": {"name": "digits", "normalise": "half"}}
    made = override(spec("fedselect", "local", preset="quick"), changes)
    assert (made.partition, made.data) == (changes["partition"], changes["data"])


def test_no_overrides_and_those_that_say_what_is_there_change_nothing():
    made = spec("fedselect", "local", preset="quick")
    there = {"rounds": made.rounds, "lr": made.train.lr, "partition": made.partition}
    assert override(made, {}) == made == spec("fedselect", "local", preset="quick", overrides=there)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"round": 3}, "'round'.*did you mean 'rounds'.*overrides may set"),
        ({"LR": 3}, "'LR'"),
        ({"alpha": 0.3}, "'alpha'"),
        ({"train": {"lr": 0.3}}, "'train'"),
        ({"rounds": "many"}, "rounds='many'"),
        ({"rounds": 0}, "rounds=0"),
        ({"rounds": 1.5}, "rounds=1.5"),
        ({"lr": "fast"}, "lr='fast'"),
        ({"lr": -1}, "lr=-1"),
        ({"participation": 10}, "participation=10"),
        ({"model": "lenet5"}, "lenet5"),
        ({"model": {"hidden": [3]}}, "name"),
        ({"partition": {"name": "shards", "classes": 3}}, "classes"),
        ({"sampling": "often"}, "often"),
    ],
    ids=str,
)
def test_bad_overrides_are_one_line(changes, match):
    with one_line(match):
        spec("fedselect", "fedavg", preset="ci", overrides=changes)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"paper": "fedselct"}, "'fedselct'.*did you mean 'fedselect'"),
        ({"preset": "quik"}, "'quik'.*did you mean 'quick'"),
        ({"preset": "ci", "dataset": "cifar100"}, "'cifar100'.*cifar10"),
        ({"method": "fedselekt"}, "'fedselekt'"),
        ({"aplha": 0.3}, "'aplha'.*did you mean 'alpha'"),
    ],
    ids=str,
)
def test_unknown_names_are_one_line(change, match):
    asked = {"paper": "fedselect", "method": "fedselect", "preset": "ci", **change}
    with one_line(match):
        spec(asked.pop("paper"), asked.pop("method"), **asked)


def test_names_of_run_and_training_do_not_clash():
    """An override says by its name alone where it belongs."""
    assert not presets.TRAINING & {f.name for f in dataclasses.fields(RunSpec)}


def test_star_pfls_own_fields_are_overrides_of_its_runs_alone():
    changes = {"threshold_local": 0.2, "history_len_local": 4, "rounds": 2}
    made = {s.method["name"]: s for s in EXPERIMENTS["star_pfl/05_costs"]("ci", (0,), changes)}
    star = made["star_pfl"].build_method()
    assert (star.threshold_local, star.history_len_local, made["star_pfl"].rounds) == (0.2, 4, 2)
    assert made["fedavg"].method == {"name": "fedavg", "client_weighting": "samples"} and made["fedavg"].rounds == 2
    frozen = EXPERIMENTS["star_pfl/01_stability_traces"]("ci", (0,), {"threshold_local": 0.2})
    assert [s.method["threshold_local"] for s in frozen] == [0.2, None], "what an experiment varies stays varied"


def test_star_pfl_has_the_stated_values_of_its_paper():
    """star_pfl.md section 9; batch and rate of the authors' code, the number of rounds ours."""
    for name, source in (("axial", "organamnist"), ("sagital", "organsmnist")):
        frame = setting("star_pfl", "paper", name)
        assert (frame.clients, frame.participation, frame.train.epochs) == (20, 1.0, 10)
        assert (frame.train.lr, frame.train.batch_size, frame.train.momentum) == (0.01, 32, 0.0)
        assert frame.data == {"name": source} and frame.partition == {"name": "paired_dirichlet", "alpha": 0.1}
        assert frame.rounds >= 389
