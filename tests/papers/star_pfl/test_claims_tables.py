"""Checks of Star-PFL's claims on artificial results: each can hold, fail, and stay undecided. Comparison tables."""

import math
from functools import partial

import pytest

from pfl_core.papers.star_pfl.claims.tables import ALPHAS, BASELINES, LIKENESS, POINTS, TASKS
from pfl_core.papers.star_pfl.comparison import COMPARISON
from pfl_core.papers.star_pfl.paper import PAPER
from pfl_core.papers.star_pfl.settings import SETTINGS
from pfl_core.study.compare import compare
from tests.study import invented
from tests.study.invented import frame, noisy

verdict, status = partial(invented.verdict, PAPER), partial(invented.status, PAPER)
SETS = {"axial": "organamnist", "sagital": "organsmnist"}
BOTH = tuple(POINTS.values())
COMM, FLOPS, ROUNDS = "comm_mb_per_client_per_round", "flops_1e10_per_round", "rounds_to_convergence"


def rows(method, value, metrics=BOTH, alpha=0.1, setting="axial", **fields):
    """A run's metrics for each seed; `value` is one number, or one per seed."""
    data = SETS.get(setting, "organsmnist")
    known = dict(
        paper="star_pfl", dataset=data, setting=setting, clients=20, dirichlet=alpha, model="lenet_star", data=data,
        preset="paper", rounds=400, stale=False, method=method, variant="",
    )  # fmt: skip
    names = [metrics] if isinstance(metrics, str) else metrics
    return [row for name in names for row in invented.each_seed(known | {"metric": name} | fields, value)]


def methods(values, metrics=BOTH, alphas=(0.1,), **fields):
    """{method: value} at each alpha; baselines without a value have 80."""
    full = dict.fromkeys(BASELINES, 80.0) | values
    return [row for a in alphas for name, value in full.items() for row in rows(name, value, metrics, a, **fields)]


# ---- settings and experiments --------------------------------------------------------------------------------------


def test_the_settings_and_methods_of_the_checks_exist():
    assert set(TASKS) | {"labels"} <= SETTINGS.settings["paper"].keys()
    results = PAPER.specs("04_accuracy", "paper", [0])
    assert {one.method["name"] for one in results} == {"star_pfl", *BASELINES}
    assert {(one.setting, one.partition["alpha"]) for one in results} == {(s, a) for s in TASKS for a in ALPHAS}
    assert {one.method["name"] for one in PAPER.specs("02_mask_similarity", "ci")} == {LIKENESS["method"]}
    assert not any(PAPER.variant(one) for one in results), "the paper's settings have no variant"


def test_without_results_every_claim_is_undecided():
    for number in (1, 2, 3, 4, 5, 7, 8):
        assert status(number) == "undecided", number
        assert status(number, rows("star_pfl", 90.0, "acc_mean")) == "undecided", number


# ---- 1, 2, 8: accuracy ----------------------------------------------------------------------------------------------


def test_1_first_or_second():
    second = {"star_pfl": 85.0, "fedap": 86.0}
    assert (
        verdict(1, methods(second, alphas=ALPHAS)).numbers.count("rank 2; clearly worse: 4 of 5, clearly better: 1")
        == 6
    )
    assert status(1, methods(second, alphas=ALPHAS)) == "holds"
    assert status(1, methods(second | {"fedbn": 86.0}, alphas=ALPHAS)) == "does not hold"
    assert status(1, methods({"star_pfl": noisy(80.5)}, alphas=ALPHAS)) == "undecided"
    assert status(1, methods(second, alphas=ALPHAS[:2])) == "undecided"


def test_1_must_hold_in_all_settings_and_at_both_points():
    good, bad = methods({"star_pfl": 85.0}, alphas=ALPHAS), {"star_pfl": 70.0}
    assert status(1, good, methods({"star_pfl": 85.0}, alphas=ALPHAS, setting="sagital")) == "holds"
    result = verdict(1, good, methods(bad, alphas=ALPHAS, setting="sagital"))
    assert result.status == "does not hold" and "organsmnist, paper" in result.numbers
    first = methods({"star_pfl": 85.0}, BOTH[0], ALPHAS)
    assert status(1, first, methods(bad, BOTH[1], ALPHAS)) == "does not hold"
    assert status(1, first) == "undecided"


def test_1_ignores_ablations():
    good = methods({"star_pfl": 85.0}, alphas=ALPHAS)
    ablated = rows("star_pfl", 10.0, variant="thaw=False")
    other = rows("star_pfl", 10.0, setting="traces")
    assert verdict(1, good, ablated, other) == verdict(1, good)


def test_2_above_the_baselines_mean():
    assert status(2, methods({"star_pfl": 81.0})) == "holds"
    assert (
        "+3.00 [+3.00, +3.00] points over 3 settings" in verdict(2, methods({"star_pfl": 83.0}, alphas=ALPHAS)).numbers
    )
    assert status(2, methods({"star_pfl": 79.0})) == "does not hold"
    assert status(2, methods({"star_pfl": noisy(80.0)})) == "undecided"
    assert status(2, methods({"star_pfl": 81.0}), methods({"star_pfl": 78.0}, setting="sagital")) == "does not hold"
    mixed = methods({"star_pfl": 81.0}, BOTH[0]), methods({"star_pfl": 79.0}, BOTH[1])
    assert status(2, *mixed) == "does not hold"


def slopes(local, fedavg, **fields):
    results = [rows("local", v, alpha=a, **fields) for a, v in zip(ALPHAS, local, strict=True)]
    return [
        row
        for part in (*results, *(rows("fedavg", v, alpha=a) for a, v in zip(ALPHAS, fedavg, strict=True)))
        for row in part
    ]


def test_8_larger_alpha_is_more_balanced():
    assert verdict(8, slopes((89, 88, 83), (90, 91, 92))) == (
        "holds",
        "organamnist, paper: points per decade of alpha: local -3.00 [-3.00, -3.00], fedavg +1.00 [+1.00, +1.00]",
    )
    assert status(8, slopes((83, 88, 89), (90, 91, 92))) == "does not hold"
    assert status(8, slopes((89, 88, 83), (92, 91, 90))) == "does not hold"
    assert status(8, slopes((noisy(89), 89, 89), (90, 91, 92))) == "undecided"
    assert status(8, rows("local", 80.0, alpha=0.1), rows("fedavg", 80.0, alpha=0.1)) == "undecided"


# ---- 3, 4, 5: costs -------------------------------------------------------------------------------------------------


def totals(comm, flops, setting="axial"):
    """Star-PFL's totals; each baseline's are 100 but for Local, which sends nothing."""
    everyone = dict.fromkeys(BASELINES, (100.0,) * 3)
    results = methods(everyone | {"local": (0.0,) * 3, "star_pfl": comm}, "comm_total", setting=setting)
    results += methods(everyone | {"local": (0.0,) * 3, "star_pfl": comm}, "bytes_total", setting=setting)
    results += methods({"star_pfl": 150.0}, ROUNDS, setting=setting)
    return results + methods(everyone | {"star_pfl": flops}, "flops_total", setting=setting)


def test_3_cheaper_than_the_baselines_mean():
    result = verdict(3, totals((40.0, 44.0, 36.0), (90.0, 91.0, 89.0)))
    assert result.status == "holds"
    assert (
        result.numbers.startswith("communication 50.00 % less [+")
        and "] (paper: 36.3 % less), computation 10.00 % less [" in result.numbers
    )
    dear = (90.0, 91.0, 89.0)  # Local's 0 counts: the mean is 80
    more = verdict(3, totals(dear, (90.0, 91.0, 89.0)))
    assert more.status == "does not hold" and more.numbers.startswith("communication 12.50 % more [+")
    assert status(3, totals((40.0, 40.0, 40.0), (105.0, 106.0, 107.0))) == "does not hold"
    assert status(3, totals((40.0, 120.0, 80.0), (90.0, 91.0, 89.0))) == "undecided"


def test_3_is_judged_by_the_mean_over_data_sets():
    one, other = (
        totals((40.0, 44.0, 36.0), (90.0, 91.0, 89.0)),
        totals((88.0, 90.0, 92.0), (90.0, 91.0, 89.0), "sagital"),
    )
    result = verdict(3, one, other)
    assert result.status == "holds" and "communication 18.75 % less [" in result.numbers


def test_3_without_validation_data_is_undecided():
    assert status(3, totals((math.nan,) * 3, (90.0, 91.0, 89.0))) == "undecided"


def test_4_least_in_a_round():
    least = methods({"star_pfl": 2.2}, COMM), methods({"star_pfl": 2.9, "local": 1.0}, FLOPS)
    found = verdict(4, *least)
    assert found.status == "holds"  # Local does not count: it is not federated
    assert "communication in MiB of 20 clients in a round: 2.2, the others minus it" in found.numbers
    assert status(4, *least[:1], methods({"star_pfl": 90.0}, FLOPS)) == "does not hold"
    assert status(4, methods({"star_pfl": 3.0, "lotteryfl": 2.0}, COMM), least[1]) == "does not hold"
    assert status(4, methods({"star_pfl": noisy(80.0)}, COMM), least[1]) == "undecided"
    assert status(4, least[0]) == "undecided"


def test_5_between_fedbn_fedap_and_lotteryfl():
    def rounds(star):
        return methods({"star_pfl": star, "fedbn": 389.0, "fedap": 233.0, "lotteryfl": 98.0, "fedavg": 94.0}, ROUNDS)

    result = verdict(5, rounds(174.0))
    assert result.status == "holds" and "star_pfl after lotteryfl by +76.00" in result.numbers
    assert status(5, rounds(250.0)) == "does not hold"
    assert status(5, rounds(90.0)) == "does not hold"
    assert status(5, rounds((174.0, 60.0, 240.0))) == "undecided"


def test_3_and_5_are_undecided_if_a_run_is_best_in_its_last_round():
    short = methods({"star_pfl": (174.0, 400.0, 174.0), "fedbn": 389.0, "fedap": 233.0}, ROUNDS)
    result = verdict(5, short)
    assert result.status == "undecided" and result.numbers.endswith("too short, best in the last round: star_pfl")
    cheap = [row for row in totals((40.0, 44.0, 36.0), (90.0, 91.0, 89.0)) if row["metric"] != ROUNDS]
    assert status(3, cheap, short) == "undecided"


# ---- 7: like labels, like sets --------------------------------------------------------------------------------------


def likeness(p, contrast=0.2, **fields):
    name, frame = LIKENESS["method"], dict(alpha=math.nan, setting="labels") | fields
    return rows(name, p, "stable_contrast_p", **frame) + rows(name, contrast, "stable_contrast", **frame)


def test_7_beyond_chance():
    result = verdict(7, likeness((0.001, 0.01, 0.05)))
    assert result == (
        "holds", "organsmnist, paper: same label minus other, sets +0.200, p at most 0.050 in 3 seeds",
    )  # fmt: skip
    assert status(7, likeness((0.4, 0.3, 0.06))) == "does not hold"
    assert status(7, likeness((0.4, 0.01, 0.01))) == "undecided"
    assert status(7, likeness((0.01,))) == "holds"  # a permutation test needs one seed


def test_7_ignores_other_splits_and_longer_windows():
    others = [likeness((0.9,) * 3, setting="labels, two each"), likeness((0.9,) * 3, variant="history_len_local=20")]
    assert status(7, likeness((0.01,) * 3), *others) == "holds"


# ---- comparison with Tables 2, 3 ------------------------------------------------------------------------------------


def cell(stored, number, method, alpha=0.1, dataset="Axial", metric=None):
    result = [
        row
        for row in compare(COMPARISON, stored)
        if (row["table"], row["method"], row["dataset"]) == (f"table{number}", method, dataset)
        and row["variant"] == f"alpha={alpha:g}"
        and metric in (None, row["metric"])
    ]
    assert len(result) == 1
    return result[0]


def test_every_cell_of_both_tables_can_be_filled():
    stored = [
        row for s in TASKS for row in methods({"star_pfl": 85.0}, (*BOTH, COMM, FLOPS, ROUNDS), ALPHAS, setting=s)
    ]
    rows_ = compare(COMPARISON, frame(stored))
    assert len(rows_) == len(PAPER.table()) == 72
    assert all(row["ours"] is not None and row["seeds"] == [0, 1, 2] for row in rows_)


def test_table_2_is_compared_for_each_alpha_as_fractions():
    stored = frame(*(rows("star_pfl", 80.0 + i, alpha=a) for i, a in enumerate(ALPHAS)))
    assert [cell(stored, 2, "Star-PFL", a)["ours"] for a in ALPHAS] == pytest.approx([0.80, 0.81, 0.82])
    assert (
        cell(stored, 2, "Star-PFL", 0.1)["paper"]
        == PAPER.table(2)
        .query("dataset == 'Axial' and method == 'Star-PFL' and variant == 'alpha=0.1'")["value"]
        .item()
    )
    assert cell(stored, 2, "FedBN")["ours"] is None


def test_table_3_is_compared_in_its_units():
    stored = frame(rows("fedavg", (3.403,) * 3, COMM), rows("local", (0.0,) * 3, COMM), rows("star_pfl", 150.0, ROUNDS))
    assert cell(stored, 3, "FedAvg", metric=COMM)["ours"] == pytest.approx(3.403)
    assert (cell(stored, 3, "Local", metric=COMM)["paper"], cell(stored, 3, "Local", metric=COMM)["ours"]) == (
        None,
        0.0,
    )
    assert cell(stored, 3, "Star-PFL", metric=ROUNDS)["ours"] == pytest.approx(150.0)


@pytest.mark.parametrize(
    "other",
    [dict(dataset="mnist", data="mnist"), dict(variant="thaw=False"), dict(setting="traces"), dict(preset="ci")],
    ids=["a stand-in", "an ablation", "another setting", "ci"],
)
def test_stand_ins_and_ablations_fill_no_cell(other):
    assert cell(frame(rows("star_pfl", 80.0, **other)), 2, "Star-PFL")["ours"] is None
