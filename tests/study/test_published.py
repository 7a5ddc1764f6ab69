"""The papers' tables are complete, with notes and registered names of the methods."""

import hashlib
import math

import pytest

from pfl_core import methods
from pfl_core.papers import PAPERS
from pfl_core.runs.provenance import ROOT
from pfl_core.study.published import COLUMNS, facts, method_of, panel_of, parse_variant, remarks, table

ROWS = {  # numbers of cells in the printed tables
    "fedselect": [40, 16, 32],
    "star_pfl": [36, 36],
    "fedpews": [16, 14, 16, 56, 56],
    "pfedgate": [134, 30, 30, 20, 36, 24, 30, 20, 24, 32, 32, 56],
}


@pytest.mark.parametrize("paper", PAPERS)
def test_all_rows_are_there_in_the_papers_order(paper):
    frame = table(paper)
    assert list(frame.columns) == COLUMNS
    assert frame.groupby("table", sort=False).size().tolist() == ROWS.get(paper, [len(frame)])
    assert set(frame["key"]) <= set(methods())
    assert not frame.duplicated(["table", "dataset", "method", "variant", "metric"]).any()


@pytest.mark.parametrize("number", [2, "2", "table2"])
def test_one_table_by_number_or_name(number):
    assert set(table("fedselect", number)["table"]) == {"table2"}


def test_what_the_paper_leaves_empty_is_nan_and_no_text_is_nan():
    missed = table("fedpews", 6).query("metric == 'rounds_to_target' and value.isna()")
    assert len(missed) == 2 and missed["note"].str.contains("not reached").all()
    first = table("fedselect", 1).iloc[0]
    assert (first["variant"], first["note"]) == ("", "") and math.isnan(first["std"])


@pytest.mark.parametrize("paper", PAPERS)
def test_each_note_hits_a_cell(paper):
    text = set(table(paper)["note"])
    for note in facts(paper).get("note", []):
        assert any(note["text"] in cell for cell in text)


def test_remarks_name_the_cells_that_they_are_about():
    lines = remarks("fedselect", "table3")
    assert len(lines) == 3 and lines[0].startswith("Table 3, CIFAR-10: the six ablations")
    assert lines[2].startswith("Table 3: the paper gives no limit") and len(remarks("fedselect")) == 4


def test_the_note_on_table_1_of_fedselect_is_on_its_row_only():
    frame = table("fedselect", 1)
    noted = frame[frame["note"].str.contains("largest of the four limits")]
    assert set(noted["method"]) == {"FedSelect"} and len(noted) == 4


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("", {}),
        ("alpha=0.30", {"alpha": 0.3}),
        ("s=0.5;gate=no_sigmoid", {"s": 0.5, "gate": "no_sigmoid"}),
        ("Personalize Least", {"rule": "Personalize Least"}),
    ],
)
def test_parse_variant(text, fields):
    assert parse_variant(text) == fields


def test_errors_for_unknown_names_list_the_known_ones():
    with pytest.raises(ValueError, match="unknown paper 'fedsel'; choose one of fedpews, fedselect, "):
        table("fedsel")
    with pytest.raises(ValueError, match="fedselect: table 9 is not available; choose one of 1, 2, 3"):
        table("fedselect", 9)


def test_missing_tables_are_reported(monkeypatch, tmp_path):
    monkeypatch.setattr("pfl_core.study.published.FOLDER", tmp_path)
    with pytest.raises(FileNotFoundError, match="no tables of 'star_pfl'"):
        table("star_pfl")


def test_no_number_has_changed_since_the_files_were_typed_and_checked():
    """Digest of all CSV files in the order of their names; a deliberate correction writes the new one here."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted((ROOT / "data" / "paper").glob("*.csv")):
        digest.update(path.read_bytes().replace(b"\r\n", b"\n"))
    assert digest.hexdigest() == "d92ccd25aa6f1743"


def test_cells_are_named_in_words():
    rows = {row.variant: row for row in table("fedpews", 2).itertuples()}
    long = rows["eta_g=0.5;lambda=2.0;tau=0.2;T=250;batch_size=32;target=90"]
    assert method_of(long) == "FedAvg+PeWS, η_g = 0.5, λ = 2, τ = 0.2"
    assert panel_of(long) == "Table 2, rounds to target"
    decile = next(row for row in table("pfedgate", 1).itertuples() if row.metric == "acc_bottom_decile")
    assert panel_of(decile) == "Table 1, worst tenth"
