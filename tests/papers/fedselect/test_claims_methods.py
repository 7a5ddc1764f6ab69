"""Claims 1, 2 and 9 to 11 on small synthetic results: each check can hold, fail, and stay undecided."""

import math

import pytest

from pfl_core.papers.fedselect.claims.methods import SIZES
from pfl_core.papers.fedselect.paper import PAPER
from pfl_core.papers.fedselect.settings import SETTINGS
from pfl_core.runs import Record
from pfl_core.study import metrics
from pfl_core.study.presets import PRESETS
from tests.papers.fedselect import invented
from tests.papers.fedselect.invented import ALL, CORRUPT, OFFICE, SETS, baselines, exact, limits, rows, status, verdict
from tests.study.invented import noisy

FOUR = {0.05: 80.0, 0.3: 82.0, 0.5: 81.0, 0.8: 79.0}


def everywhere(own, others, sets=SETS):
    """FedSelect's limits and baselines on all four data sets."""
    return invented.everywhere(limits(own), baselines(others), sets=sets)


def test_1_the_best_limit_against_all_nine():
    found = verdict(1, everywhere(FOUR, ALL | {"ditto": 75.0}))
    text = "best alpha=0.30, least lead +7.00 [+7.00, +7.00] over ditto"
    assert found.status == "holds" and found.numbers.startswith(f"cifar10 (JPEG copy), real: {text}; cifar10_c, real")
    assert status(1, limits(FOUR), baselines(ALL | {"ditto": 83.0})) == "does not hold"
    assert status(1, everywhere(FOUR, ALL | {"ditto": noisy(82.0)})) == "undecided"
    assert status(1, everywhere(FOUR, {"local": 70.0})) == "undecided"
    assert status(1, limits(FOUR), baselines({"local": 83.0})) == "does not hold"


def test_1_some_limits_can_win_but_not_lose():
    assert status(1, everywhere({0.3: 82.0}, ALL)) == "holds"
    lost = verdict(1, limits({0.3: 69.0, 0.5: 68.0}), baselines(ALL))
    assert lost.status == "undecided"
    assert lost.numbers.endswith("does not hold at the limits stored, without 0.05, 0.80")


def test_1_every_data_set_counts():
    runs = [everywhere(FOUR, ALL, SETS[:3]), baselines(ALL, **OFFICE)]
    assert status(1, *runs, limits(FOUR, **OFFICE)) == "holds"
    assert status(1, *runs, limits(dict.fromkeys(FOUR, 60.0), **OFFICE)) == "does not hold"
    assert status(1, *runs) == "undecided"


def test_2_the_average_of_the_data_sets():
    """Leads of 12, 12, 12 and -24 points over the best baseline: 3 on average; then -32 instead: 1."""
    runs = [row for row in everywhere(FOUR, ALL) if row["setting"] != "office_home"] + baselines(ALL, **OFFICE)
    found = verdict(2, runs, limits(FOUR | {0.3: 46.0, 0.05: 40.0, 0.5: 40.0, 0.8: 40.0}, **OFFICE))
    assert found.status == "holds" and found.numbers.startswith("average +3.00 [+3.00, +3.00] of cifar10 (JPEG copy)")
    assert status(2, runs, limits(dict.fromkeys(FOUR, 38.0), **OFFICE)) == "does not hold"
    assert status(2, runs, limits(dict.fromkeys(FOUR, noisy(46.0)), **OFFICE)) == "undecided"


def test_2_needs_all_four_data_sets():
    for own, decided in ((FOUR, "holds"), (dict.fromkeys(FOUR, 71.0), "does not hold")):
        runs = everywhere(own, ALL)
        assert status(2, runs) == decided
        found = verdict(2, [row for row in runs if row["setting"] in ("cifar10", "office_home")])
        assert found.status == "undecided" and found.numbers.endswith("; without cifar10_c, mini_imagenet")


def test_2_and_3_distinguish_data_sets_made_from_the_same_images():
    """CIFAR10-C is made from CIFAR-10, and both have the same data label."""
    copy = dict(data="JPEG copy")
    runs = [limits(FOUR, **copy), baselines(ALL, **copy), baselines(ALL, **CORRUPT | copy)]
    runs.append(limits(dict.fromkeys(FOUR, 78.0), **CORRUPT | copy))
    found = verdict(2, *runs).numbers
    assert "cifar10 (JPEG copy), real: alpha=0.30 over local +12.00" in found
    assert "cifar10_c (JPEG copy), real: alpha=0.05 over local +8.00" in found
    runs[-1] = limits(dict.fromkeys(FOUR, 95.0), **CORRUPT | copy)
    assert "alpha=0.50: least lead +11.00 [+11.00, +11.00] over local (cifar10 (" in verdict(3, *runs).numbers


def test_2_with_missing_results():
    low = dict.fromkeys(FOUR, 71.0)
    assert status(2, everywhere(low, {"local": 70.0})) == "does not hold"  # the others can only lower the lead
    assert status(2, everywhere(FOUR, {"local": 70.0})) == "undecided"
    assert status(2, everywhere({0.3: 71.0}, ALL)) == "undecided"  # other limits can only raise it
    assert status(2, everywhere({0.3: 80.0}, ALL)) == "holds"
    found = verdict(2, limits(FOUR), baselines(ALL), limits(FOUR, **OFFICE))
    assert found == ("undecided", "no baseline is stored on office_home, real")


FOUR_THAT_FALL = {"fedbabu": 75.0, "fedper": 75.0, "fedrep": 75.0, "ditto": 75.0}


def after(fall, own=80.0, **changed):
    """Runs on both data sets: the four methods lose `fall` points (or as in `changed`), FedSelect ends at `own`."""
    left = {name: value - fall for name, value in FOUR_THAT_FALL.items()} | changed
    there = limits({0.3: own, 0.5: own - 9.0}, **CORRUPT)
    return limits({0.3: 82.0, 0.5: 82.0}), baselines(FOUR_THAT_FALL), there, baselines(left, **CORRUPT)


def test_9_falls_of_four_methods():
    found = verdict(9, *after(8.0))
    numbers = "alpha=0.30: falls by 2.00; fedbabu: +8.00 [+8.00, +8.00] (more than 5 needed), minus FedSelect's +6.00"
    assert found.status == "holds" and numbers in found.numbers
    assert found.numbers.endswith("[cifar10 (JPEG copy), real; cifar10_c, real]")
    assert status(9, *after(8.0, own=70.0)) == "does not hold"
    assert status(9, *after(8.0, ditto=74.0)) == "does not hold"
    assert status(9, *after(-1.0, own=84.0)) == "does not hold"  # who gains does not fall
    assert status(9, *after(4.0)) == "does not hold"  # more than FedSelect, but not strongly
    assert status(9, *after(8.0, ditto=noisy(74.0))) == "undecided"


def test_9_needs_both_data_sets_and_all_four():
    clean, four, there, left = after(8.0)
    assert status(9, clean, four) == "undecided"
    assert status(9, clean, four, there, [row for row in left if row["method"] != "fedrep"]) == "undecided"
    stored = [row for row in left if row["method"] == "ditto"]
    assert status(9, clean, four, limits({0.3: 60.0, 0.5: 60.0}, **CORRUPT), stored) == "does not hold"


def curves(rough, reached, **fields):
    """FedSelect at both limits among nine baselines of roughness 2 that settle at round 20."""
    made = [*baselines(ALL), *limits({0.3: 80.0, 0.5: 80.0})]
    for metric, own, other in (("roughness", rough, 2.0), ("rounds_to_95", reached, 20.0)):
        made += baselines(dict.fromkeys(ALL, (other,) * 3) | fields, metric)
        made += [row for alpha in (0.3, 0.5) for row in rows("fedselect", own, f"alpha={alpha}", metric)]
    return made


def test_10_smoothness_and_speed():
    found = verdict(10, curves((1.0,) * 3, (10.0,) * 3))
    assert found.status == "holds"
    assert "spread of changes 1.00, Local's minus it +1.00 [+1.00, +1.00]" in found.numbers
    assert status(10, curves((2.5,) * 3, (10.0,) * 3)) == "does not hold"
    assert status(10, curves((1.0,) * 3, (24.0,) * 3)) == "does not hold"
    assert status(10, curves((1.0, 2.0, 3.0), (10.0,) * 3)) == "undecided"
    assert status(10, curves((1.0,) * 3, (20.0,) * 3)) == "undecided"  # a tie is not first
    assert status(10, curves((1.0,) * 3, (10.0,) * 3, ditto=(0.5,) * 3)) == "does not hold"
    assert status(10, limits(FOUR), baselines(ALL)) == "undecided"


def test_10_leaves_out_a_data_set_without_baselines():
    made = curves((1.0,) * 3, (10.0,) * 3)
    found = verdict(10, made, limits({0.3: 80.0}, **CORRUPT))
    assert found.status == "holds" and found.numbers.endswith("; left out, cifar10_c, real: no baseline is stored")


def test_10_one_of_both_limits_is_enough():
    made = curves((1.0,) * 3, (10.0,) * 3)
    for row in made:
        if row["variant"] == "alpha=0.5" and row["metric"] == "roughness":
            row["value"] = 9.0
    assert status(10, made) == "holds"


def at(setting, images, own, others, alphas=(0.3, 0.5)):
    made = limits(dict.fromkeys(alphas, own), setting=setting) + baselines(others, setting=setting)
    return made + exact("fedavg", float(images), "train_images", setting=setting)


def test_11_the_lead_with_few_images():
    many = at("cifar10", 100, 80.0, {"fedbabu": 75.0, "fedper": 75.0})
    few = "cifar10, 20 images"
    found = verdict(11, many, at(few, 20, 60.0, {"fedbabu": 33.0, "fedper": 50.0}))
    assert found.status == "holds"
    assert "fedper: lead with 20 images +10.00, lead with 100 images +5.00, difference +5.00" in found.numbers
    assert status(11, many, at(few, 20, 54.0, {"fedbabu": 33.0, "fedper": 50.0})) == "does not hold"
    assert status(11, many, at(few, 20, 60.0, {"fedbabu": noisy(50.0), "fedper": 50.0})) == "undecided"
    assert status(11, many, at(few, 20, 60.0, {"fedbabu": 33.0})) == "undecided"
    assert status(11, many, at(few, 20, 54.0, {"fedper": 50.0})) == "does not hold"
    assert status(11, many, at(few, 20, 60.0, {"fedbabu": 33.0, "fedper": 50.0}, (0.5,))) == "holds"


def test_11_both_leads_are_over_the_seeds_of_their_difference():
    many = at("cifar10", 100, 80.0, {"fedbabu": 75.0, "fedper": 75.0})
    more = rows("fedselect", (99.0,), "alpha=0.3", seeds=(7,)) + baselines({"fedbabu": (9.0,), "fedper": (9.0,)})
    more = [row | {"seed": 7} for row in more]
    found = verdict(11, many, more, at("cifar10, 20 images", 20, 60.0, {"fedbabu": 33.0, "fedper": 50.0}))
    assert "fedper: lead with 20 images +10.00, lead with 100 images +5.00, difference +5.00" in found.numbers


def test_11_the_smallest_size_and_table_1s():
    many = at("cifar10", 100, 80.0, {"fedbabu": 75.0, "fedper": 75.0})
    between = at("cifar10, 50 images", 50, 70.0, {"fedbabu": 70.0, "fedper": 70.0})
    least = at("cifar10, 20 images", 20, 60.0, {"fedbabu": 33.0, "fedper": 50.0})
    assert status(11, many, between, least) == "holds"
    assert status(11, many, between) == "does not hold"
    assert status(11, between, least) == "undecided"
    assert status(11, many, at("cifar10, 200 images", 200, 90.0, {"fedbabu": 70.0, "fedper": 70.0})) == "undecided"


@pytest.mark.parametrize("preset", PRESETS)
def test_11_includes_every_size_that_is_run(preset):
    assert {one.setting for one in PAPER.specs("04_training_size", preset, [0])} <= set(SIZES)


# what tidy takes from a record


def record(accuracy, rounds, every=1, method="fedselect", **options):
    """Two clients of 100 test samples with the same accuracy (percent), scored in every round or every second."""
    spec = SETTINGS.spec(method, preset="ci", overrides={"rounds": rounds, "eval_every": every}, **options)
    scored = list(range(every, rounds + 1, every))
    series = {
        "correct": (scored, [[a, a] for a in accuracy]),
        "count": (scored, [[100, 100]] * len(scored)),
        "correct_trained": (scored, [[50, 50]] * len(scored)),
        "count_trained": (scored, [[100, 100]] * len(scored)),
        "loss": (scored, [[1.0, 1.0]] * len(scored)),
    }
    return Record("", spec, series, clients={"train": [[10, 10], [30, 0]]})


def test_roughness_by_hand():
    """From round 3 on: 70, 72, 70, 72; changes 2, -2, 2; their mean is 2/3, their sample variance 16/3."""
    assert metrics.roughness(record([10, 90, 70, 72, 70, 72], 6)) == pytest.approx(math.sqrt(16 / 3))
    every_second = record([10, 90, 70, 72, 70, 72], 12, every=2)
    assert metrics.roughness(every_second) == pytest.approx(math.sqrt(16 / 3))
    assert metrics.roughness(record([10, 30, 40, 50, 60, 70], 6)) == 0.0
    assert math.isnan(metrics.roughness(record([10, 20, 30], 3)))


def test_roughness_is_of_the_reported_score():
    made = record([10, 90, 70, 72, 70, 72], 6, eval_point="after_local_update")
    assert metrics.roughness(made) == 0.0


def test_the_metrics_frame_has_the_metrics_of_the_checks(monkeypatch):
    monkeypatch.setattr(Record, "stale", False)
    frame = PAPER.metrics_frame([record([10, 90, 70, 72, 70, 72], 6)])
    found = frame.set_index("metric")["value"]
    assert found["train_images"] == 25.0 and found["rounds_to_95"] == 2.0
    assert found["roughness"] == pytest.approx(math.sqrt(16 / 3))
    assert set(frame["model"]) == {"mlp"}
