"""Commands that show what is stored, once an earlier command has written the index of the records."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

BOUND = 1.6  # at most 1 s of the processor beyond `import torch`, where that takes 1.6 s


def processor_time() -> float:
    """Of the child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize("command", ["runs list --all", "compare fedselect"])
def test_a_command_takes_little_more_than_importing_torch(command, compare, tmp_path):
    def python(*arguments: str) -> None:
        environment = {**os.environ, "PFL_DATA_DIR": str(tmp_path)}
        subprocess.run([sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL, check=True)

    python("-m", "pfl_core.cli", *command.split())  # writes the index
    compare(
        f"`pfl {command}`",
        "`import torch`",
        lambda: python("-c", "import torch"),
        lambda: python("-m", "pfl_core.cli", *command.split()),
        turns=5,
        bound=BOUND,
        timer=processor_time,
    )
