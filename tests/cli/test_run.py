"""``pfl run`` and ``pfl runs`` with a temporary store."""

import dataclasses
import json
import os
import sys
from pathlib import Path

import pandas as pd
import pytest

from pfl_core import Training, load_models, methods, papers
from pfl_core.cli import main
from pfl_core.cli.command import parser
from pfl_core.cli.runs import _settings
from pfl_core.cli.specs import variations
from pfl_core.cli.tables import size
from pfl_core.runs import RunSpec, Store, execute, sweep
from pfl_core.runs.spec import TAGS
from pfl_core.study.compare import ROW
from tests.runs.outside import write_npz

SMALL = "--model mlp --clients 5 --rounds 2".split()
KEYS = {
    *("method", "acc_mean", "acc_pooled", "acc_bottom_decile", "acc_mean_best", "acc_mean_trained", "upload_mb"),
    *("seconds", "key", "data", "rounds", "seed", "stored"),
}
OUTSIDE = '''
from dataclasses import dataclass
import torch
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.data import Dataset

@dataclass(frozen=True)
class Mine(FedAvg):
    """FedAvg under another name."""
    strength: float = 1.0

def points(size: int = 40) -> Dataset:
    y = torch.arange(size) % 2
    x = torch.stack([y.float(), 1 - y.float()], 1)
    zeros = torch.zeros(size, dtype=torch.int64)
    return Dataset("points", x, y, zeros, torch.arange(size) >= size // 2, 2, ("a", "b"), about="two points")
'''


pytestmark = pytest.mark.usefixtures("folders")


def answer(capsys, *command: str) -> dict:
    """The last line of a --json call."""
    assert main([*command, "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_json_contract_and_a_second_call_reads_the_store(capsys):
    first = answer(capsys, "run", "fedselect", *SMALL, "--set", "alpha=0.5", "--seed", "3")
    assert first.keys() >= KEYS and not first["stored"]
    assert 0 <= first["acc_bottom_decile"] <= first["acc_mean"] <= 100
    assert Store().get(first["key"]).spec.method == {"name": "fedselect", "alpha": 0.5}
    again = answer(capsys, "run", "fedselect", *SMALL, "--set", "alpha=0.5", "--seed", "3")
    assert again == first | {"stored": True} and first["acc_val"] is None and "warnings" not in first


def test_a_stored_run_gets_the_metrics_that_it_lacks(capsys):
    without = answer(capsys, "run", "local", *SMALL, "--seed", "1")
    assert main(["run", "local", *SMALL, "--seed", "0-1", "--metrics", "f1", "--jobs", "1"]) == 0
    again = answer(capsys, "run", "local", *SMALL, "--seed", "1", "--metrics", "f1")
    assert again["stored"] and again["key"] == without["key"] and 0 <= again["f1"] <= 1


def test_json_has_the_validation_accuracy_and_what_is_wrong_with_a_run(capsys):
    found = answer(capsys, "run", "fedavg", *SMALL, "--set", "partition.val=0.2", "--lr", "1e30")
    assert 0 <= found["acc_val"] <= 100 and "training diverged" in found["warnings"][0]


def test_text_output_has_settings_scores_and_their_origin(capsys):
    command = ["run", "local", *SMALL, "--set", "train.momentum=0.5"]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert "momentum=0.5" in first and "bottom decile" in first and "stored in" in first
    assert main(command) == 0
    assert "read from the store" in capsys.readouterr().out
    assert "stored in" not in capsys.readouterr().out


def test_every_flag_reaches_the_run():
    flags = "--partition dirichlet:0.4 --clients 3 --rounds 1 --model mlp --lr 0.2 --epochs 2 --batch-size 50"
    rest = "--participation 0.7 --seed 7 --set model.hidden=[8] --set partition.min_size=5 --set run.eval_every=2"
    more = "--momentum 0.5 --milestones [0.5,0.75] --clip-norm null --partial-batch drop --novel 0.3 --sampling once"
    spec = spec_of("fedavg", *flags.split(), *rest.split(), *more.split())
    assert spec.partition == {"name": "dirichlet", "alpha": 0.4, "min_size": 5}
    assert spec.model == {"name": "mlp", "hidden": [8]}
    assert (spec.clients, spec.rounds, spec.participation, spec.seed, spec.eval_every) == (3, 1, 0.7, 7, 2)
    assert (spec.novel, spec.sampling, spec.train.milestones, spec.train.clip_norm) == (0.3, "once", (0.5, 0.75), None)
    assert (spec.train.lr, spec.train.epochs, spec.train.batch_size, spec.train.momentum) == (0.2, 2, 50, 0.5)
    assert spec_of("fedavg", "--momentum", "0.5") == spec_of("fedavg", "--set", "train.momentum=0.5")


def test_every_field_of_a_run_is_a_flag_with_the_type_of_the_field():
    """But for tags. A flag with the default of its field changes nothing."""
    usual = parser().parse_args(["run", "fedavg"])
    fields = {f.name: f.default for f in dataclasses.fields(RunSpec) if f.name not in (*TAGS, "train")}
    assert fields.keys() | {f.name for f in dataclasses.fields(Training)} <= vars(usual).keys()
    for field in dataclasses.fields(Training):
        default = field.default if isinstance(field.default, str) else json.dumps(field.default)
        args = parser().parse_args(["run", "fedavg", f"--{field.name.replace('_', '-')}", default])
        (given,) = getattr(args, field.name)
        assert getattr(Training(**{field.name: given}), field.name) == field.default, field.name


def test_a_papers_settings_and_what_changes_them(capsys):
    untouched = "run fedselect --paper fedselect --preset ci --set alpha=0.5 --reading authors_code".split()
    spec = Store().get(answer(capsys, *untouched)["key"]).spec
    wanted = papers.paper("fedselect").settings.spec("fedselect", preset="ci", alpha=0.5, reading="authors_code")
    assert spec == wanted and (spec.paper, spec.preset) == ("fedselect", "ci")
    changed = Store().get(answer(capsys, *untouched, "--rounds", "1")["key"]).spec
    assert (changed.rounds, changed.preset_label) == (1, "ci, changed"), "a changed frame is no result of the preset"
    same = Store().get(answer(capsys, *untouched, "--rounds", str(wanted.rounds))["key"]).spec
    assert same == wanted, "what is asked for and is the preset's already changes nothing"


def test_a_method_and_a_data_set_from_the_working_folder(capsys, tmp_path, monkeypatch):
    (tmp_path / "my_pfl_module.py").write_text(OUTSIDE, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "my_pfl_module", raising=False)
    command = "run my_pfl_module:Mine --data my_pfl_module:points --partition iid --clients 2 --rounds 1 --model mlp"
    found = answer(capsys, *command.split(), "--set", "strength=2", "--set", "data.size=60")
    assert found["method"] == "my_pfl_module:Mine" and found["about"] == "two points"
    assert sum(map(sum, Store().get(found["key"]).clients["train"])) == 30
    assert main([*command.split(), "--set", "power=2"]) == 2
    assert "'power'" in capsys.readouterr().err


def test_a_damaged_record_is_reported_and_computed_again(capsys):
    first = answer(capsys, "run", "local", *SMALL)
    path = Store().path(first["key"])
    path.write_text(path.read_text(encoding="utf-8").replace('"seed":0', '"seed":1'), encoding="utf-8")
    assert main(["run", "local", *SMALL, "--json"]) == 0
    out, err = capsys.readouterr()
    again = json.loads(out)
    assert "is damaged" in err and err.startswith("pfl: record") and not again["stored"]
    assert {**again, "seconds": 0} == {**first, "seconds": 0}
    assert main(["runs", "clean", "--damaged"]) == 0
    assert ".damaged" in capsys.readouterr().out and path.exists()
    assert not list(path.parent.glob("*.damaged"))


def stored_runs(capsys, *selection: str) -> list[dict]:
    assert main(["runs", "list", "--json", *selection]) == 0
    return json.loads(capsys.readouterr().out)


def test_list_export_and_clean(capsys, tmp_path):
    mine = answer(capsys, "run", "local", *SMALL)["key"]
    theirs = answer(capsys, *"run fedavg --paper fedselect --preset ci".split())["key"]
    assert main(["runs"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines.keys() == {"key", mine, theirs} and "fresh" in lines[mine]
    assert lines[mine].split()[6] == "clients=5;model=mlp" and "settings" in lines["key"]
    for selection in ("--paper fedselect --preset ci", "--method fedavg", "--data cifar_mnist", "--newest 1"):
        os.utime(Store().path(theirs))
        wanted = [] if "cifar" in selection else [theirs]
        assert [row["key"] for row in stored_runs(capsys, *selection.split())] == wanted, selection

    assert main(["runs", "export", "out"]) == 0
    assert "exported 2 of your runs" in capsys.readouterr().out
    frame, index = pd.read_csv(tmp_path / "out" / f"{mine}.csv"), pd.read_csv(tmp_path / "out" / "runs.csv")
    assert {"round", "client", "metric", "value"} <= set(frame) and set(frame["client"]) >= {-1, 0, 4}
    assert set(index["key"]) == {mine, theirs}
    assert (tmp_path / "out" / f"{mine}.json").read_bytes() == Store().path(mine).read_bytes()

    assert main(["runs", "export", "--results", "--preset", "ci"]) == 0
    kept = tmp_path / "results" / "fedselect" / "ci" / f"{theirs}.json"
    assert [*(tmp_path / "results").glob("**/*.json")] == [kept]

    whole = kept.read_bytes()
    Store().put(dataclasses.replace(Store().get(theirs), rounds_done=1))
    assert main(["runs", "export", "--results", theirs]) == 0
    assert kept.read_bytes() == whole, "a stopped run's record replaces no whole one"

    assert main(["runs", "clean"]) == 0
    assert "deleted 0 files" in capsys.readouterr().out
    (Store().root / "flops").mkdir(exist_ok=True)  # a cache beside the runs
    assert main(["runs", "clean", "--all"]) == 0
    assert f"deleted {mine}.json" in capsys.readouterr().out
    assert not Store().path(mine).exists() and kept.exists()
    assert stored_runs(capsys) == [], "only runs of one's own"
    assert main(["runs", "export", "none"]) == 2 and not (tmp_path / "none").exists()
    capsys.readouterr()
    (row,) = stored_runs(capsys, "--all")
    assert (row["key"], row["committed"]) == (theirs, True), "what data/results holds is still there"
    for number, wanted in enumerate(("--all", theirs)):
        assert main(["runs", "export", f"committed{number}", wanted]) == 0
        assert (tmp_path / f"committed{number}" / f"{theirs}.csv").exists()
    capsys.readouterr()
    assert answer(capsys, *"run fedavg --paper fedselect --preset ci".split())["stored"]


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("run fedavg --rounds 1 --seed 3", ""),
        ("run scaffold --lr 0.02 --momentum 0.9", ""),
        ("run scaffold --lr 0.05 --set data.resize=9", "lr=0.05;data.resize=9"),
        ("run fedavg --lr 0.1 --model mlp --partition dirichlet:0.3", "lr=0.1;model=mlp;partition=dirichlet:0.3"),
        (
            "run local --set partition.val=0.2 --model mlp --set model.hidden=[9]",
            "model=mlp;model.hidden=[9];partition.val=0.2",
        ),
        ("run fedavg --momentum 0 --set train.lr=0.05 --partition iid", "lr=0.05;partition=iid"),
        ("run fedavg --paper fedselect --preset real --seed 7", ""),
        ("run fedavg --paper fedselect --preset real --data cifar10_c --lr 0.07", "cifar10_c;lr=0.07"),
        ("run fedavg --paper fedselect --preset quick --epochs 9", "cifar10;epochs=9"),
    ],
)
def test_the_list_names_settings_that_are_not_the_default(command, wanted):
    assert _settings(spec_of(*command.split()[1:])) == wanted


def test_a_setting_that_only_a_notebook_has_is_compared_with_the_papers():
    spec = papers.paper("fedselect").settings.spec("fedavg", preset="real", setting="cifar10", overrides={"epochs": 15})
    assert _settings(dataclasses.replace(spec, setting="cifar10, epochs=15")) == "epochs=15"


def test_clean_deletes_what_killed_processes_left(capsys):
    """Temporary files of an hour ago, not those that are being written."""
    root, hex32 = Store().root, "b" * 32
    names = (f".{'a' * 16}.json.{hex32}.part", f"cache/.f.json.{hex32}.part", f"{'a' * 16}.round", f"{hex32}.sweep")
    fresh = [name.replace("a", "c").replace("b", "d") for name in names]
    for name in (*names, *fresh):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    for name in names:
        os.utime(root / name, (1, 1))
    (root / f"{'e' * 16}.damaged").touch()
    main(["runs", "clean", "--stale"])
    assert all((root / name).exists() for name in names)
    main(["runs", "clean"])
    said = capsys.readouterr().out
    assert f"deleted {names[2]}" in said and "deleted 5 files" in said
    assert {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()} == set(fresh)


FOREIGN = [
    *("notes.txt", "notes.json", "notes.ckpt", "notes.round", "notes.sweep", "notes.damaged", "notes.waiting"),
    *("notes.1.prefix", "notes.prefix", ".notes.part", "flops/joblib/notes.pkl", "mine/.download.part"),
]


def test_files_that_the_project_did_not_write_are_never_deleted(capsys):
    """PFL_RUNS_DIR may be any folder. A sweep deletes prefixes that nothing needs, `clean --all` everything."""
    root = Store().root
    for name in FOREIGN:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
        os.utime(root / name, (1, 1))
    assert main(["run", "local", *SMALL, "--seed", "0,1", "--jobs", "1"]) == 0
    for kind in ([], ["--all"]):
        assert main(["runs", "clean", *kind]) == 0
    assert [name for name in FOREIGN if not (root / name).exists()] == []
    assert "deleted 2 files" in capsys.readouterr().out


def test_clean_deletes_the_checkpoint_of_a_process_that_was_killed_after_it_had_stored_its_run(capsys):
    """But not a kept state."""
    kept = answer(capsys, "run", "local", *SMALL, "--keep-state")["key"]
    killed = answer(capsys, "run", "local", *SMALL, "--seed", "1")["key"]
    store = Store()
    execute(store.get(killed).spec, store, until=1, record=False, keep_state=True)
    assert main(["runs", "clean"]) == 0
    assert store.checkpoint(kept).exists() and not store.checkpoint(killed).exists()


def test_a_run_stops_after_a_time(capsys, monkeypatch):
    """One line and status 3; the same command continues."""
    module, answers, is_over = sys.modules[execute.__module__], iter([False, False, True]), []

    def passed(when):
        is_over[:] = [when is not None and next(answers)]
        return is_over[0]

    monkeypatch.setattr(module, "passed", passed)
    monkeypatch.setattr(sys.modules[sweep.__module__], "passed", lambda when: when is not None and True in is_over)
    whole = ["run", "local", "--model", "mlp", "--clients", "5", "--rounds", "4", "--json"]
    assert main([*whole, "--stop-after", "90m"]) == 3
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines()[-1] == (
        "pfl: the time is up: runs ended 0, at a checkpoint 1, not started 0; the same command continues"
    )
    assert "PFL_DEADLINE" not in os.environ
    rounds_done = []
    monkeypatch.setattr(module, "passed", rounds_done.append)
    assert answer(capsys, *whole)["rounds"] == 4
    assert rounds_done == [None] * 3, "before the run, and after rounds 3 and 4"


def test_a_search_stops_after_a_time(capsys, monkeypatch):
    monkeypatch.setenv("PFL_DEADLINE", "1")
    monkeypatch.setattr("pfl_core.study.search.write", lambda *_: pytest.fail("nothing was found"))
    assert main(["search", "fedselect", "--preset", "quick", "--jobs", "1"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pfl: the time is up: runs ended 0, at a checkpoint 0, not started ")


def test_an_export_names_the_stale_runs(capsys, monkeypatch):
    """Their settings that are not stored may have had another default."""
    key = answer(capsys, "run", "local", *SMALL)["key"]
    monkeypatch.setattr("pfl_core.runs.versions.ENGINE", 99)
    assert main(["runs", "export", "out"]) == 0
    assert capsys.readouterr().out.endswith(f"as the present code has them: {key}\n")


def test_export_expects_the_folder_before_keys(capsys, tmp_path):
    key = answer(capsys, "run", "local", *SMALL)["key"]
    (tmp_path / "file").touch()
    for where, why in ((key, "is the key of a run"), ("file", "is a file")):
        assert main(["runs", "export", where]) == 2
        assert why in capsys.readouterr().err
    assert main(["runs", "export", "--results", "--paper", "fedpews"]) == 2
    assert "nothing to write" in capsys.readouterr().err and not (tmp_path / key).exists()


def test_a_run_whose_data_are_gone_is_still_fresh(capsys, tmp_path):
    write_npz(tmp_path / "data", "mine", value=1)
    answer(capsys, "run", "local", *SMALL, "--data", "mine", "--partition", "iid", "--clients", "2")
    for _ in range(2):
        main(["runs", "list"])
        assert " fresh" in capsys.readouterr().out
        (tmp_path / "data" / "mine.npz").unlink(missing_ok=True)


LONG = ["run", "fedselect", "--model", "mlp", "--clients", "5", "--rounds", "6", "--set", "p=0.2"]


def test_a_run_can_stop_early_and_continue(capsys):
    """Its record says how far it is; with its state kept it goes on from there, and ends with the same bits."""
    whole = Store().get(answer(capsys, *LONG)["key"])
    main(["runs", "clean", "--all"])
    half = answer(capsys, *LONG, "--until", "4", "--keep-state")
    assert (half["rounds"], half["key"], half["stored"]) == (4, whole.key, False)
    record = Store().get(whole.key)
    assert record.partial and record.length == "4 of 6" and not record.stale
    assert main([*LONG, "--until", "3", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[1:3] == ["1", "0"]
    assert main([*LONG, "--until", "3", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["stored"] and "has 4 rounds already" in err
    main(["runs", "list"])
    assert " 4 of 6 " in capsys.readouterr().out
    assert main([*LONG, "--until", "4"]) == 0
    assert "stopped early: 4 of 6 rounds" in capsys.readouterr().out
    assert Store().checkpoint(whole.key).exists()
    rounds_done = []
    execute(record.spec, Store(), on_round=rounds_done.append)
    assert rounds_done == [5, 6]
    done = Store().get(whole.key)
    assert not done.partial and done.state == whole.state and not Store().checkpoint(whole.key).exists()
    for name, series in whole.series.items():
        assert name == "seconds" or str(done.series[name]) == str(series), name


def test_several_runs_stop_early_keep_their_states_and_give_their_models(capsys, tmp_path):
    sweep_of = ["run", "local", *SMALL, "--rounds", "3", "--seed", "0-1", "--until", "2", "--keep-state"]
    assert main([*sweep_of, "--save-models", "models", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["seed"], row["rounds"], row["stored"]) for row in rows] == [(0, 2, False), (1, 2, False)]
    for row in rows:
        assert Store().checkpoint(row["key"]).exists() and row["models"] == f"models/{row['key']}"
        assert (tmp_path / row["models"] / "models.json").exists()
    assert main(sweep_of) == 0
    assert "2 of 2 runs were stored already" in capsys.readouterr().out


def test_a_finished_run_is_continued_to_more_rounds(capsys):
    whole = answer(capsys, *LONG, "--rounds", "8")
    main(["runs", "clean", "--all"])
    capsys.readouterr()
    assert main([*LONG, "--keep-state"]) == 0
    assert "the same command with more --rounds continues from it" in capsys.readouterr().out
    assert main([*LONG, "--rounds", "8", "--json"]) == 0
    out, err = capsys.readouterr()
    continued = json.loads(out.splitlines()[-1])
    assert "pfl: continues after the 6 rounds of run" in err
    assert whole | {"seconds": 0} == continued | {"seconds": 0}


def test_a_state_that_was_not_kept_is_computed_again(capsys):
    key = answer(capsys, *LONG)["key"]
    before = Store().path(key).read_bytes()
    assert answer(capsys, *LONG, "--keep-state")["stored"]
    assert Store().checkpoint(key).exists() and Store().path(key).read_bytes() == before


def test_what_a_kept_state_is_good_for_is_said(capsys):
    warm_up = ["run", "fedpews", *SMALL, "--set", "tau=0.5", "--keep-state"]
    assert main(warm_up) == 0
    assert "cannot continue from it: the warm-up is the share tau=0.5" in capsys.readouterr().out
    assert main([*warm_up, "--rounds", "4"]) == 0
    assert "starts at round 0, not after the 2 rounds of run" in capsys.readouterr().err
    assert main([*LONG, "--until", "4", "--keep-state"]) == 0
    assert "the same command without --until continues from it" in capsys.readouterr().out


def test_models_are_saved_and_exported(capsys, tmp_path):
    first = answer(capsys, "run", "ditto", *SMALL, "--save-models", "models")
    assert first["models"] == "models" and not first["stored"]
    assert not Store().checkpoint(first["key"]).exists()
    record, models = Store().get(first["key"]), load_models("models")
    assert [c["correct"] for c in models.info["clients"]] == record.values("correct").iloc[-1].tolist()
    other = answer(capsys, "run", "star_pfl", *SMALL)["key"]
    assert main(["runs", "export", "--models", "both", first["key"], other]) == 0
    assert "reports accuracy after local training" in capsys.readouterr().out
    for path in (tmp_path / "models").iterdir():
        assert (tmp_path / "both" / first["key"] / path.name).read_bytes() == path.read_bytes(), path.name
    assert main(["runs", "export", "--models", "one", other]) == 0
    assert f"models of 5 clients in one, {size(sum(f.stat().st_size for f in Path('one').glob('*.s*')))};" in (
        capsys.readouterr().out
    )
    assert load_models("one").info["key"] == other == load_models(Path("both") / other).info["key"]
    assert sorted(path.suffix for path in Store().root.iterdir() if path.is_file()) == [".json", ".json"]


def test_without_its_state_a_stopped_run_starts_over(capsys):
    half = answer(capsys, *LONG, "--until", "4")
    assert not Store().checkpoint(half["key"]).exists()
    whole = answer(capsys, *LONG)
    assert (whole["rounds"], whole["stored"]) == (6, False) and not Store().get(whole["key"]).partial


def test_a_read_only_folder_is_reported_before_anything_is_computed(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("pfl_core.engine.run", lambda *_, **__: pytest.fail("computed in vain"))
    (tmp_path / "data").touch()
    assert main(["run", "local", *SMALL]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_diverged_run_and_a_run_without_upload_sizes_are_reported(capsys, tmp_path):
    (tmp_path / "silent_method.py").write_text(
        "from pfl_core.algorithms.fedavg import FedAvg\n\n\nclass Silent(FedAvg):\n"
        "    def round(self, fed, state, clients, t):\n        return super().round(fed, state, clients, t)[0], {}\n",
        encoding="utf-8",
    )
    assert main(["run", "silent_method:Silent", *SMALL]) == 0
    out = capsys.readouterr().out
    assert "upload of all clients: not recorded" in out and "training diverged" not in out
    for rate in ("1e30", "1e5"):  # NaN, and a loss that is finite
        assert main(["run", "fedavg", *SMALL, "--lr", rate]) == 0
        assert "training diverged" in capsys.readouterr().out


def test_records_whose_code_is_gone_are_named_in_one_line_and_can_be_deleted(capsys, tmp_path, monkeypatch):
    (tmp_path / "gone_module.py").write_text(OUTSIDE, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "gone_module", raising=False)
    mine = answer(capsys, "run", "local", *SMALL)["key"]
    assert main(["run", "gone_module:Mine", *SMALL, "--seed", "0-2", "--quiet"]) == 0
    (tmp_path / "gone_module.py").unlink()
    monkeypatch.delitem(sys.modules, "gone_module")
    for command in (["runs", "list"], ["runs", "clean"], ["run", "local", *SMALL, "--dry-run"]):
        assert main(command) == 0
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("pfl: skipped 3 stored runs, because the code cannot be imported here")
        assert "`pfl runs clean --without-code` deletes those of the data folder" in line and "has gone_module" in line
    assert main(["runs", "clean", "--without-code"]) == 0
    out, err = capsys.readouterr()
    assert "deleted 3 files" in out and err == "" and [row["key"] for row in stored_runs(capsys)] == [mine]


def test_clean_deletes_records_of_other_versions(capsys, monkeypatch):
    stale = answer(capsys, "run", "local", *SMALL)["key"]
    monkeypatch.setattr("pfl_core.runs.versions.ENGINE", 2)
    fresh = answer(capsys, "run", "local", *SMALL)["key"]
    assert main(["runs", "clean", "--stale"]) == 0
    assert f"deleted {stale}.json" in capsys.readouterr().out
    assert Store().get(fresh) is not None and Store().get(stale) is None


def test_compare_shows_runs_of_a_preset_but_not_those_that_were_changed_by_hand(capsys):
    """FedAvg of Table 1, CIFAR-10; here on the stand-in of preset quick, with one short round."""
    command = "run fedavg --paper fedselect --preset quick --rounds 1 --epochs 1".split()
    record = Store().get(answer(capsys, *command)["key"])
    assert all(row["ours"] is None for row in compared(capsys))
    own = dataclasses.replace(record.spec, changed=False)
    assert Store().locate(own)[1].spec == own == Store().get(record.key).spec, "asked for as the preset's own run"
    (row,) = [row for row in compared(capsys) if row["ours"] is not None]
    assert (row["table"], row["dataset"], row["method"]) == ("table1", "CIFAR-10", "FedAvg")
    assert row["ours"] == pytest.approx(record.summary()["acc_mean"])
    assert (row["preset"], row["seeds"], row["stale"], row["spread"]) == ("quick", [0], False, None)
    assert "Fashion-MNIST (7,000 images, 14x14)" in row["data"]
    main(["compare", "fedselect"])
    name, columns, *lines = capsys.readouterr().out.splitlines()
    assert name == "fedselect" and columns.split() == ["here" if column == "ours" else column for column in ROW]
    lines = [line for line in lines if line.startswith("table")]
    assert {line.index("mean_client_accuracy") for line in lines} == {columns.index("metric")}
    (shown,) = [line.split() for line in lines if "quick" in line.split()]
    assert shown[:3] == ["table1", "CIFAR-10", "FedAvg"]
    rest = f"{row['paper']:.4g} - {row['ours']:.4g} - quick {row['data']} {row['differs']} 0 no -"
    assert shown[5:] == rest.split()


def compared(capsys) -> list[dict]:
    assert main(["compare", "fedselect", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("runs", ["--seed 0", "--seed 0,1 --jobs 2"])
def test_small_batches_with_batch_norm_give_a_warning(runs, capsys, tmp_path, monkeypatch):
    """20 images of each client in batches of 16 leave one of 4; the runs continue, and it is said once."""
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    line = "run fedavg --model lenet_small --rounds 1 --batch-size 16 --set partition.train_per_class=10"
    assert main([*line.split(), *runs.split()]) == 0
    warning = "pfl: batch norm: the last batch of 10 of 10 clients has fewer than 8 samples (minimum 4"
    assert capsys.readouterr().err.count(warning) == 1


def spec_of(*command: str):
    """The spec that the command would run."""
    args = parser().parse_args(["run", *command])
    ((spec,),) = (row.specs for row in variations(args, [args.method]))
    return spec


def test_without_a_paper_a_method_is_tried_with_settings_that_learn():
    """Defaults of classes are the papers'; 20 rounds on digits need others, which what is set replaces."""
    for name, entry in methods().items():
        made = spec_of(name)
        assert made.train == Training(**{"lr": 0.2, "batch_size": 8, "momentum": 0.0, **entry.trial_training}), name
        if name.startswith("fedpews"):  # its warm-up refuses momentum
            assert made.train.momentum == 0
        assert made.method == {"name": name, **entry.trial} and not made.changed
    assert spec_of("pfedgate").build_method().scale_bias_init == 3.0
    mine = spec_of("pfedgate", "--set", "lr_gate=0.2", "--lr", "0.3")
    assert (mine.method["lr_gate"], mine.train.lr, mine.train.momentum) == (0.2, 0.3, 0.9)
    assert spec_of("pfedgate", "--set", "sigmoid=false").method == {"name": "pfedgate", "sigmoid": False}  # no bias
    with pytest.raises(ValueError, match="keep_ratio=2"):
        spec_of("pfedgate", "--set", "keep_ratio=2")
    assert "scale_bias_init" not in spec_of("pfedgate", "--paper", "pfedgate", "--preset", "paper").method


def test_settings_with_which_pfedgate_cannot_train_are_reported(capsys):
    assert main(["run", "pfedgate", *SMALL, "--batch-size", "1"]) == 2
    assert "batch_size=1 trains nothing" in capsys.readouterr().err
    assert main(["run", "pfedgate", *SMALL, "--reading", "authors_code", "--set", "keep_ratio=0.001"]) == 0
    assert "infeasible" in capsys.readouterr().out
