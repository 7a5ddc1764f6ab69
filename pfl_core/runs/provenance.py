"""Where a result comes from: versions of Python and libraries, commit, and the machine."""

from __future__ import annotations

import platform
import re
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

PACKAGE = "pfl_core"
ROOT = Path(__file__).resolve().parents[2]  # the checkout: notebooks/, data/, figures/ lie beside the package
CPUINFO = Path("/proc/cpuinfo")


def describe() -> dict[str, str]:
    """Versions, commit, machine and processor, as plain strings."""
    packages = ("torch", "numpy", "scikit-learn")
    return {
        "python": platform.python_version(),
        **{name: version(name).partition("+")[0] for name in packages},
        "commit": commit(),
        "machine": f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} thread(s)",
        "processor": processor(),
    }


@cache
def processor() -> str:
    """The processor's model as the system names it."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", CPUINFO.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:  # no Linux
        found = None
    return found[1].strip() if found else platform.processor() or "a processor that the system does not name"


@cache
def commit() -> str:
    """The checkout's commit, with a + where files differ from it; "unknown" outside a checkout of ours."""
    options = {"cwd": ROOT, "capture_output": True, "text": True, "encoding": "utf-8", "check": True}
    try:
        run = [subprocess.run(["git", *args], **options) for args in _GIT]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    head, changes, inside = (part.stdout.strip() for part in run)
    return "unknown" if inside else head + ("+" if changes else "")  # inside: installed within somebody's checkout


_GIT = (
    ("rev-parse", "--short=10", "HEAD"),
    ("status", "--porcelain", "--untracked-files=no", "--", PACKAGE),
    ("rev-parse", "--show-prefix"),
)
