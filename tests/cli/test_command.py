"""How the command ends: errors of its own and of the user's code, warnings, output that cannot be written."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from pfl_core.cli import main
from pfl_core.deadline import SweepError
from pfl_core.runs.provenance import ROOT

pytestmark = pytest.mark.usefixtures("folders")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("run tests.fuzz.users:Raises", "RuntimeError: first line second line"),
        ("run tests.fuzz.users:Exits", "sys.exit('enough')"),
        ("run tests.fuzz.users:Unusual", "BaseException: unusual"),
        ("run tests.fuzz.users:RaisesSilent", "pfl: Silent"),
    ],
)
def test_an_error_of_the_users_code_is_one_line_and_status_1(command, words, capsys, tmp_path):
    assert main(command.split()) == 1
    err = capsys.readouterr().err
    assert err.startswith("pfl: ") and words in err and err.count("\n") == 1 and "--debug" in err
    for debug in (["--debug", *command.split()], [*command.split(), "--debug"]):
        assert main(debug) == 1
        assert "Traceback" in (err := capsys.readouterr().err) and words in err.splitlines()[-1]
    assert not list(tmp_path.glob("**/*.json")) and not list(tmp_path.glob("**/*.part"))


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError("first line\n  second line"), "pfl: first line second line\n"),
        (BrokenPipeError(), "pfl: BrokenPipeError\n"),  # not that of the command's own output
        (TimeoutError(), "pfl: TimeoutError\n"),
        (ValueError(), "pfl: ValueError\n"),
    ],
)
def test_an_error_is_one_line_with_its_message_or_its_name(error, line, capsys, monkeypatch):
    def fails(names, folder, offline):
        raise error

    monkeypatch.setattr("pfl_core.data.fetch", fails)
    assert main(["data"]) == 2
    assert capsys.readouterr().err == line


@pytest.mark.filterwarnings("default")
def test_a_warning_of_several_lines_is_printed_as_one(capsys, monkeypatch):
    def warns(names, folder, offline):
        warnings.warn("first line\n  second line", stacklevel=1)
        return []

    monkeypatch.setattr("pfl_core.data.fetch", warns)
    assert main(["data"]) == 0
    assert capsys.readouterr().err == "pfl: first line second line\n"


def test_failed_runs_of_a_sweep_give_status_1(capsys, monkeypatch):
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


def test_what_is_printed_is_utf8_whatever_the_locale(tmp_path):
    """The meaning of α on stdout and a wrong value on stderr, in an ASCII locale that Python must not replace."""
    wrong = ["run", "fedselect", "--set", r'alpha="\u03b1"']  # JSON for α
    code = f"from pfl_core.cli import main; raise SystemExit(main(['methods', 'fedselect']) or main({wrong}))"
    env = {name: given for name, given in os.environ.items() if name != "PYTHONIOENCODING"}
    env |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True)
    assert "α, personalization limit" in done.stdout.decode("utf-8"), done.stderr
    assert "alpha='α'" in done.stderr.decode("utf-8") and done.returncode == 2
