"""Ctrl-C and SIGTERM end the command with one line and status 130 or 143, whatever it is doing.

Each test is a small process that sends itself the signal. ``tests/fuzz/kills.py`` does it at random moments.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pfl_core.cli import signals
from pfl_core.runs.provenance import ROOT

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM between processes")
START = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from pfl_core.cli import command, main, signals

def send():
    os.kill(os.getpid(), int(sys.argv[1]))

def run(do):
    command.run_command = do
    raise SystemExit(main())
"""
CASES = {
    "while a module is imported, which hides exceptions": """
        open("mine.py", "w").write("import __main__\\ntry: __main__.send()\\nexcept BaseException: print('hidden')")
        sys.path.insert(0, os.getcwd())
        run(lambda argv: __import__("mine") and 0)
    """,
    "while a file is written": """
        def work(argv):
            try:
                open("file.part", "w").close()
                send()
            finally:
                os.remove("file.part")
        run(work)
    """,
    "in a destructor, where Python drops the exception": """
        class Thing:
            def __del__(self): send()
        def work(argv):
            Thing()
            while True: pass
        run(work)
    """,
    "and a library replaces the exception": """
        real = command.run_command
        def work(args):
            try: send()
            except KeyboardInterrupt: raise ImportError("numpy is broken")
        command._without_exit = work
        sys.argv[2:] = ["methods"]
        command.run_command = lambda argv: real(["methods"])
        raise SystemExit(main())
    """,
    "when the command has ended": """
        import atexit
        atexit.register(send)
        run(lambda argv: 0)
    """,
    "twice": """
        def work(argv):
            try: send()
            finally:
                send()
                print("hangs")
        run(work)
    """,
    "with a child process": """
        import multiprocessing, time
        def work(argv):
            child = multiprocessing.get_context("fork").Process(target=time.sleep, args=[60])
            child.start()
            print(child.pid, flush=True)
            try: send()
            finally: send()
        run(work)
    """,
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("case", CASES)
def test_a_signal_is_one_line(case: str, number: signal.Signals, tmp_path: Path) -> None:
    lines = [line.removeprefix("        ") for line in CASES[case].splitlines()]
    command = [sys.executable, "-c", START + "\n".join(lines), str(int(number))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=20)
    assert done.returncode == 128 + number, done.stderr
    word = "interrupted" if number == signal.SIGINT else "terminated"
    assert done.stderr.startswith(f"pfl: {word}; finished runs are stored") and done.stderr.count("\n") == 1
    assert not list(tmp_path.glob("*.part"))
    if "child" in case:
        status, end = Path(f"/proc/{done.stdout.strip()}/status"), time.monotonic() + 10
        while status.exists() and "zombie" not in status.read_text(encoding="utf-8"):
            assert time.monotonic() < end, "the worker process lives on"
            time.sleep(0.05)
    else:
        assert done.stdout == ""


def test_a_command_called_from_python_leaves_the_handlers_alone() -> None:
    from pfl_core.cli import main

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert main(["figurs"]) == 2
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("given", [(), ("text",), (99,), (None, 3)])
def test_an_interrupt_that_is_no_signal_counts_as_ctrl_c(given: tuple, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Code of the user may raise a KeyboardInterrupt with any arguments."""
    monkeypatch.setattr(signals, "_reported", False)
    assert signals.interrupted(KeyboardInterrupt(*given)) == 130
    assert capsys.readouterr().err.startswith("pfl: interrupted; ")
