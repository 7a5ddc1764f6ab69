"""Criteria: a verdict is kept only if its runs meet every condition."""

import pandas as pd
import pytest

from pfl_core.study.criteria import CONDITIONS, SEARCH, Criteria, Waiver, is_small, seeds_needed, why_open
from pfl_core.study.statistics import Missing, Reading, by_seed, interval, paired, reading
from pfl_core.study.verdicts import Verdict, ahead_of_all, all_hold, any_holds, holm, lacking, on_stored_datasets

HOLDS = Verdict("holds", "+3.00")
SEARCHED = {("real", "images"): {"own": {"lr": 0.1}, "rival": {"lr": 0.3}}}


def rows(change=0.1, inert=0.0, seeds=(0, 1, 2), preset="real", lead=(3.0, 3.5, 2.5), setting="images", lost=()):
    """Two methods, ``own`` ahead of ``rival`` by ``lead``; the training of the runs ``lost`` failed."""
    made = []
    for method in ("own", "rival"):
        for seed in seeds:
            run = dict(method=method, seed=seed, preset=preset, setting=setting, variant="", dataset="images")
            run["key"] = f"{method}{seed}"
            accuracy = 80.0 + (lead[seed] if method == "own" else 0.0)
            metrics = {"acc_mean": accuracy, "validation_change": change, "inert": inert if method == "own" else None}
            metrics["failed"] = run["key"] in lost
            made += [{**run, "metric": name, "value": value} for name, value in metrics.items()]
    return pd.DataFrame(made).astype({"value": float})


def judged(frame, criteria=None, number=1):
    with reading() as read:
        lead = paired(frame, {"method": "own"}, {"method": "rival"})
    criteria = criteria or Criteria(searched=SEARCHED)
    return criteria.judge(number, Verdict(lead.status, str(lead)), read, frame)


def test_a_verdict_that_meets_all_conditions_is_kept_with_its_runs():
    found = judged(rows())
    assert found.status == "holds"
    assert found.runs == ("own0", "own1", "own2", "rival0", "rival1", "rival2")


@pytest.mark.parametrize(
    "changed, reason",
    [
        (dict(change=0.5), "validation accuracy changes by 0.5 points or more over the last fifth of the rounds (own"),
        (dict(change=-0.9), "validation accuracy changes"),
        (
            dict(change=float("nan")),
            "no validation images, or too few scored rounds, to show whether training converged (own, rival)",
        ),
        (dict(lost=["rival1"]), "training failed (rival)"),
        (dict(inert=1.0), "a check of the mechanism failed (own)"),
        (dict(setting="others"), "no search for rates and strengths (own, rival)"),
        (dict(seeds=(0, 1), lead=(3.0, 3.001)), "2 of 3 seeds"),
        (dict(lead=(3.0, 5.0, 4.0)), "3 of 4 seeds"),
    ],
)
def test_each_condition_leaves_it_undecided_with_the_reason(changed, reason):
    found = judged(rows(**changed))
    assert found.status == "undecided"
    assert reason in found.numbers
    assert "By the numbers alone: holds, +" in found.numbers


def test_results_without_the_convergence_metric_do_not_count_as_converged():
    frame = rows()
    found = judged(frame[frame["metric"] != "validation_change"])
    assert found.status == "undecided" and "no validation images" in found.numbers


@pytest.mark.parametrize("preset", ["quick", "ci"])
def test_small_presets_only_show(preset):
    assert judged(rows(preset=preset)).status == "shown"
    exact = Criteria({1: Waiver(CONDITIONS, "an identity")})
    assert judged(rows(preset=preset), exact).status == "shown"


def test_waived_conditions_are_not_required():
    bare = rows(change=9.0, inert=1.0, seeds=(0, 1), setting="others")
    exact = Criteria({1: Waiver(CONDITIONS, "an identity"), 2: Waiver((SEARCH,), "one method")})
    assert judged(bare, exact).status == "holds"
    assert "search" not in judged(bare, exact, 2).numbers
    assert "2 of 3 seeds" in judged(bare, exact, 2).numbers


def test_a_setting_that_varies_a_searched_one_has_its_rates():
    assert judged(rows(setting="images, novel")).status == "holds"


def test_only_runs_that_were_read_count():
    """A diverging third method that the claim is not about changes nothing."""
    other = rows(change=9.0, inert=1.0).assign(method="third", key="third")
    assert judged(pd.concat([rows(), other])).status == "holds"


def test_a_rise_in_one_configuration_hides_no_fall_in_another():
    """Two alphas of one setting, whose changes cancel."""
    rising, falling = rows(0.9).assign(dirichlet=0.1), rows(-0.9).assign(dirichlet=1.0)
    falling["key"] += ", alpha 1"
    both = pd.concat([rising, falling])
    with reading() as read:
        read.keys |= dict.fromkeys(both["key"])
    found = Criteria(searched=SEARCHED).judge(1, HOLDS, read, both)
    assert found.status == "undecided" and "validation accuracy changes" in found.numbers


def test_convergence_is_judged_over_the_seeds_together():
    """Seed 0 alone changes by more; the mean over the seeds does not. Whether each run is flat splits no group."""
    frame = rows(0.3)
    changes = frame["metric"].eq("validation_change")
    frame.loc[changes & frame["seed"].eq(0), "value"] = 0.7
    frame["flat"] = frame["seed"].ne(0)
    assert judged(frame).status == "holds"


def test_no_search_decides_whose_best_value_is_at_the_end_of_its_grid():
    found = judged(rows(), Criteria(searched=SEARCHED, open_ends={("real", "images"): {"rival": {"lr": 0.3}}}))
    assert found.status == "undecided"
    assert "the best value may lie beyond the searched grid (rival)" in found.numbers


def test_without_runs_there_is_nothing_to_add():
    nothing = Verdict("undecided", "nothing is stored")
    assert Criteria().judge(1, nothing, Reading(), rows()) == ("undecided", "nothing is stored", (), ())


@pytest.mark.parametrize(
    "changed, reason",
    [
        (dict(lead=(1.0, -2.0, 0.5)), "a 95 % interval contains both answers; 3 of 5 seeds. Numbers: -0.17"),
        (dict(seeds=(0,)), "one seed gives no interval; 1 of 3 seeds. Numbers: +3.00"),
        (dict(lead=(0.1, -0.1, 0.2), change=0.9), "contains both answers; validation accuracy changes"),
    ],
)
def test_undecided_numbers_get_the_reason_and_the_unmet_conditions(changed, reason):
    found = judged(rows(**changed))
    assert found.status == "undecided" and reason in found.numbers


def two_rivals(second=0.1):
    """``own`` is clearly behind ``rival`` and ``third``; the validation accuracy of ``third`` changes by ``second``."""
    frame = rows(lead=(-3.0, -3.5, -2.5))
    third = rows(change=second)
    third = third[third["method"] == "rival"].assign(method="third")
    third["key"] = third["key"].str.replace("rival", "third")
    return pd.concat([frame, third])


def beats_both(frame):
    leads = {name: paired(frame, {"method": "own"}, {"method": name}) for name in ("rival", "third")}
    return Verdict(ahead_of_all(leads), "behind both")


def judged_in_parts(frame, check, searched=("own", "rival", "third")):
    with reading() as read:
        verdict = check(frame)
    return Criteria(searched={("real", "images"): dict.fromkeys(searched, {"lr": 0.1})}).judge(1, verdict, read, frame)


def test_one_loss_on_runs_that_meet_all_conditions_refutes_a_claim_over_several_rivals():
    """``third`` has not converged; the loss to ``rival`` is enough. The page names its numbers and its runs alone."""
    found = judged_in_parts(two_rivals(second=0.9), beats_both)
    assert found.status == "does not hold"
    assert found.numbers.startswith("one part is enough: -3.00 [") and found.numbers.endswith("] over rival")
    assert found.runs == ("own0", "own1", "own2", "rival0", "rival1", "rival2")


def test_a_claim_stays_undecided_if_no_part_that_fails_meets_the_conditions():
    found = judged_in_parts(two_rivals(second=0.9), beats_both, searched=("own", "third"))
    assert found.status == "undecided" and "By the numbers alone: does not hold, behind both" in found.numbers


@pytest.mark.parametrize(
    "searched, status", [(("own", "rival", "third"), "does not hold"), (("own", "rival"), "undecided")]
)
def test_a_claim_with_alternatives_is_refuted_only_if_every_alternative_is(searched, status):
    def check(frame):
        against = {name: lambda name=name: beats_one(frame, name) for name in ("rival", "third")}
        return any_holds(against.items())

    found = judged_in_parts(two_rivals(), check, searched)
    assert found.status == status
    assert ("rival: " in found.numbers) and ("third: " in found.numbers)


def beats_one(frame, name):
    lead = paired(frame, {"method": "own"}, {"method": name})
    return Verdict(lead.status, str(lead))


def test_a_part_of_a_part_can_refute():
    """Labels of the data sets and of the rivals are joined; the part that holds is not listed."""

    def check(frame):
        ahead = frame.assign(value=frame["value"].where(frame["method"] != "own", 99.0))
        return all_hold([("first", lambda: beats_both(ahead)), ("second", lambda: beats_both(frame))])

    found = judged_in_parts(two_rivals(second=0.9), check)
    assert found.status == "does not hold" and found.numbers.startswith("one part is enough: second: -3.00 [")


def test_a_variant_that_does_not_meet_a_condition_is_named():
    frame = rows()
    variant = frame[frame["method"] == "own"].assign(variant="alpha=0.5", key=lambda part: part["key"] + "v")
    variant.loc[variant["metric"] == "validation_change", "value"] = 0.9
    with reading() as read:
        lead = paired(
            pd.concat([frame, variant]), {"method": "own", "variant": "alpha=0.5"}, {"method": "own", "variant": ""}
        )
    found = Criteria(searched=SEARCHED).judge(1, Verdict(lead.status, str(lead)), read, pd.concat([frame, variant]))
    assert "last fifth of the rounds (own alpha=0.5)" in found.numbers


def test_missing_runs_are_the_reason():
    frame = rows()
    with reading() as read, pytest.raises(Missing) as missing:
        paired(frame, {"method": "own"}, {"method": "rival"})
        paired(frame, {"method": "own"}, {"method": "third"})
    found = Criteria(searched=SEARCHED).judge(1, Verdict("undecided", f"+3.00; {missing.value}"), read, frame)
    assert found.numbers == "runs are missing. Numbers: +3.00; acc_mean of third is not stored"


def test_a_data_set_that_is_left_out_is_not_the_reason():
    """The claim is about the stored data sets. What leaves it open is their interval."""
    lead = (3.0, -3.0, 1.0)
    other = rows(setting="others").assign(dataset="others")
    frame = pd.concat([rows(lead=lead), other[other["method"] == "own"]], ignore_index=True)
    with reading() as read:
        verdict = on_stored_datasets(lambda each: beats_one(each, "rival"))(frame)
    found = Criteria(searched=SEARCHED).judge(1, verdict, read, frame)
    assert "left out, others, real: acc_mean of rival is not stored" in found.numbers
    assert "runs are missing" not in found.numbers and "interval contains both answers" in found.numbers


def test_seeds_for_two_points():
    """Half of a 95 % interval of n seeds is t s / sqrt(n): 4.303 s / sqrt(3) for three."""
    assert seeds_needed(0.80) == 3  # 1.99
    assert seeds_needed(0.82) == 4  # 2.04, and 1.30 with four
    assert seeds_needed(50.0) == 10
    assert seeds_needed(float("nan")) == 3


def test_another_metric_does_not_lower_the_number_of_seeds():
    """A lead of 3, 5 and 4 points needs four seeds, also beside a number that is no accuracy."""
    frame = rows(lead=(3.0, 5.0, 4.0))
    with reading() as read:
        lead = paired(frame, {"method": "own"}, {"method": "rival"})
        interval(by_seed(frame, {"method": "own"}, "inert"))
    assert len(read.differences) == 2 and len(read.points) == 1
    assert "3 of 4 seeds" in Criteria(searched=SEARCHED).judge(1, Verdict(lead.status, "x"), read, frame).numbers


def test_holm_is_stricter_than_each_alone():
    """Three leads with p of 0.6, 1.5 and 1.7 %: of eight rivals the second needs 5 % / 7."""
    noise = pd.Series([-0.3, 0.3, 0.0])
    leads = {"a": interval(noise + 2.3), "b": interval(noise + 1.3), "c": interval(noise + 1.4)}
    assert set(holm(leads).values()) == {lead.status for lead in leads.values()} == {"holds"}
    strict = holm(leads | {name: interval(10 * noise + 0.1) for name in "defgh"})
    assert [name for name, status in strict.items() if status == "holds"] == ["a"]
    assert holm(leads, planned=8) == {name: strict[name] for name in leads}, "comparisons that are not stored yet count"
    assert set(strict.values()) == {"holds", "undecided"}
    assert interval(pd.Series([1.0, 2.0, 4.0])).p == pytest.approx(0.1181, abs=1e-4)  # t = 2.6458, 2 degrees of freedom


def test_a_verdict_that_lacks_results_says_so_and_not_that_its_interval_is_open():
    frame = rows()
    with reading() as read:
        lead = paired(frame, {"method": "own"}, {"method": "rival"})
        verdict = lacking(str(lead), "without third")
    found = Criteria(searched=SEARCHED).judge(1, verdict, read, frame)
    assert found.numbers == f"runs are missing. Numbers: {lead}; without third"


def test_a_small_preset_with_other_fields_decides_nothing():
    assert is_small("quick, changed") and is_small("ci") and not is_small("real, changed")


def test_two_equal_seeds_give_no_interval():
    used = Reading(differences=[pd.Series([3.0, 3.0])])
    assert list(why_open(Verdict("undecided", ""), used)) == ["two equal seeds give no interval"]
