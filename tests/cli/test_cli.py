"""The ``pfl`` command: one line for bad input, and the output of methods, data and compare."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from pfl_core.algorithm import methods
from pfl_core.cli import main
from pfl_core.cli.arguments import value
from pfl_core.cli.output import as_json, duration, size, table
from pfl_core.runs.provenance import ROOT
from pfl_core.study.compare import ROW

pytestmark = pytest.mark.usefixtures("folders")
BAD = [  # command line -> what the message must contain: the value, what was expected or what to do
    ("", "required: COMMAND", "pfl --help"),
    ("figurs", "'figurs'", "figures"),
    ("run", "METHOD", "pfl run --help"),
    ("run fedselectt", "unknown method 'fedselectt' (did you mean 'fedselect'?)", "package.module:Class"),
    ("run no_such_module:Thing", "'no_such_module:Thing'", "cannot be imported"),
    ("run json:loads", "'json:loads'", "not a subclass of pfl_core.Algorithm"),
    ("run fedselect --data digitz", "'digitz'", "digits"),
    ("run fedavg --seed " + 5000 * "9", "'99999", "18 digits"),
    ("run fedavg --clients " + 5000 * "9", "'99999", "18 digits"),
    ("run fedavg --clients 10000000000", "10000000000 clients", "1797 samples"),
    ("run fedavg --set x=" + 5000 * "9", "'99999", "too large"),
    ("run fedavg --set x=" + 100_000 * "[", "'[[[[", "nested too deeply"),
    ("run " + 5000 * "x", "unknown method", "--debug"),
    ("search fedselect fedselct", "'fedselct' (did you mean 'fedselect'?)", "pfl search fedselect --list"),
    ("search fedselect --setting moon", "preset and setting", "--list"),
    ("run fedselect --data cifar100", "'cifar100' is not here", "pfl data cifar100", "PFL_DATA_DIR"),
    ("run fedselect --model resnet", "unknown model 'resnet'", "resnet18"),
    ("run fedselect --partition shard:2", "'shard' (did you mean 'shards'?)"),
    ("run fedselect --partition no_such_module:rule", "'no_such_module:rule'", "cannot be imported"),
    ("run fedselect --partition iid:3", "'iid:3'", "takes no value"),
    ("run fedselect --partition shards:11", "classes_per_client=11", "1..10"),
    ("run fedselect --partition shards:two", "classes_per_client='two'"),
    ("run fedselect --partition dirichlet:0", "alpha=0"),
    ("run fedselect --reading theirs", "'theirs'", "authors_code"),
    ("run fedselect --set alfa=0.3", "'alfa'", "did you mean 'alpha'"),
    ("run fedselect --set alpha=30", "alpha=30", "outside [0, 1]", "0.3"),
    ("run fedselect --set alpha=much", "alpha='much'", "number"),
    ("run fedselect --set alpha=NaN", "NaN", "finite"),
    ("run fedselect --set alpha", "'alpha'", "FIELD=VALUE"),
    ("run fedselect --set rule.alpha=1", "'rule.alpha=1'", "FIELD=VALUE"),
    ("run fedselect --set name=fedavg", "'name=fedavg'", "METHOD"),
    ("run fedselect --set data.size=3", "'digits'", "'size'"),
    ("run fedselect --set model.width=3", "'cnn_small'", "'width'"),
    ("run fedselect --set partition.alpha=3", "'shards'", "'alpha'"),
    ("run fedselect --set train.speed=3", "'speed'"),
    ("run fedselect --clients 0", "'0'", "at least 1"),
    ("run fedselect --rounds many", "'many'", "integer"),
    ("run fedselect --lr fast", "'fast'"),
    ("run fedselect --lr -1", "lr=-1", "greater than or equal to 0"),
    ("run fedselect --lr inf", "lr=inf", "finite"),
    ("run fedselect --set lr_personal=-1", "lr_personal=-1", "greater than or equal to 0"),
    ("run fedselect --set train.clip_norm=-1", "clip_norm=-1", "greater than or equal to 0"),
    ("run fedselect --set run.method=fedavg", "'method'", "lr"),
    ("run fedavg_ft --set finetune_epochs=-1", "finetune_epochs=-1", "greater than or equal to 0"),
    ("run ./mine:HalfStep", "./mine", "module"),
    ("run fedmd --paper pfedgate", "no split 'public'", "'train'"),
    ("run fedselect --device meta", "'meta'", "cpu"),
    ("run fedselect --participation 10", "participation=10", "(0, 1]", "0.1"),
    ("run fedselect --device tpu9", "'tpu9'", "cpu"),
    ("run fedselect --preset quick", "--preset quick", "--paper"),
    ("run fedselect --paper fedselct", "'fedselct'", "did you mean 'fedselect'"),
    ("run fedselect --paper fedselect --preset huge", "'huge'", "quick"),
    ("runs list --stale", "--stale"),
    ("runs list --paper fedselct", "'fedselct'", "did you mean 'fedselect'"),
    ("runs list --preset huge", "'huge'", "quick"),
    ("runs export", "folder"),
    ("runs export --results", "select the runs", "--preset"),
    ("runs export out 0123", "'0123'", "pfl runs list"),
    ("runs export out", "no stored run matches"),
    ("runs clean --all --stale", "not allowed with"),
    ("data digitz", "'digitz'", "digits"),
    ("compare fedselct", "'fedselct'", "fedselect"),
    ("figures fedselct", "'fedselct'", "did you mean 'fedselect'"),
    ("figures --preset huge", "'huge'", "quick"),
    ("figures --jobs 0", "'0'", "at least 1"),
    ("figures -p PRESET huge", "huge", "quick"),
    ("figures -p SEEDS 3", "SEEDS 3", "list"),
    ("figures -p OVERRIDES 3", "OVERRIDES 3", "object"),
    ("figures fedselect/02_personalization_limit -p ROUNDS 3", "'ROUNDS'", "OVERRIDES"),
    ("figures --write-notebooks --preset paper", "from the evidence"),
    ("figures across --preset paper", "across has no preset 'paper'", "real, quick, ci"),
    ("run local --paper across --preset paper", "across has no preset 'paper'", "real, quick, ci"),
]


@pytest.mark.parametrize("line", BAD, ids=lambda line: line[0][:60] or "nothing")
def test_bad_input_gives_one_line_and_status_2(line, capsys, tmp_path):
    command, *words = line
    assert main(command.split()) == 2
    out, err = capsys.readouterr()
    assert err.startswith("pfl: ") and err.count("\n") == 1 and err.endswith("\n") and len(err) < 700
    assert all(part in err for part in words), err
    assert "Traceback" not in out + err
    assert not [path for path in tmp_path.glob("**/*") if path.is_file()], "something was written"


def test_wrong_overrides_stop_before_a_notebook_starts(capsys):
    command = ["figures", "fedselect/02_personalization_limit", "-p", "OVERRIDES", '{"round": 3}']
    assert main(command) == 2
    assert "'round' (did you mean 'rounds'?)" in capsys.readouterr().err


def test_an_error_of_many_lines_is_printed_as_one(capsys, monkeypatch):
    def fails(names, folder, offline):
        raise OSError("first line\n  second line")

    monkeypatch.setattr("pfl_core.data.fetch", fails)
    assert main(["data"]) == 2
    assert capsys.readouterr().err == "pfl: first line second line\n"


def test_a_long_error_is_cut_to_600_characters(capsys):
    assert main(["run", "x" * 3000]) == 2
    err = capsys.readouterr().err
    assert len(err) == 601 and err.endswith("(--debug shows all)\n")


FAILING = """
import sys
from dataclasses import dataclass
from pfl_core.algorithms.fedavg import FedAvg

@dataclass(frozen=True)
class Raises(FedAvg):
    def round(self, fed, state, clients, t):
        raise RuntimeError("first line\\nsecond line")

@dataclass(frozen=True)
class Exits(FedAvg):
    def round(self, fed, state, clients, t):
        sys.exit("enough")

@dataclass(frozen=True)
class Unusual(FedAvg):
    def round(self, fed, state, clients, t):
        raise BaseException("unusual")

@dataclass(frozen=True)
class Returns(FedAvg):
    def round(self, fed, state, clients, t):
        return 3

class Silent(Exception):
    def __str__(self):
        raise KeyError

@dataclass(frozen=True)
class RaisesSilent(FedAvg):
    def round(self, fed, state, clients, t):
        raise Silent

def net(in_shape, num_classes):
    return {}["layer"]
"""


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("run failing:Raises", "RuntimeError: first line second line"),
        ("run failing:Exits", "sys.exit('enough')"),
        ("run failing:Unusual", "BaseException: unusual"),
        ("run failing:Returns", "TypeError"),
        ("run failing:RaisesSilent", "pfl: Silent"),
    ],
)
def test_an_error_of_the_users_code_is_one_line_and_status_1(command, words, capsys, tmp_path, monkeypatch):
    (tmp_path / "failing.py").write_text(FAILING, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "failing", raising=False)
    assert main(command.split()) == 1
    err = capsys.readouterr().err
    assert err.startswith("pfl: ") and words in err and err.count("\n") == 1 and "--debug" in err
    for debug in (["--debug", *command.split()], [*command.split(), "--debug"]):
        assert main(debug) == 1
        assert "Traceback" in (err := capsys.readouterr().err) and words in err.splitlines()[-1]
    assert not list(tmp_path.glob("**/*.json")) and not list(tmp_path.glob("**/*.part"))


@pytest.mark.parametrize("error", [BrokenPipeError, TimeoutError, ValueError])
def test_an_error_without_a_message_has_its_name(error, capsys, monkeypatch):
    """Also a broken pipe, if it is not that of the command's own output."""

    def fails(names, folder, offline):
        raise error

    monkeypatch.setattr("pfl_core.data.fetch", fails)
    assert main(["data"]) == 2
    assert capsys.readouterr().err == f"pfl: {error.__name__}\n"


@pytest.mark.filterwarnings("default")
def test_a_warning_of_several_lines_is_printed_as_one(capsys, monkeypatch):
    def warns(names, folder, offline):
        warnings.warn("first line\n  second line", stacklevel=1)
        return []

    monkeypatch.setattr("pfl_core.data.fetch", warns)
    assert main(["data"]) == 0
    assert capsys.readouterr().err == "pfl: first line second line\n"


def test_failed_runs_of_a_sweep_give_status_1(capsys, monkeypatch):
    from pfl_core.runs.sweep import SweepError

    def fails(*args, **options):
        raise SweepError("2 of 3 runs failed, the others are stored:\n  a: ValueError: b\n  c: ValueError: d")

    monkeypatch.setattr("pfl_core.study.search.run_search", fails)
    assert main(["search", "fedselect"]) == 1
    assert capsys.readouterr().err.startswith("pfl: 2 of 3 runs failed, the others are stored: a: ValueError: b c:")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full stands for a full disk")
def test_output_that_cannot_be_written_is_one_line():
    """A full disk, and a reader that has closed the pipe: nothing is reported a second time when Python exits."""
    command = [sys.executable, "-m", "pfl_core.cli", "methods"]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, encoding="utf-8", cwd=ROOT)
    assert done.returncode == 2 and "No space left" in done.stderr and done.stderr.count("\n") == 1
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, encoding="utf-8", cwd=ROOT)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_exits_with_status_0(capsys):
    with pytest.raises(SystemExit) as end:
        main(["run", "--help"])
    assert end.value.code == 0
    assert "dirichlet:ALPHA" in capsys.readouterr().out


def test_methods_as_json_and_as_table(capsys):
    assert main(["methods", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows.keys() == methods().keys()
    assert rows["fedselect"]["variants"]["alpha_0.50"] == {"alpha": 0.5}
    assert rows["fedselect"]["fields"]["p"] == 0.05 and "authors_code" in rows["fedselect"]["readings"]
    assert rows["fedavg"]["file"] == "pfl_core/algorithms/fedavg.py"
    main(["methods"])
    table = capsys.readouterr().out
    assert all(row["name"] in table and row["shares"] in table and row["file"] in table for row in rows.values())


def test_what_is_printed_is_utf8_whatever_the_locale(tmp_path):
    """The meaning of α on stdout and a wrong value on stderr, in an ASCII locale that Python must not replace."""
    wrong = ["run", "fedselect", "--set", r'alpha="\u03b1"']  # JSON for α
    code = f"from pfl_core.cli import main; raise SystemExit(main(['methods', 'fedselect']) or main({wrong}))"
    env = {name: given for name, given in os.environ.items() if name != "PYTHONIOENCODING"}
    env |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True)
    assert "α, personalization limit" in done.stdout.decode("utf-8"), done.stderr
    assert "alpha='α'" in done.stderr.decode("utf-8") and done.returncode == 2


def test_data_lists_all_sets(capsys):
    assert main(["data"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "built in" in lines["digits"] and "missing" in lines["cifar10"]


def test_data_verifies_what_is_here_and_fails_on_what_is_not(capsys, tmp_path):
    assert main(["data", "digits", "--offline"]) == 0
    assert "1,258 + 539 samples" in capsys.readouterr().out
    assert main(["data", "digits", "mnist", "--offline", "--dir", str(tmp_path / "else")]) == 2
    out, err = capsys.readouterr()
    assert "digits" in out and str(tmp_path / "else") in err and err.count("\n") == 1


def test_compare_with_an_empty_store_has_every_row_of_the_paper(capsys):
    assert main(["compare", "fedselect", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {tuple(row) for row in rows} == {tuple(ROW)}
    assert all(row["ours"] is None for row in rows)
    assert any(row["paper"] == 82.2 and row["variant"] == "alpha=0.50" for row in rows)


def test_compare_without_a_paper_shows_all_four(capsys):
    assert main(["compare"]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line in ("fedselect", "star_pfl", "fedpews", "pfedgate")] == [
        "fedselect",
        "star_pfl",
        "fedpews",
        "pfedgate",
    ]
    assert "note: table1, FedSelect: for each data set the largest of the four limits" in out


def test_values_are_json_where_they_can_be():
    texts = ("0.3", "3", "true", "null", "[1, 2]", "per_tensor", '"3"')
    assert [value(text) for text in texts] == [0.3, 3, True, None, [1, 2], "per_tensor", "3"]


def test_json_has_no_numbers_that_json_does_not_know():
    assert as_json({"a": float("nan"), "b": (1.5, float("inf"))}) == '{"a": null, "b": [1.5, null]}'


def test_tables_durations_and_sizes():
    assert table(("a", "long"), [("xyz", None), ("", 0)]) == "a    long\nxyz  -\n-    0"
    assert [duration(s) for s in (0.42, 12, 100, 5400, 200_000)] == ["0.4 s", "12 s", "1.7 min", "1.5 h", "2.3 days"]
    assert [size(b) for b in (12, 1234, 12_345, 3.2e6, 4e9)] == ["12 B", "1.2 kB", "12 kB", "3.2 MB", "4.0 GB"]


@pytest.mark.parametrize(
    "command", ["report", "report fedselect", "runs manifest", "runs export --results --paper fedselect"]
)
def test_what_writes_into_the_repository_is_refused_outside_of_it(tmp_path, monkeypatch, capsys, command):
    """As after the installation of a wheel."""
    monkeypatch.setattr("pfl_core.notebooks.catalogue.NOTEBOOKS", tmp_path)
    assert main(command.split()) == 2
    assert "work in a checkout of the repository" in capsys.readouterr().err
