"""Checks of pFedGate's claims on artificial results: each can hold, fail, and stay undecided."""

import pytest

from pfl_core.papers.pfedgate import experiments as pfedgate
from pfl_core.papers.pfedgate.claims import accuracy as checks_pfedgate
from pfl_core.papers.pfedgate.claims import studies as checks_pfedgate_studies
from pfl_core.papers.pfedgate.claims.accuracy import BASELINES
from pfl_core.papers.pfedgate.paper import PAPER
from pfl_core.study.claims import claims
from pfl_core.study.statistics import named
from tests.papers.pfedgate.invented import exact, gates, rows, status, verdict
from tests.study.invented import frame, noisy

BUDGETS = {1.0: 80.0, 0.5: 79.0, 0.3: 78.5, 0.1: 70.0}
MIXED = "budgets=0.5 and 0.1"


def others(value, metric="acc_pooled", names=BASELINES, **fields):
    return [row for name in names for row in rows(name, value, "", metric, **fields)]


def studies(text, values, metric="acc_pooled"):
    """pFedGate at s = 0.5 in the studies of one setting: {value: number}, the first in the main setting itself."""
    names = [f"cifar10, {text}={value:g}" for value in values]
    return [row for n, v in zip(["cifar10", *names[1:]], values.values(), strict=True)
            for row in rows("pfedgate", v, "", metric, setting=n)]  # fmt: skip


def per_seed(metric, s, values):
    return rows("pfedgate", values, f"keep_ratio={s:g}", metric)


def drift(first, last, s=0.5):
    return per_seed("drift_first", s, first) + per_seed("drift_last", s, last)


def gaps(mean, decile):
    """Gated minus global at every budget, on average and for the worst tenth."""
    both = (("local_global_gap", mean), ("local_global_gap_decile", decile))
    return [gates(dict.fromkeys(BUDGETS, value), metric) for metric, value in both]


SMALL = (0.010, 0.011, 0.012)
LARGE = (0.030, 0.031, 0.032)
SAME = (0.02, 0.02, 0.02)

CASES = [  # claim; results with which it holds, does not hold, is undecided
    (
        1,
        [gates(BUDGETS), others(60.0)],
        [gates(BUDGETS), rows("fedem", 90.0)],
        [gates(BUDGETS), others(60.0, names=BASELINES[:3])],
    ),
    (
        2,
        [gates(BUDGETS, "acc_bottom_decile"), others(60.0, "acc_bottom_decile")],
        [gates(BUDGETS, "acc_bottom_decile"), rows("fedem", 90.0, "", "acc_bottom_decile")],
        [gates(BUDGETS, "acc_bottom_decile"), others(noisy(77.0), "acc_bottom_decile")],
    ),
    (
        3,
        [exact("pfedgate", 0.45, "achieved_keep_ratio", "keep_ratio=0.5")],
        [exact("pfedgate", 0.51, "achieved_keep_ratio", "keep_ratio=0.5")],
        [gates(BUDGETS)],
    ),
    (4, [gates(BUDGETS)], [gates(BUDGETS | {0.3: 70.0})], [gates(BUDGETS | {0.3: noisy(78.0)})]),
    (
        5,
        [gates(BUDGETS), rows("fedavg", 60.0)],
        [gates(BUDGETS), rows("fedavg", 75.0)],
        [gates(BUDGETS), rows("fedavg", noisy(70.0))],
    ),
    (
        6,
        [gates({1.0: 5.0, 0.1: 9.0}, "client_spread"), gates(BUDGETS), rows("pfedgate", 75.0, MIXED)],
        [gates({1.0: 9.0, 0.1: 5.0}, "client_spread"), gates(BUDGETS), rows("pfedgate", 75.0, MIXED)],
        [gates({1.0: 5.0, 0.1: 9.0}, "client_spread"), gates(BUDGETS)],
    ),
    (
        9,
        [
            exact("pfedgate", 0.4, "kept_ratio"),
            studies("epochs", {1: (0.5,) * 3, 8: (0.6, 0.61, 0.62)}, "upload_ratio"),
        ],
        [exact("pfedgate", 0.5, "kept_ratio"), exact("pfedgate", 0.5, "upload_ratio")],
        [exact("pfedgate", 0.4, "kept_ratio"), exact("pfedgate", 0.5, "upload_ratio")],
    ),
    (
        14,
        [gates({1.0: 10.0, 0.5: 12.0, 0.3: 25.0}, "rounds_to_90"), rows("fedavg", 20.0, "", "rounds_to_90")],
        [gates({1.0: 19.0, 0.5: 12.0, 0.3: 25.0}, "rounds_to_90"), rows("fedavg", 20.0, "", "rounds_to_90")],
        [gates({1.0: noisy(11.0), 0.5: 12.0, 0.3: 25.0}, "rounds_to_90"), rows("fedavg", 20.0, "", "rounds_to_90")],
    ),
    (
        15,
        [gates(BUDGETS), *gaps(8.0, 8.0)],
        [*gaps(8.0, -5.0)],
        [*gaps(8.0, noisy(6.0))],
    ),
    (
        16,
        [studies("epochs", {1: 80.0, 2: 80.2, 4: 79.8, 8: 77.0})],
        [studies("epochs", {1: 80.0, 2: 80.2, 4: 79.8, 8: 80.5})],
        [studies("epochs", {1: 80.0, 2: noisy(80.0), 4: 79.8, 8: 77.0})],
    ),
    (
        17,
        [studies("alpha", {0.4: 80.0, 0.2: 79.0, 0.1: 78.5, 0.01: 77.5})],
        [studies("alpha", {0.4: 80.0, 0.2: 81.0, 0.1: 78.5, 0.01: 77.5})],
        [studies("alpha", {0.4: 80.0, 0.2: noisy(79.0), 0.1: 78.5, 0.01: 77.5})],
    ),
    (
        20,
        [drift(LARGE, SMALL), drift(LARGE, SMALL, 0.3)],
        [drift(SMALL, LARGE), drift(SMALL, LARGE, 0.3)],
        [drift(SAME, SAME), drift(SAME, SAME, 0.3)],
    ),
    (
        21,
        [
            *(rows("pfedgate", v, "", f"acc_pooled_{n}") for n, v in (("trained", 85.0), ("merged", 80.0))),
            others(75.0, names=("fedavg", "fedavg_ft")),
        ],
        [
            *(rows("pfedgate", v, "", f"acc_pooled_{n}") for n, v in (("trained", 78.0), ("merged", 80.0))),
            others(75.0, names=("fedavg", "fedavg_ft")),
        ],
        [*(rows("pfedgate", v, "", f"acc_pooled_{n}") for n, v in (("trained", 85.0), ("merged", 80.0)))],
    ),
    (
        22,
        [exact("pfedgate", 1.0, "distinct_masks", "keep_ratio=0.3")],
        [exact("pfedgate", 2.0, "distinct_masks", "keep_ratio=0.3")],
        [exact("pfedgate", 1.0, "distinct_masks", "keep_ratio=0.5")],
    ),
    (
        23,
        [rows("pfedgate", (-5.0, -5.1, -4.9), "", "sorted_change"), rows("pfedgate", 0.5, "", "order_range")],
        [rows("pfedgate", (0.1, 0.11, 0.1), "", "sorted_change"), rows("pfedgate", 0.9, "", "order_range")],
        [exact("pfedgate", 0.0, "sorted_change"), exact("pfedgate", 0.0, "order_range")],
    ),
]


def blocks(values):
    """Accuracies by (s, B)."""
    return [
        row
        for (s, num), v in values.items()
        for row in rows("pfedgate", v, f"keep_ratio={s:g}" + (f";blocks_per_tensor={num}" if num != 5 else ""))
    ]


FIVE = {(0.5, 5): 80.0, (0.3, 5): 79.0, (0.5, 2): 75.0, (0.3, 2): 74.0, (0.5, 10): 78.0, (0.3, 10): 77.0}
MASKED = rows("fedmask", 70.0, "") + rows("fedmask", 66.0, "keep_ratio=0.3")
CASES.append(
    (18, [blocks(FIVE), MASKED], [blocks(FIVE | {(0.5, 2): 85.0}), MASKED], [blocks(FIVE), rows("fedmask", 70.0)])
)


@pytest.mark.parametrize(("number", "good", "bad", "open_"), CASES, ids=lambda c: c if isinstance(c, int) else "")
def test_each_check_can_hold_fail_and_stay_undecided(number, good, bad, open_):
    assert status(number, *good) == "holds", verdict(number, *good).numbers
    assert status(number, *bad) == "does not hold", verdict(number, *bad).numbers
    assert status(number, *open_) == "undecided", verdict(number, *open_).numbers


def test_9_is_judged_by_the_largest_number_of_epochs():
    kept = exact("pfedgate", 0.4, "kept_ratio")
    four = studies("epochs", {1: (0.5,) * 3, 2: (0.4,) * 3, 4: (0.6, 0.61, 0.62)}, "upload_ratio")
    assert status(9, kept, four) == "holds" and "with 4 epochs" in verdict(9, kept, four).numbers
    eight = studies("epochs", {1: (0.5,) * 3, 8: (0.4, 0.41, 0.42)}, "upload_ratio")[3:]
    assert status(9, kept, four, eight) == "does not hold"


def elsewhere(name, runs):
    return [row | dict(setting=name, dataset=name, data=name) for run in runs for row in run]


@pytest.mark.parametrize("number", [4, 5, 6, 9, 15, 16, 17, 18])
def test_a_study_is_judged_on_the_data_sets_of_its_table(number):
    """FEMNIST has only Table 1's budgets and Table 13's blocks, EMNIST only B = 5; this leaves no claim undecided."""
    good = next(case[1] for case in CASES if case[0] == number)
    other = "emnist" if number == 18 else "femnist"
    some = [gates({1.0: 80.0, 0.5: 79.0, 0.3: 78.5}), rows("fedavg", 60.0)]
    assert verdict(number, *good, elsewhere(other, some)) == verdict(number, *good)


def test_all_checks_of_these_modules_have_a_case():
    checked = {claim.number for claim in claims(PAPER.claims) if claim.check is not None}
    assert {case[0] for case in CASES} >= {1, 2, 3, 4, 5, 6, 9, *range(14, 19), 20, 21, 22, 23} & checked


def test_a_failing_claim_reports_the_clearest_loss():
    close = rows("local", (90.0, 60.0, 60.0))  # the smallest mean lead, with a wide interval
    text = verdict(1, gates(BUDGETS), rows("fedem", 81.0), close).numbers
    assert "clearest loss" in text and "over FedEM" in text


@pytest.mark.parametrize("preset, expected", [("paper", "does not hold"), ("real", "undecided")])
def test_a_loss_counts_at_the_budget_whose_rates_were_searched(preset, expected):
    """At s = 0.3 with the rates of s = 0.5 a loss is open; at preset paper the rates are those of each s."""
    rivals = others(85.0, preset=preset)
    assert status(1, gates({1.0: 90.0, 0.5: 89.0, 0.3: 80.0}, preset=preset), rivals) == expected
    assert status(1, gates({1.0: 90.0, 0.5: 80.0, 0.3: 89.0}, preset=preset), rivals) == "does not hold"
    assert status(1, gates({1.0: 90.0, 0.5: 89.0, 0.3: 88.0}, preset=preset), rivals) == "holds"


def test_other_readings_and_options_are_ignored():
    code = rows("pfedgate", 99.0, "reading=authors_code;keep_ratio=0.5")
    assert status(5, gates(BUDGETS), code, rows("fedavg", 75.0)) == "does not hold"


def test_baselines_without_kept_momentum_are_ignored():
    restarted = rows("fedavg", 99.0, "keep_momentum=False"), rows("fedem", 99.0, "keep_momentum=False")
    assert status(1, gates(BUDGETS), others(60.0), *restarted) == "holds"
    assert status(5, gates(BUDGETS), rows("fedavg", 60.0), restarted[0]) == "holds"


def test_fedmask_is_compared_at_s_0_5():
    assert status(1, gates(BUDGETS), others(60.0), rows("fedmask", 99.0, "keep_ratio=0.3")) == "holds"


def test_one_seed_is_undecided():
    one = [row for row in gates(BUDGETS) + rows("fedavg", 60.0) if row["seed"] == 0]
    assert status(5, one) == "undecided"


def test_settings_of_the_checks_are_those_of_the_experiments():
    assert set(checks_pfedgate.SETTINGS) == set(pfedgate.DATASETS)
    stand_ins = {"fashion_mnist", "mnist"}
    assert set(checks_pfedgate.STUDIED) - stand_ins == set(pfedgate.studied("paper"))
    assert set(checks_pfedgate_studies.SPLIT) - stand_ins == set(pfedgate.studied_blocks("paper"))


def test_preset_paper_runs_each_table_on_its_data_sets():
    def where(what):
        return {run.setting.partition(",")[0] for run in pfedgate.sparsity_studies("paper", [0], {}) if what(run)}

    assert where(lambda run: run.method.get("blocks_per_tensor", 5) != 5) == {"cifar10", "femnist"}
    assert where(lambda run: run.method["name"] == "fedmask") == {"cifar10", "femnist"}
    assert where(lambda run: "epochs=" in run.setting or run.method.get("keep_ratio") == 0.1) == {"cifar10", "emnist"}


def test_nothing_stored_is_undecided():
    assert {claim.check(frame()).status for claim in claims(PAPER.claims)} == {"undecided"}


def test_a_missing_run_is_named_as_in_the_paper():
    assert named(checks_pfedgate.FEDAVG) == "fedavg"
    assert named(checks_pfedgate.baseline("fedmask") | {"keep_ratio": 0.3}) == "fedmask s=0.3"
    assert named(checks_pfedgate.gate(0.3, blocks_per_tensor=2.0)) == "pfedgate s=0.3 B=2"
