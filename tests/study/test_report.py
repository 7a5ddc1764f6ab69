"""Results pages: equal to what `pfl report` writes, and numbers as text."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pfl_core.cli import main
from pfl_core.papers import PAPERS, STUDIES, paper, study
from pfl_core.runs import Record, RunSpec, Store
from pfl_core.runs.provenance import ROOT
from pfl_core.study import claims, report
from pfl_core.study.report import Evidence, _deciding, markdown


@cache
def committed(name: str) -> Evidence:
    return Evidence.of(paper(name), Store(root=Path(os.devnull)))


@pytest.mark.parametrize("name", PAPERS)
def test_results_page_is_up_to_date(name):
    """If this fails, run `pfl report`, and look at the difference."""
    folder, current = ROOT / "notebooks" / name, committed(name)
    assert (folder / report.PAGE).read_text(encoding="utf-8") == report.page(current)
    method_page = (folder / "README.md").read_text(encoding="utf-8")
    assert method_page == report.with_answer(name, report.short_answer(current), method_page)


def test_the_overview_is_up_to_date():
    text = (ROOT / "notebooks" / report.OVERVIEW).read_text(encoding="utf-8")
    store = Store(root=Path(os.devnull))
    others = {name: (study(name), report.study_answer(study(name), store)) for name in STUDIES if name not in PAPERS}
    assert text == report.overview([committed(name) for name in PAPERS], others)
    for name, (_, answer) in others.items():
        page = (ROOT / "notebooks" / name / "README.md").read_text(encoding="utf-8")
        assert page == report.with_answer(name, answer, page)


def test_a_study_without_stored_runs_says_so(store):
    assert report.study_answer(study("across"), Store(root=store.root, results=store.root)) == "No run is stored."


def test_a_method_page_without_a_place_for_the_answer_is_refused():
    with pytest.raises(ValueError, match="needs one block <!-- answer -->"):
        report.with_answer("star_pfl", "It is.", "# Star-PFL")


def evidence(rows: list[tuple[str, int, float]]) -> Evidence:
    """Runs (method, seed, accuracy) of one setting at preset real."""
    made = Evidence(paper("fedselect"), {}, {})
    frame = pd.DataFrame(rows, columns=["method", "seed", "value"])
    made.__dict__["frames"] = {"real": frame.assign(setting="a", variant="", metric="acc_mean"), "paper": frame[:0]}
    return made


def test_numbers_are_means_over_seeds():
    found = evidence([("local", 0, 80.0), ("local", 1, 81.0)])
    assert found.number(("real", "a", "local")) == "80.5 %"
    assert found.number(("real", "a", "local"), unit=" points", digits=0) == "80 points"
    assert found.number(("real", "a", "fedavg")) == found.number(("paper", "a", "local")) == "(not stored)"
    assert found.seeds(("real", "a", "local")) == "2 seeds" and found.seeds(("real", "a", "fedavg")) == "0 seeds"


def test_differences_are_paired_by_seed():
    """Differences 1, 2 and 3 have the mean 2 and the 95 % interval 2 ± 4.303 / sqrt(3); seed 3 has no partner."""
    rows = [("x", seed, 80.0 + seed) for seed in range(4)] + [("y", 0, 79.0), ("y", 1, 79.0), ("y", 2, 79.0)]
    found = evidence(rows)
    assert found.difference(("real", "a", "x"), ("real", "a", "y")) == "+2.0 [-0.5, 4.5] points"
    assert found.difference(("real", "a", "x"), ("real", "a", "z")) == "(not stored)"
    assert evidence([("x", 0, 1.0), ("y", 0, 3.0)]).difference(("real", "a", "x"), ("real", "a", "y")) == (
        "-2.0 points, 1 seed"
    )


def test_the_side_of_a_difference_in_words():
    def side(differences):
        rows = [("y", seed, 80.0) for seed in range(3)] + [("x", n, 80.0 + d) for n, d in enumerate(differences)]
        return evidence(rows).side(("real", "a", "x"), ("real", "a", "y"))

    assert side([1.0, 1.1, 0.9]) == "ahead of" and side([-1.0, -1.1, -0.9]) == "behind"
    assert side([1.0, -1.0, 0.0]) == "neither clearly ahead of nor clearly behind"
    assert side([-0.02, -0.021, -0.019]) == "equal to", "a difference of less than a digit that is shown"
    assert side([1.0]) == "compared in one seed only with" and side([]) == "not yet compared with"


def test_claims_of_the_project_are_counted_apart_and_claims_without_runs_have_no_preset():
    def verdict(text: str, ours: str, runs: tuple = (), in_tables: str = "yes") -> report.Verdict:
        claim = {"text": text, "ours": ours, "runs": runs, "in the paper's tables": in_tables}
        return report.Verdict("paper", pd.Series(claim))

    found = [verdict("It wins.", "holds", ("key",)), verdict("It is fast.", "undecided")]
    assert [each.where for each in found] == ["paper", "no run of it"]
    assert report._decided(found) == "Decided so far: 1 of 2 claims of the paper"
    added = [*found, verdict("Not in the paper: it learns.", "undecided")]
    assert report._decided(added).endswith("1 of 2 claims of the paper, 0 of 1 claims added by this project")
    sure = [*found, verdict("It is itself.", "holds", ("key",), f"no table; {claims.FOLLOWS}")]
    assert report._decided(sure).endswith("2 of 3 claims of the paper (1 of them by the algorithm's definition)")
    assert verdict("A round is fast.", "holds").where == "paper", "measured, not run"


def test_data_that_the_paper_does_not_publish_are_told_once_a_table():
    page = report.comparison(committed("fedpews"))
    table = page.split("**Table 2**")[1].split("**Table 3**")[0]
    assert table.count("does not publish") == 1 and table.count("| generated here | nothing else |") == 16
    assert "| 148 ± 3.8 |" in table, "the printed spread, which decides"


def test_a_deciding_preset_comes_first_then_the_one_with_most_runs():
    def claim(verdict: str, runs: int) -> pd.Series:
        return pd.Series({"ours": verdict, "runs": ("k",) * runs})

    assert _deciding({"paper": claim("undecided", 5), "real": claim("holds", 1)})[0] == "real"
    assert _deciding({"paper": claim("holds", 1), "real": claim("does not hold", 9)})[0] == "paper"
    assert _deciding({"paper": claim("undecided", 1), "real": claim("undecided", 2)})[0] == "real"


def test_bars_in_cells_do_not_end_them():
    assert markdown(("a",), [("x | y",)]).splitlines()[-1] == "| x \\| y |"


def stored(method: str, seed: int, correct: list[int], setting: str = "a", **changes) -> Record:
    """Two clients of 200 test images, two classes each, with these correct answers."""
    spec = RunSpec({"name": method}, clients=2, rounds=1, seed=seed, paper="fedselect", preset="real", setting=setting)
    series = {name: ([1], [values]) for name, values in {"correct": correct, "count": [200, 200]}.items()}
    series["loss"] = ([1], [[1.0, 1.0]])
    test = [[100, 100, 0], [0, 100, 100]]
    return Record("k", replace(spec, **changes), series, clients={"test": test})


def agreed(*records: Record) -> list[str]:
    return report.local_agreement(Evidence(paper("fedselect"), {"real": list(records)}, {})).splitlines()[6:]


def test_agreement_with_local_over_clients_and_seeds():
    """Differences of 1, 2, 3 and -2 points: mean 1, mean size 2."""
    local = [stored("local", 0, [120, 140]), stored("local", 1, [160, 180])]
    own = [stored("fedper", 0, [122, 144]), stored("fedper", 1, [166, 176])]
    r = np.corrcoef([60, 70, 80, 90], [61, 72, 83, 88])[0, 1]
    assert agreed(*local, *own) == [f"| real: Digits (for a), FedPer | {r:.2f} | +1.00 | 2.00 | 4 |"]
    assert agreed(*local, own[0])[0].endswith("| +1.50 | 1.50 | 2 |")  # the seeds that both have
    assert agreed(*own) == agreed(*local) == []


def test_agreement_is_of_the_same_federation_and_of_complete_runs_that_trained():
    local, other = stored("local", 0, [120, 140]), [122, 144]
    assert agreed(local, stored("fedper", 0, other)) != []
    assert agreed(local, stored("fedper", 0, other, setting="b")) == []
    assert agreed(local, stored("fedper", 0, other, partition={"name": "shards", "classes_per_client": 3})) == []
    assert agreed(local, stored("fedper", 0, [100, 100])) == []  # a constant answer
    early, longer = (replace(stored(name, 0, other, rounds=9), rounds_done=1) for name in ("fedper", "local"))
    assert agreed(local, early) == []  # stopped early
    assert agreed(longer, early)[0].startswith("| real: Digits (for a), 1 of 9 rounds, FedPer | 1.00 | +0.00")


def test_agreement_compares_at_one_point():
    """Star-PFL reports after local training, the others after aggregation: all are shown at both points."""
    runs = []
    for method, (merged, trained) in {"local": (110, 110), "fedavg": (114, 130), "star_pfl": (116, 134)}.items():
        run = stored(method, 0, [merged, merged])
        run.series["correct_trained"] = ([1], [[trained, trained]])
        run.series["count_trained"], run.series["loss_trained"] = run.series["count"], run.series["loss"]
        runs.append(run)
    lines = {line.split(" | ")[0]: line for line in agreed(*runs)}
    leads = {
        (name, point): lines[f"| real: Digits (for a), {name}, {point}"].split(" | ")[2]
        for name in ("FedAvg", "Star-PFL")
        for point in ("after aggregation", "after local training")
    }
    assert leads == {
        ("FedAvg", "after aggregation"): "+2.00",
        ("FedAvg", "after local training"): "+10.00",
        ("Star-PFL", "after aggregation"): "+3.00",
        ("Star-PFL", "after local training"): "+12.00",
    }


@pytest.mark.parametrize("name, has_local", [("star_pfl", True), ("fedpews", False)])
def test_pages_have_the_agreement_with_local_if_local_was_run(name, has_local):
    assert ("## Agreement with training alone" in report.page(committed(name))) == has_local


def test_the_numbers_behind_a_verdict_are_split_outside_brackets_only():
    numbers = "Numbers: a +1.0 [0.5, 1.5]; b +2.0 [mnist, real; digits, real]"
    assert claims.parts(numbers) == ["Numbers: a +1.0 [0.5, 1.5]", "b +2.0 [mnist, real; digits, real]"]


@pytest.mark.parametrize(
    ("numbers", "short"),
    [
        ("one seed; no search (a; b). Numbers: +1.0", "one seed"),
        ("a 95 % interval contains both answers. Numbers: +1.0 [-1.0, 3.0]; without b",)
        + ("a 95 % interval contains both answers. Numbers: +1.0 [-1.0, 3.0]",),
        ("mnist: +1.0 [0.5, 1.5]; digits: +2.0", "mnist: +1.0 [0.5, 1.5]"),
    ],
)
def test_in_short_an_open_interval_comes_with_its_numbers(numbers, short):
    assert claims.in_short(numbers) == short


def test_every_verdict_names_its_runs():
    claim = pd.Series({"runs": [f"{n:016x}" for n in range(20)], "ours": "holds"}, name=1)
    lines = report._runs([claim])
    assert lines[0] == "- **1**: 20 runs" and sum(line.count("`") // 2 for line in lines) == 20


def test_claims_with_the_same_runs_share_a_line_and_those_without_runs_have_none():
    runs = {1: ("a",), 2: ("b",), 3: ("a",), 4: (), 5: ()}
    claims = [pd.Series({"runs": keys, "ours": "holds" if n == 5 else "undecided"}, name=n) for n, keys in runs.items()]
    firsts = [report._runs(same)[0] for same in report._by_runs(claims)]
    assert firsts == ["- **1**, **3**: 1 run", "- **2**: 1 run", "- **5**: measured times, no runs"]


def test_the_costs_of_missing_runs_as_text():
    assert report._cost(0.44, 0) == "about 0.4 core hours"
    assert report._cost(61.6, 2) == "about 62 core hours plus the time of 2 runs of unknown length"
    assert report._cost(0.0, 1) == "the time of 1 run of unknown length"


def test_method_page_and_overview_show_the_first_three_sentences():
    found = [f"Sentence {n}." for n in range(1, 6)]
    made = Evidence(replace(paper("star_pfl"), answer=lambda evidence: found), {}, {})
    made.__dict__["verdicts"] = []
    method_page = report.with_answer("x", report.short_answer(made), "<!-- answer -->\nold\n<!-- /answer -->")
    assert "Sentence 3." in method_page and "Sentence 4." not in method_page
    text = report.overview([made], {})
    assert "Sentence 3." in text and "Sentence 4." not in text


@pytest.mark.parametrize("name", PAPERS)
def test_every_number_that_is_not_reproduced_has_a_cause_or_an_open_question(name):
    evidence = committed(name)
    assert report.UNEXPLAINED.why not in report.misses(evidence)
    for miss in evidence.paper.comparison.misses:
        assert miss.run.startswith("pfl run ") == (miss.hours is not None) == ("Open: " in miss.why)


def test_the_run_of_an_open_question_is_a_command_that_works(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    commands = [miss.run for name in PAPERS for miss in paper(name).comparison.misses if miss.run]
    for command in commands:
        main([*command.split()[1:], "--dry-run"])
        assert re.search(r" 0  +1 ", capsys.readouterr().out), command  # one run, not stored


def test_a_miss_that_nothing_explains_says_so():
    def cell(**changed):
        known = dict(
            table="table2", dataset="CIFAR-10", method="FedSelect", variant="alpha=0.30", paper=82.25, here=70.0
        )
        return {**known, "reproduced": False, **changed}

    comparison = replace(paper("fedselect").comparison, misses=(report.Miss("The rate.", method="Ditto"),))
    made = Evidence(replace(paper("fedselect"), comparison=comparison), {}, {})
    made.__dict__["cells"] = pd.DataFrame([cell(), cell(method="Ditto", variant=""), cell(reproduced=True)])
    assert report.misses(made).splitlines() == [
        "- Not looked into yet.",
        "  - Table 2 CIFAR-10 FedSelect alpha=0.30: 70 here, 82.25 in the paper",
        "- The rate.",
        "  - Table 2 CIFAR-10 Ditto: 70 here, 82.25 in the paper",
    ]


def test_a_table_has_comparable_rows_at_each_preset_and_with_each_seeds_that_its_rows_have():
    """FedSelect's Table 3: the rules have seeds 0 to 2, FedSelect itself one more, and a run of the paper's setting."""

    def run(preset, seed, value, variant=""):
        found = dict(paper="fedselect", setting="cifar10", dataset="cifar10", method="fedselect", preset=preset)
        return {**found, "variant": variant, "seed": seed, "value": value, "metric": "acc_mean", "stale": False,
                "data": "cifar10", "differs": "" if preset == "paper" else "network", "model": ""}  # fmt: skip

    rows = [run("paper", 0, 77.9), *(run("real", seed, 76.0 + (seed == 3) * 4) for seed in range(4))]
    rows += [run("real", seed, 75.5, "masks=random") for seed in range(3)]
    made = Evidence(paper("fedselect"), {}, {})
    frame = pd.DataFrame(rows)
    made.__dict__["frames"] = {preset: frame[frame["preset"] == preset] for preset in ("paper", "real")}
    table = next(part for part in report.comparison(made).split("**Table ") if part.startswith("3**"))
    found = [[cell.strip() for cell in line.split("|")] for line in table.splitlines() if "CIFAR-10" in line]
    assert [(line[3], line[6], line[7], line[10]) for line in found] == [
        ("Random", "75.5 ± 0", "real", "0, 1, 2"),
        ("alpha=0.30", "77.9", "paper", "0"),
        ("alpha=0.30", "76 ± 0", "real", "0, 1, 2"),
    ]
