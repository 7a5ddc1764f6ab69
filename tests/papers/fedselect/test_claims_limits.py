"""Claims 3 to 8 on small synthetic results: each check can hold, fail, and stay undecided."""

import math

import pandas as pd
import pytest

from pfl_core.algorithms.fedselect.gradltn import FedSelectGradLTN
from pfl_core.algorithms.fedselect.method import FedSelect
from pfl_core.papers.fedselect.claims.limits import SETTINGS
from pfl_core.papers.fedselect.comparison import COMPARISON
from pfl_core.papers.fedselect.paper import PAPER
from pfl_core.papers.fedselect.settings import VALIDATED
from pfl_core.study.claims import ClaimChecks, claims
from pfl_core.study.names import with_methods
from tests.papers.fedselect.invented import (
    ALL,
    CORRUPT,
    MINI,
    OFFICE,
    SETS,
    baselines,
    everywhere,
    exact,
    limits,
    rows,
    status,
    verdict,
)
from tests.study.invented import frame, noisy


def test_fields_may_be_columns():
    wide = pd.DataFrame(limits({0.05: 70.0, 0.3: 80.0, 0.5: 80.0, 0.8: 70.0})).drop(columns=["preset", "data", "stale"])
    wide = wide.assign(alpha=wide["variant"].str.removeprefix("alpha=").astype(float)).drop(columns=["variant"])
    found = claims(PAPER.claims)[3].check(wide)
    assert found.status == "holds" and found.numbers.startswith("cifar10: alpha=0.30 over 0.05 +10.00")


def test_a_file_without_variants_has_a_column_of_nan():
    results = frame(baselines(ALL | {"fedavg_ft": 66.0})).assign(variant=math.nan)
    assert claims(PAPER.claims)[7].check(results).status == "does not hold"


def test_stored_runs_with_validation_images_replace_those_on_cifar10():
    """Only they have searched rates, so the other runs must not influence the verdict."""
    plain = limits({0.05: 70.0, 0.3: 80.0, 0.5: 80.0, 0.8: 70.0})
    validated = limits({0.05: 80.0, 0.3: 70.0, 0.5: 70.0, 0.8: 80.0}, setting=VALIDATED, rounds=100)
    assert status(4, plain) == "holds"
    assert status(4, validated) == status(4, plain, validated) == "does not hold"
    assert verdict(4, plain, validated).numbers.startswith("cifar10, with validation (cifar10 (JPEG copy)), real: ")


def test_columns_are_checked():
    with pytest.raises(ValueError, match="results lack seed; expected a tidy frame"):
        claims(PAPER.claims)[3].check(frame().drop(columns="seed"))


def test_defaults_are_those_of_the_methods():
    found = {**vars(FedSelectGradLTN()), **vars(FedSelect())}
    for name in COMPARISON.defaults.keys() & found.keys():
        assert COMPARISON.defaults[name] == (str(found[name]) if name == "layers" else found[name])


# the claims

TABLE_2 = {0.05: 80.10, 0.3: 82.25, 0.5: 82.20, 0.8: 81.40}
NEAR = ALL | {"fedavg": 66.0}
ENDS = ("alpha=1;p=1", "alpha=0;buffer_policy=average")  # for claim 6 alone


def test_without_results_all_claims_are_undecided():
    for number in range(1, 23):
        assert verdict(number) == ("undecided", "nothing is stored"), number
        for metric in ("seconds", "acc_mean"):
            assert status(number, rows("fedselect", 1.0, "alpha=0.3", metric)) == "undecided", (number, metric)


def test_3_needs_all_nine_to_hold_and_one_to_fail():
    won = limits({0.3: 82.0, 0.5: 71.0})
    assert status(3, everywhere(won, baselines(ALL))) == "holds"
    some = verdict(3, won, baselines({"local": 70.0, "fedavg": 30.0}))
    assert some.status == "undecided" and "holds against those stored, without fedavg_ft, ditto" in some.numbers
    assert verdict(3, limits({0.3: 69.0, 0.5: 68.0}), baselines({"local": 70.0})).status == "does not hold"
    assert verdict(3, limits({0.3: 82.0, 0.5: 68.0}), baselines({"local": 70.0})).status == "undecided"


def test_3_one_limit_must_win_on_every_data_set():
    runs = everywhere(limits({0.3: 82.0, 0.5: 82.0}), baselines(ALL), sets=SETS[:3]) + baselines(ALL, **OFFICE)
    assert status(3, runs, limits({0.3: 80.0, 0.5: 60.0}, **OFFICE)) == "holds"
    assert status(3, runs, limits({0.3: 60.0, 0.5: 60.0}, **OFFICE)) == "does not hold"


def bearing_out(number):
    """Results on all data sets that the claim is about."""
    runs = [limits(TABLE_2 | {0.0: 30.0, 1.0: 70.0}), limits({1.0: (1.0,) * 3}, "personal_share"), baselines(ALL)]
    if number == 8:
        return everywhere(*runs, sets=SETS[:2]) + baselines(ALL | {"fedavg_ft": 66.0}, **MINI)
    return everywhere(*runs, sets=SETS if number in (1, 3, 5) else SETS[:1])


@pytest.mark.parametrize("number", [3, 4, 5, 6, 7, 8])
def test_other_experiments_and_ablations_change_nothing(number):
    runs = [bearing_out(number)]
    runs += [baselines(NEAR, **OFFICE)] if number == 7 else []
    others = [
        rows("fedselect", 99.0, "alpha=0.3;ranking=random"),
        rows("fedselect", 99.0, "alpha=0.5;masks=random"),
        rows("fedselect", 99.0, "masks=layers;layers=('conv1',)"),
        rows("fedselect", 99.0, "selection_scope=per_tensor"),
        *((rows("fedselect", 99.0, end) for end in ENDS) if number != 6 else ()),
        *(
            rows(name, 99.0, setting=setting)
            for name in ("fedselect", *ALL)
            for setting in ("cifar10, twice the epochs", "cifar10, 20 images", "workshop s=2")
        ),
    ]
    assert verdict(number, *runs, *others) == verdict(number, *runs)
    assert verdict(number, *runs).status == "holds"


def test_4_each_middle_limit_against_each_extreme():
    found = verdict(4, limits(TABLE_2))
    assert found.status == "holds"
    assert found.numbers.startswith("cifar10 (JPEG copy), real: alpha=0.30 over 0.05 +2.15 [+2.15, +2.15], ")
    assert verdict(4, limits(TABLE_2 | {0.8: 82.22})).status == "does not hold"
    assert verdict(4, limits(TABLE_2 | {0.8: (82.5, 81.0, 81.0)})).status == "undecided"
    assert verdict(4, limits({0.3: 82.0})).numbers.endswith("acc_mean of fedselect alpha=0.05 is not stored")


def test_5_the_better_of_each_pair():
    assert status(5, everywhere(limits(TABLE_2 | {0.5: 70.0}))) == "holds"
    assert verdict(5, limits(TABLE_2 | {0.8: 83.0})).status == "does not hold"
    assert verdict(5, limits(TABLE_2 | {0.8: (82.3, 82.4, 82.1)})).status == "undecided"


def test_5_must_hold_on_every_data_set():
    found = verdict(5, limits(TABLE_2), limits(TABLE_2 | {0.8: 83.0}, **OFFICE))
    assert found.status == "does not hold" and "office_home, real: " in found.numbers
    two_limits = limits({0.3: 80.0, 0.5: 80.0}, **OFFICE)
    assert status(5, everywhere(limits(TABLE_2), sets=SETS[:3]), two_limits) == "undecided"


@pytest.mark.parametrize("number", [1, 3, 5, 8])
def test_claims_about_several_data_sets_hold_only_once_all_are_stored(number):
    made = bearing_out(number)
    assert status(number, made) == "holds"
    one = verdict(number, [row for row in made if row["setting"] == "cifar10"])
    names = "cifar10_c, mini_imagenet" + ", office_home" * (number != 8)
    assert one.status == "undecided" and one.numbers.endswith(f"; holds there, without {names}")


def test_6_ends_of_the_range():
    fedavg, full = rows("fedavg", 30.0), limits({1.0: (1.0, 1.0, 1.0)}, "personal_share")
    assert verdict(6, limits({0.0: 30.0}), fedavg, full).status == "holds"
    assert verdict(6, limits({0.0: 30.5}), fedavg, full).status == "does not hold"
    partial = limits({1.0: (0.87, 0.87, 0.87)}, "personal_share")
    assert verdict(6, limits({0.0: 30.0}), fedavg, partial).status == "undecided"
    at_once = exact("fedselect", 1.0, "personal_share", "alpha=1;p=1")
    found = verdict(6, limits({0.0: 30.0}), fedavg, partial, at_once)
    assert found.status == "holds" and found.numbers.endswith("alpha=1 ends with a personal share of 1.0000 (p=1)")
    assert "alpha=1 is not stored" in verdict(6, limits({0.0: 30.0}), fedavg).numbers


def test_6_missing_results_do_not_hide_a_refutation():
    assert verdict(6, limits({0.0: 30.5}), rows("fedavg", 30.0)).status == "does not hold"
    full = limits({1.0: (1.0, 1.0, 1.0)}, "personal_share")
    elsewhere = limits({0.0: 30.5}, **CORRUPT) + rows("fedavg", 30.0, **CORRUPT)
    found = verdict(6, limits({0.0: 30.0}), rows("fedavg", 30.0), full, elsewhere)
    assert found.status == "does not hold" and "left out" not in found.numbers


def test_6_a_data_set_without_its_runs_is_left_out_and_named():
    runs = [limits({0.0: 30.0}), rows("fedavg", 30.0), limits({1.0: (1.0, 1.0, 1.0)}, "personal_share")]
    found = verdict(6, *runs, limits({0.3: 60.0}, **CORRUPT), rows("fedavg", 30.0, **CORRUPT))
    assert found.status == "holds" and "; left out, cifar10_c, real: acc_mean of fedselect alpha=0" in found.numbers
    assert verdict(6, *runs).numbers == found.numbers.partition("; left out")[0]
    nowhere = verdict(6, limits({0.3: 60.0}), limits({0.3: 60.0}, **CORRUPT)).numbers
    assert "cifar10 (JPEG copy), real: acc_mean of" in nowhere and "cifar10_c, real: acc_mean of" in nowhere


def test_6_is_undecided_on_a_difference_with_batch_norm():
    norm = dict(model="resnet18")
    full = limits({1.0: (1.0, 1.0, 1.0)}, "personal_share", **norm)
    assert verdict(6, limits({0.0: 30.5}, **norm), rows("fedavg", 30.0, **norm), full).status == "undecided"
    assert verdict(6, limits({0.0: 30.0}, **norm), rows("fedavg", 30.0, **norm), full).status == "holds"


def test_6_averaged_statistics_decide_with_batch_norm():
    norm = dict(model="resnet18")
    full = limits({1.0: (1.0, 1.0, 1.0)}, "personal_share", **norm)
    runs = [limits({0.0: 30.5}, **norm), rows("fedavg", 30.0, **norm), full]
    for value, expected in ((30.0, "holds"), (30.5, "does not hold")):
        averaged = rows("fedselect", value, "alpha=0;buffer_policy=average", **norm)
        assert status(6, *runs, averaged) == expected


def test_7_far_below_all_others():
    near = baselines(NEAR, **OFFICE)
    assert verdict(7, near, baselines(ALL)).status == "holds"
    assert verdict(7, near, baselines({"fedavg": 30.0, "local": 70.0})).status == "undecided"
    assert verdict(7, near, baselines({"fedavg": 62.0, "local": 70.0})).status == "does not hold"


def test_7_near_all_others_under_feature_shift():
    far = baselines(ALL)
    assert verdict(7, far, baselines(ALL, **OFFICE)).status == "does not hold"
    assert verdict(7, far, baselines(ALL | {"fedavg": 85.0}, **OFFICE)).status == "does not hold"  # far above: not near
    assert verdict(7, far, baselines(ALL | {"fedavg": noisy(62.0)}, **OFFICE)).status == "undecided"


def test_7_one_kind_of_data_set_can_only_refute():
    found = verdict(7, baselines(ALL), baselines(ALL, **CORRUPT))
    assert found.status == "undecided"
    assert found.numbers.endswith("; holds there, but no set with pure feature shift is stored")
    assert verdict(7, baselines(NEAR, **OFFICE)).numbers.endswith("but no set with label shift is stored")
    assert verdict(7, baselines(NEAR)).status == verdict(7, baselines(ALL, **OFFICE)).status == "does not hold"


def test_8_within_three_points_of_the_best():
    assert verdict(8, baselines(ALL | {"fedavg_ft": 66.0})).status == "does not hold"
    assert verdict(8, baselines(ALL | {"fedavg_ft": noisy(68.0)})).status == "undecided"
    assert verdict(8, baselines({"fedavg_ft": 69.0, "local": 70.0})).status == "undecided"
    assert verdict(8, baselines(ALL, **OFFICE)).status == "undecided"


def test_8_behind_on_mini_imagenet():
    """Being behind one baseline is enough there; keeping up needs all nine."""
    near, far = ALL | {"fedavg_ft": 68.0}, ALL | {"fedavg_ft": 66.0}
    both = everywhere(baselines(near), sets=SETS[:2])
    assert status(8, both, baselines({"fedavg_ft": 66.0, "local": 70.0}, **MINI)) == "holds"
    assert verdict(8, baselines(near, **MINI)).status == "does not hold"
    assert status(8, both, baselines({"fedavg_ft": 68.0, "local": 70.0}, **MINI)) == "undecided"
    assert verdict(8, baselines(near), baselines(far, **CORRUPT), baselines(far, **MINI)).status == "does not hold"


def test_a_claim_without_a_check_is_named():
    """As in the `data/paper/*.toml` of a new paper."""
    checks = ClaimChecks(COMPARISON, checks={n: check for n, check in PAPER.claims.checks.items() if n != 3})
    with pytest.raises(ValueError, match="fedselect: claim 3 has no check"):
        claims(checks)


def test_the_table_for_notebooks():
    shown = PAPER.claims_table(frame(limits(TABLE_2)), [4, 12])
    assert shown.index.tolist() == [4, 12]
    assert shown["ours"].tolist() == ["undecided", "undecided"]  # no validation images, no search
    numbers = claims(PAPER.claims)[3].check(frame(limits(TABLE_2))).numbers
    assert shown.loc[4, "numbers"].endswith(f"By the numbers alone: holds, {with_methods(numbers)}")
    assert shown.loc[4, "in the paper's tables"] == "yes"
    assert len(PAPER.claims_table(frame())) == 22


def test_the_papers_tables_get_the_verdicts_that_the_claims_state():
    """The published numbers as results: Tables 1 and 2 on three seeds without noise."""
    data = {
        name: dict(dataset=setting, data=setting, setting=setting)
        for name, setting in COMPARISON.datasets.items()
        if setting in SETTINGS
    }
    runs = []
    for cell in pd.concat([PAPER.table(1), PAPER.table(2)]).itertuples():
        if cell.table == "table2" or cell.method != "FedSelect":
            fields = data[cell.dataset]
            runs += rows(cell.key, cell.value, cell.variant.replace("0.30", "0.3").replace("0.50", "0.5"), **fields)
    found = {n: claims(PAPER.claims)[n - 1].check(frame(runs)).status for n in (1, 2, 3, 4, 5, 7, 8, 9)}
    no = "does not hold"
    assert found == {1: "holds", 2: no, 3: "holds", 4: "holds", 5: "holds", 7: no, 8: "holds", 9: no}


def test_partial_runs_decide_no_claim():
    results = frame(limits(TABLE_2))
    assert "alpha=0.30 over 0.05" in PAPER.claims_table(results, [4]).loc[4, "numbers"]
    assert PAPER.claims_table(results.assign(partial=True), [4]).loc[4, "numbers"] == "nothing is stored"
