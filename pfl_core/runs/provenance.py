"""Provenance of a result: versions of Python and libraries, commit, machine."""

from __future__ import annotations

import platform
import re
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

PACKAGE = "pfl_core"
ROOT = Path(__file__).resolve().parents[2]  # the checkout, with notebooks/, data/ and figures/ beside the package
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
    """The processor's model: from /proc/cpuinfo on Linux, else what `platform` reports."""
    try:
        model = re.search(r"^model name\s*:\s*(.+)$", CPUINFO.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:  # not Linux
        model = None
    return model[1].strip() if model else platform.processor() or "unknown processor"


@cache
def commit() -> str:
    """The commit of this project's checkout, with a + if files were changed; "unknown" if this is no checkout."""
    try:
        head, changes, prefix = (
            subprocess.run(["git", *args], cwd=ROOT, capture_output=True, encoding="utf-8", check=True).stdout.strip()
            for args in _GIT
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    # a non-empty prefix: ROOT is a subfolder of another project's checkout
    return "unknown" if prefix else head + ("+" if changes else "")


_GIT = (
    ("rev-parse", "--short=10", "HEAD"),
    ("status", "--porcelain", "--untracked-files=no", "--", PACKAGE),
    ("rev-parse", "--show-prefix"),
)
