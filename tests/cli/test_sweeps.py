"""Sweeps and comparisons of methods from the command line."""

import json
from importlib.util import find_spec

import pandas as pd
import pytest

from pfl_core.cli import main
from pfl_core.cli.command import parser
from pfl_core.cli.compare import do_compare
from pfl_core.cli.specs import variations
from pfl_core.runs import Store
from tests.runs.outside import write_npz

pytestmark = pytest.mark.usefixtures("folders")
SMALL = "--model mlp --clients 5 --rounds 1 --jobs 1".split()


def rows_of(command):
    args = parser().parse_args(command.split())
    return variations(args, getattr(args, "names", None) or [args.method])


def test_all_combinations_of_the_given_values():
    rows = rows_of("run fedselect --seed 0-1 --lr 0.1,0.2 --partition iid,shards:3 --set alpha=0.1,0.5 --epochs 2")
    assert len(rows) == 8 and all([spec.seed for spec in row.specs] == [0, 1] for row in rows)
    first, last = rows[0], rows[-1]
    assert first.varied == {"partition": "iid", "lr": 0.1, "alpha": 0.1}
    assert last.label == "fedselect, partition=shards:3, lr=0.2, alpha=0.5"
    (spec, _) = last.specs
    assert (spec.train.lr, spec.train.epochs, spec.method["alpha"]) == (0.2, 2, 0.5)
    assert spec.partition == {"name": "shards", "classes_per_client": 3}


def test_lists_keep_their_json_form_and_the_last_set_counts():
    (one,) = rows_of("run local --model mlp --set model.hidden=[8,9]")
    assert one.specs[0].model["hidden"] == [8, 9] and one.varied == {}
    two = rows_of("run local --model mlp --set model.hidden=[4] --set model.hidden=[8],[9]")
    assert [row.varied["model.hidden"] for row in two] == [[8], [9]]


def test_training_fields_of_one_method_alone(tmp_path, monkeypatch):
    """All rows name them. They replace what all methods are given; a field of the method itself has priority."""
    (tmp_path / "own_rate.py").write_text(
        "from dataclasses import dataclass\nfrom pfl_core.algorithms.fedavg import FedAvg\n\n"
        "@dataclass(frozen=True)\nclass Own(FedAvg):\n    lr: float = 3.0\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    first, second, third = rows_of(
        "compare fedavg ditto own_rate:Own --lr 0.3 --set fedavg.lr=0.1 --set own_rate:Own.lr=2"
    )
    assert [row.label for row in (first, second)] == ["fedavg, lr=0.1", "ditto, lr=0.3"]
    assert [row.specs[0].train.lr for row in (first, second, third)] == [0.1, 0.3, 0.3]
    assert third.specs[0].method["lr"] == 2 and "lr" not in first.specs[0].method
    rows = rows_of("compare fedavg scaffold --set train.lr=0.3 --set fedavg.lr=0.1,0.2 --set scaffold.epochs=2")
    assert [row.varied for row in rows] == [{"lr": lr, "epochs": 1} for lr in (0.1, 0.2)] + [{"lr": 0.3, "epochs": 2}]
    paper = "--paper fedselect --preset ci --set fedavg.momentum=0.25"
    assert [spec.train.momentum for row in rows_of(f"compare fedavg local {paper}") for spec in row.specs] == [
        0.25,
        0.0,
    ]


def test_a_setting_of_the_paper_may_have_a_comma_in_its_name():
    rows = rows_of("run fedselect --paper fedselect --preset ci --seed 0,1")
    assert [spec.paper for row in rows for spec in row.specs] == ["fedselect"] * 2


@pytest.mark.parametrize("command", ["run fedavg --lr 0.1,0.2", "compare fedavg local"])
def test_validation_samples_have_a_column_and_a_run_a_line(command, capsys):
    """Pooled over clients, after the last round's aggregation, as searches score it."""
    for share, shown in (("0", False), ("0.2", True)):
        assert main([*command.split(), *SMALL, "--set", f"partition.val={share}"]) == 0
        head, first, *_ = capsys.readouterr().out.splitlines()
        assert ("validation, %" in head) == shown
    assert main(["run", "fedavg", *SMALL, "--lr", "0.1", "--set", "partition.val=0.2"]) == 0
    (line,) = [text for text in capsys.readouterr().out.splitlines() if text.startswith("validation samples")]
    spec = parser().parse_args(["run", "fedavg", *SMALL, "--lr", "0.1", "--set", "partition.val=0.2"])
    record = Store().get(variations(spec, ["fedavg"])[0].specs[0].key())
    correct, count = (record.values(f"{name}_val").iloc[-1].sum() for name in ("correct", "count"))
    assert line.split()[-1] == f"{100 * correct / count:.2f}"
    if command.startswith("run"):
        assert line.split()[-1] in first.split()


@pytest.mark.parametrize(("share", "shown"), [(0.3, True), (0.0, False)])
def test_scores_of_novel_clients_are_shown_where_there_are_some(capsys, share, shown):
    given = [*SMALL, "--set", f"run.novel={share}"]
    for command in ("run fedavg --lr 0.1,0.2", "compare fedavg local", "run fedavg --lr 0.1"):
        assert main([*command.split(), *given]) == 0
        assert ("novel clients" in capsys.readouterr().out) == shown
    assert main(["compare", "fedavg", "local", *given, "--json"]) == 0
    assert [("acc_mean_novel" in row) for row in json.loads(capsys.readouterr().out)["methods"]] == [shown] * 2


def test_a_sweep_prints_a_row_for_each_combination_and_reads_stored_runs(capsys):
    command = ["run", "fedavg", *SMALL, "--seed", "0-2", "--lr", "0.1,0.2"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [["lr", "seeds"], ["0.1", "3"], ["0.2", "3"]]
    assert lines[-1] == "0 of 6 runs were stored already"
    assert main([*command, "--json"]) == 0
    runs = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(run["seed"], run["varied"]["lr"]) for run in runs] == [(s, lr) for lr in (0.1, 0.2) for s in range(3)]
    assert all(run["stored"] for run in runs) and len({run["key"] for run in runs}) == 6
    accuracies = pd.Series([run["acc_mean"] for run in runs[:3]])
    assert lines[1].split()[2:4] == [f"{accuracies.mean():.2f}", f"{accuracies.std():.2f}"]


def test_tables_say_that_data_are_not_the_published_ones(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    write_npz(tmp_path, "mnist", 51)
    given = ["--data", "mnist", "--partition", "iid", *SMALL, "--clients", "2"]
    mark = "mnist, not the official file: "
    for command in (["run", "local", "--seed", "0,1"], ["compare", "local", "fedavg"]):
        assert main([*command, *given]) == 0
        assert capsys.readouterr().out.count(f"\ndata: {mark}") == 1
    assert main(["compare", "local", "fedavg", *given, "--json"]) == 0
    assert all(row["about"].startswith(mark) for row in json.loads(capsys.readouterr().out)["methods"])
    assert main(["data", "mnist", "--offline"]) == 0
    assert "mnist: not the official file: " in capsys.readouterr().out.splitlines()[-1]


def test_a_dry_run_counts_and_computes_nothing(capsys):
    main(["run", "fedavg", *SMALL, "--quiet"])
    assert capsys.readouterr().out == ""
    before = sorted(Store().root.glob("*.json"))
    assert main(["run", "fedavg", *SMALL, "--seed", "0-2", "--dry-run", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["stored"], row["missing"]) == ("fedavg", 1, 2)
    assert row["seconds"] > 0 and row["memory"] > 0 and row["disk"] > 0
    assert main(["compare", "fedavg", "local", *SMALL, "--dry-run"]) == 0
    total = capsys.readouterr().out.splitlines()[3].split()
    assert total[:3] == ["total", "1", "1"] and sorted(Store().root.glob("*.json")) == before
    assert main(["run", "fedavg", *SMALL, "--metrics", "f1", "--dry-run", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["stored"], row["missing"]) == (0, 1), "a record without these metrics is computed again"


def test_missing_data_are_named_once_before_any_run(capsys):
    """A dry run fails as well if nothing can be computed."""
    for command in (["compare", "fedavg", "local", *SMALL], ["run", "fedavg", *SMALL, "--seed", "3,4"]):
        for options in ([], ["--dry-run"], ["--dry-run", "--json"]):
            assert main([*command, "--data", "mnist", "--seed", "0,1", *options]) == 2
            out, err = capsys.readouterr()
            assert err.startswith("pfl: data set 'mnist' is not here") and err.count("\n") == 1
            assert "mnist" not in out and bool(out) == bool(options)
        assert main([*command, "--data", "digits,mnist", "--dry-run"]) == 0
        out, err = capsys.readouterr()
        assert (out.count("runs cannot be computed: data set 'mnist' is not here"), err) == (1, "")
        assert main([*command, "--data", "digits,mnist"]) == 2 and not list(Store())
        assert capsys.readouterr().err.count("\n") == 1
    assert main(["run", "fedavg", *SMALL, "--data", "mnist"]) == 2
    assert capsys.readouterr().out == ""


def test_runs_that_are_stored_need_no_data(capsys, tmp_path):
    write_npz(tmp_path / "data", "mnist", value=1)
    command = ["compare", "fedavg", "local", "--data", "mnist", "--partition", "iid", *SMALL, "--clients", "2"]
    assert main(command) == 0
    (tmp_path / "data" / "mnist.npz").unlink()
    capsys.readouterr()
    assert main(command) == 0
    assert "2 of 2 runs were stored already" in capsys.readouterr().out
    assert main([*command, "--dry-run"]) == 0
    assert main([*command, "--seed", "0,1", "--dry-run"]) == 2
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].split()[:3] == ["total", "2", "2"] and "mnist" in err


def test_a_log_is_written_for_stored_runs_too(capsys, tmp_path):
    for _ in range(2):
        assert main(["run", "fedavg", *SMALL, "--seed", "0,1", "--log", "logs"]) == 0
        files = sorted((tmp_path / "logs").iterdir())
        assert len(files) == 2 and all(len(pd.read_csv(file)) == 1 for file in files)
        for file in files:
            file.unlink()
    (tmp_path / "file").touch()
    assert main(["run", "fedavg", *SMALL, "--seed", "7", "--log", "file/logs"]) == 2
    assert "cannot be written" in capsys.readouterr().err and not (tmp_path / "file").is_dir()


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("compare", "papers"),
        ("compare fedselect", "papers"),
        ("compare fedselect --json", "papers"),
        ("compare fedselect star_pfl", "methods"),
        ("compare fedselect ditto", "methods"),
        ("compare fedselect --lr 0.1", "methods"),
        ("compare fedselect --dry-run", "methods"),
        ("compare fedselect --figure x.png", "methods"),
    ],
)
def test_one_name_alone_is_a_paper_and_all_else_are_methods(command, kind, monkeypatch):
    """``fedselect`` is the name of a paper and of a method."""
    for other in ("papers", "methods"):
        monkeypatch.setattr(f"pfl_core.cli.compare.compare_{other}", lambda args, other=other: other)
    assert do_compare(parser().parse_args(command.split())) == kind


def test_methods_are_compared_with_the_first(capsys, tmp_path):
    command = ["compare", "local", "fedavg", "ditto", *SMALL, "--seed", "0-2", "--set", "ditto.lam=0.5"]
    assert main([*command, "--figure", "out/curves.pdf"]) == 0
    out = capsys.readouterr().out
    assert "lead of local" in out
    assert "at the 5 % level, with Holm's correction for 2 comparisons; the intervals are not corrected\n" in out
    assert [line.split()[0] for line in out.splitlines()[:4]] == ["method", "local", "fedavg", "ditto"]
    assert (tmp_path / "out" / "curves.pdf").read_bytes().startswith(b"%PDF")
    drawn = pd.read_csv(tmp_path / "out" / "curves.csv")
    assert list(drawn) == ["label", "method", "seed", "round", "value"] and len(drawn) == 9
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["label"] for row in found["methods"]] == ["local", "fedavg", "ditto"]
    local, fedavg, ditto = found["methods"]
    assert fedavg["upload_mb"] > local["upload_mb"] == 0 and fedavg["passes"] == pytest.approx(1)
    assert ditto["train_tflop"] == pytest.approx(2 * fedavg["train_tflop"])
    pair = found["differences"][0]
    assert (pair["first"], pair["second"], pair["seeds"]) == ("local", "fedavg", 3)
    assert pair["difference"] == pytest.approx(local["acc_mean"] - fedavg["acc_mean"])
    assert pair["low"] < pair["difference"] < pair["high"]
    records = list(Store())
    assert {r.spec.method.get("lam") for r in records if r.spec.method["name"] == "ditto"} == {0.5}
    over_clients = [r.final().std(ddof=0) for r in records if r.spec.method["name"] == "local"]
    assert local["acc_clients_sd"] == pytest.approx(sum(over_clients) / 3)
    assert main([*command, "--latex"]) == 0
    out = capsys.readouterr().out
    assert out.count(r"\begin{tabular}{l") == 2 and f"fedavg & 3 & {fedavg['acc_mean']:.2f} & " in out


@pytest.mark.skipif(find_spec("torchmetrics") is None, reason="torchmetrics is not installed")
def test_a_sweep_has_a_column_for_each_metric(capsys):
    assert main(["run", "local", *SMALL, "--seed", "0,1", "--metrics", "f1"]) == 0
    head, line, *_ = capsys.readouterr().out.splitlines()
    records = list(Store())
    mean = sum(record.last_mean("f1") for record in records) / 2
    assert line[head.index("f1") :].split()[0] == f"{mean:.4f}"
