"""Sentences of the first screens: numbers from the frames, for one seed and for several, and with runs missing."""

import math

import pandas as pd
import pytest

from pfl_core.papers.star_pfl.paper import PAPER
from pfl_core.papers.star_pfl.results import rounds, sentences
from pfl_core.study.names import NAMES


def accuracies(seeds=(0,), alphas=(0.01, 0.1), left_out=()):
    """Star-PFL is second after aggregation and first after local training; Local is first, then second."""
    scores = {"star_pfl": (80.0, 90.0), "local": (85.0, 85.0), "fedavg": (70.0, 84.0)}
    rows = [
        ("MNIST (for axial)", method, NAMES[method], alpha, seed, merged + seed, trained + seed)
        for method, (merged, trained) in scores.items()
        for alpha in alphas
        for seed in seeds
        if (method, alpha, seed) not in left_out
    ]
    return pd.DataFrame(rows, columns=["task", "method", "label", "alpha", "seed", *rounds.POINTS])


def test_frozen_shares_are_compared_with_noise():
    shares = pd.DataFrame(
        {"seed 0": {"frozen_local": 8.0, "chance_local": 12.0, "frozen_global": 4.0, "cancelled_local": 6.0}}
    )
    clients, server = sentences.frozen(shares.assign(**{"seed 1": shares["seed 0"] + 1}))
    assert clients == (
        "On the clients, mean over rounds, 2 seeds: 8.5 % of the entries are frozen; updates of noise alone would "
        "freeze 12.5 %; without entries that never moved, 6.5 % are frozen."
    )
    assert server == "On the server, mean over rounds, 2 seeds: 4.5 % of the entries are frozen."


def test_the_correlation_of_size_and_score_is_left_out_where_it_is_not_stored():
    both = pd.DataFrame({"seed 0": {"size_correlation": 0.1, "size_correlation_global": -0.2}})
    (text,) = sentences.size_and_score(both)
    assert "1 seed: +0.10 on the clients (mean absolute value), -0.20 on the server;" in text
    (text,) = sentences.size_and_score(both.loc[["size_correlation"]])
    assert "server" not in text and sentences.size_and_score(both.iloc[:0]) == []


def test_similarity_names_the_largest_p_value_of_the_seeds():
    columns = [
        "stable_share",
        "chance_share",
        "rank_contrast",
        "rank_contrast_p",
        "stable_contrast",
        "stable_contrast_p",
    ]
    index = pd.MultiIndex.from_product([["one label a group"], [0, 1]], names=["split", "seed"])
    last = pd.DataFrame([[0.1, 0.2, 0.4, 0.001, 0.1, 0.01], [0.1, 0.2, 0.6, 0.002, 0.3, 0.04]], index, columns)
    kinds = [(0, kind, common) for kind in ("all stable", "those that moved") for common in ("yes", "no")]
    levels = pd.MultiIndex.from_tuples(kinds, names=["seed", "sets", "common class"])
    sets = pd.DataFrame({"corrected": [0.7, 0.5, 0.2, 0.1]}, levels)
    contrast, overlap, share = sentences.similarity(last, sets)
    assert "One label a group, 2 seeds" in contrast and "+0.50 (p at most 0.002)" in contrast
    assert "+0.20 (p at most 0.040)" in contrast and "10.0 % of the entries are stable" in share
    assert overlap == (
        "The corrected overlap is 0.70 with a common class and 0.50 without. "
        "Of the entries that ever moved, it is 0.20 and 0.10."
    )
    assert "ever moved" not in sentences.similarity(last, sets.assign(corrected=[0.7, 0.5, 0.2, math.nan]))[1]
    assert sentences.similarity(last, sets, "Dirichlet split") == []


def test_patterns_say_how_often_noise_is_frozen():
    trained = pd.DataFrame({"H = 4": {"noise": 90.0, "dead": 20.0}, "H = 5": {"noise": 85.0, "dead": 20.0}})
    lines = sentences.patterns(trained, 0.1, 40)
    assert lines[0].startswith("Share of 40 rounds") and lines[1] == "  H = 4: noise 90 %, dead 20 %"
    assert "frozen in 10 to 15 % of the rounds" in lines[-1]
    assert len(sentences.patterns(trained.assign(**{"H = 5": 100.0}), -1.0, 40)) == 3, "noise that is never frozen"


def test_standings_are_those_of_the_typical_alpha_at_each_scoring_point():
    merged, trained = sentences.accuracy(accuracies(seeds=(0, 1)))
    assert merged == (
        "MNIST (for axial), α = 0.1, after aggregation, 2 seeds: "
        "Local is highest of 3, 85.5 %; Star-PFL 80.5 %; FedAvg 70.5 %."
    )
    assert "after local training, 2 seeds: Star-PFL is highest of 3, 90.5 %" in trained
    assert "α = 0.01" in sentences.accuracy(accuracies(alphas=(0.01,)))[0]


def test_standings_leave_out_seeds_that_not_all_methods_have():
    part = accuracies(seeds=(0, 1), left_out=[("local", 0.1, 1)])
    assert "1 seed: Local is highest of 3, 85.0 %; Star-PFL 80.0 %" in sentences.accuracy(part)[0]
    apart = accuracies(seeds=(0,)).query("method != 'local'")
    assert "FedAvg" in sentences.accuracy(apart)[0] and "of 2" in sentences.accuracy(apart)[0]
    part_time = accuracies().assign(acc_mean_picked_trained=math.nan)
    assert len(sentences.accuracy(part_time)) == 1, "after local training nothing is scored"


def test_places_near_the_top_depend_on_the_scoring_point():
    table = accuracies()
    own = table["method"] == "star_pfl"
    mixed = table["acc_mean_picked_merged"].mask(own, table["acc_mean_picked_trained"])
    cells = rounds.with_published(PAPER.table(2), rounds.by_point(table))
    (only,) = sentences.near_the_top(table.assign(acc_mean_picked=mixed), cells)
    assert only == (
        "Star-PFL is first or second of 3 methods in 2 of 2 settings if each method is scored as its code does, "
        "in 2 of 2 if all are scored after aggregation, in 2 of 2 if all are scored after local training "
        "(the paper's Table 2: 2 of 2)."
    )
    third = table.assign(acc_mean_picked=mixed, **{score: table[score].mask(own, 0.0) for score in rounds.POINTS})
    (only,) = sentences.near_the_top(third, rounds.with_published(PAPER.table(2), rounds.by_point(third)))
    assert only.startswith("The paper's order appears mainly where scoring points are mixed: Star-PFL is first or")


def test_ranks_are_given_beside_the_papers():
    table = accuracies(seeds=(0, 1), left_out=[("local", 0.01, 1), ("star_pfl", 0.01, 0), ("star_pfl", 0.01, 1)])
    cells = rounds.with_published(PAPER.table(2), rounds.by_point(table))
    assert sentences.ranks(cells) == [
        "Rank of Star-PFL among 3 methods at α = 0.01, 0.1:",
        "  MNIST (for axial): the paper -, 1; after aggregation -, 2; after local training -, 1.",
    ]


def costs(late=False):
    methods = ("star_pfl", "local", "fedavg", "fedbn", "fedap", "lotteryfl")
    table = pd.DataFrame({"method": methods, "label": [NAMES[m] for m in methods], "seed": 0, "task": "axial"})
    sent = table["method"].map({"star_pfl": 2.0, "local": 0.0}).fillna(4.0)
    return table.assign(
        comm_mb_per_client_per_round=sent, flops_1e10_per_round=1.0, upload_bytes=sent, mask_bytes=0.0,
        download_bytes=4.0, comm_total=10 * sent, flops_total=10.0, rounds_to_convergence=10, rounds=10 if late else 20,
    )  # fmt: skip


def test_the_totals_of_several_seeds_have_their_range():
    dear = costs().assign(seed=1)
    dear.loc[dear["method"] == "star_pfl", ["comm_total", "flops_total"]] = [64.0, 9.0]  # against 32 and 10
    _, total = sentences.costs(pd.concat([costs(), dear]), {})
    assert "(seed by seed, it sends 37.5 % less to 100.0 % more, and computes 10.0 % less to 0.0 % less)." in total


def test_costs_are_compared_with_fedavg_and_with_the_baselines_mean():
    per_round, total = sentences.costs(costs(), {"axial": 60.0})
    assert per_round == (
        "axial, 1 seed: in a round, compared with FedAvg, Star-PFL sends 50.0 % of the values (as the paper counts), "
        "moves 75.0 % of all bytes (with masks and downloads), computes 100.0 % of the operations. "
        "Noise alone would send 60.0 % of the values."
    )
    assert total == (  # 20 against (0 + 4 * 40) / 5 = 32
        "axial, until the best round: Star-PFL sends 37.5 % less and computes 0.0 % less than the mean of the 5 "
        "baselines."
    )
    assert "6 of 6 methods are best in the last round" in sentences.costs(costs(late=True), {})[1]


def test_costs_of_missing_runs():
    (only,) = sentences.costs(costs().query("method != 'fedap'"), {})
    assert "Noise" not in only and sentences.costs(costs().query("method != 'fedavg'"), {}) == []


def test_the_abstracts_percentages_follow_from_the_printed_table():
    published = rounds.published_costs(PAPER.table(3))
    less = rounds.published_savings(rounds.published_totals(published))
    assert less.mean().tolist() == pytest.approx([36.3, 18.3], abs=0.05)
    assert sentences.published_costs(less) == (
        "The paper's Table 3, until convergence: Star-PFL sends 36.3 % less and computes 18.3 % less than the mean of "
        "the 5 baselines (mean of Axial and Sagittal)."
    )


def test_ablations_name_the_readings_that_differ_most():
    labels = {
        "Star-PFL": 80.0,
        "never thawed": 78.0,
        "Local": 82.0,
        "A8 mean of the active": 81.0,
        "authors' code": 79.5,
    }
    runs = pd.DataFrame({"label": list(labels), "seed": 0, "acc_mean_picked_merged": list(labels.values())})
    runs = runs.assign(acc_mean_picked_trained=90.0, frozen_local=6.0, chance_local=11.0, frozen_global=3.0)
    merged, trained = sentences.ablations(runs)
    assert merged == (
        "Accuracy after aggregation, 1 seed: Star-PFL 80.0 %; never thawed 78.0 %; Local 82.0 %. "
        "2 other readings: -0.5 (authors' code) to +1.0 (A8 mean of the active) points."
    )
    *_, shares = sentences.ablations(runs.assign(chance_global=13.0))
    assert "by clients: 6.0 % (noise alone 11.0 %); frozen by the server: 3.0 % (noise alone 13.0 %)" in shares
    assert sentences.ablations(runs[runs["label"] != "Star-PFL"]) == []
