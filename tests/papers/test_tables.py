"""What the remarks on printed cells say is recomputed from the CSV files, and cells name runs that exist."""

import pandas as pd
import pytest

from pfl_core import papers
from pfl_core.algorithm import methods
from pfl_core.study import claims, frame
from pfl_core.study.published import parse_variant

PFEDGATE = papers.paper("pfedgate")


def cells(number: int, metric: str) -> pd.DataFrame:
    """One metric of a table of pFedGate, with a column for each field of the variant."""
    frame = PFEDGATE.table(number).query("metric == @metric")
    return frame.join(pd.DataFrame([parse_variant(text) for text in frame["variant"]], index=frame.index))


def test_fedselects_row_in_table_1_is_the_best_of_table_2():
    paper = papers.paper("fedselect")
    best = paper.table(2).groupby("dataset")["value"].max()
    assert best.equals(paper.table(1).query("method == 'FedSelect'").groupby("dataset")["value"].first())


def test_the_note_on_pfedgates_table_3():
    rows = [cells(n, "acc_mean").query("dataset in ('FEMNIST', 'CIFAR10')") for n in (1, 3)]
    means = [r.assign(s=r["s"].fillna(0)).groupby(["method", "s"])["value"].mean() for r in rows]
    drop = (means[0] - means[1]).dropna()
    note = PFEDGATE.table(3).query("metric == 'acc_mean_drop'")["note"].iloc[0]
    for method, s, text in (
        ("FedAvg", 0, ".2f"),
        ("FedEM", 0, ".3f"),
        ("pFedGate", 1, ".3f"),
        ("pFedGate", 0.3, ".3f"),
    ):
        assert f"{round(drop[method, s], 4):{text}}" in note


def test_the_notes_on_fedmask():
    for metric, instead in (("acc_mean", 70.54), ("acc_bottom_decile", 61.37)):
        first = cells(1, metric).query("dataset == 'CIFAR10'").set_index("method")["value"]
        assert first["FedMask"] == first["FedEM"]
        last = cells(13, metric).query("method == 'FedMask' and dataset == 'CIFAR10' and s == 0.5")
        assert last["value"].item() == instead


@pytest.mark.parametrize("name", papers.PAPERS)
def test_cells_name_fields_of_their_methods(name):
    """Each field is one of the method, a column of the run, or a name of this project for a group of layers."""
    known = {"partition_alpha", "group", "reading", "e_step"}
    for (_, _, method), found in papers.paper(name).printed_cells.items():
        fields = {field for cell in found for field in cell["fields"]} - known
        spec = papers.paper(name).usual_fields(method)
        assert method in methods() and fields <= spec.keys(), (method, fields - spec.keys())


@pytest.mark.parametrize("name", papers.PAPERS)
def test_a_claim_that_names_tables_finds_numbers_in_them(name):
    judged = claims.judge(papers.paper(name), frame.frame([]))
    assert [c.claim.number for c in judged if c.claim.printed and not any(found.printed for found in c.effects)] == []
