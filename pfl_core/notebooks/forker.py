"""A process that has the slow imports behind it, and forks a kernel for each line that it is sent.

Run as a script, by ``pfl_core.notebooks.kernels``; it imports libraries only, so that each kernel reads this package's
code as it is when the kernel starts. No threads, event loops or kernel sockets exist here that a fork could break.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from types import SimpleNamespace

LIBRARIES = (
    "ipykernel.ipkernel",
    "joblib.externals.loky",
    "matplotlib.pyplot",
    "pandas",
    "scipy.special",
    "torch",
)


def main() -> None:
    """Answer each line (a kernel's arguments and folder, as JSON) with the number of its process, until none comes."""
    del sys.path[0]  # this script's folder
    os.environ["JPY_PARENT_PID"] = str(os.getpid())  # kernels end with this process; read when ipykernel is imported
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")  # a kernel's, read by matplotlib
    builtins.get_ipython = lambda: SimpleNamespace(kernel=None)  # pandas asks at its import if this is a notebook
    for name in LIBRARIES:
        with suppress(ImportError):  # a cell that needs it will say so
            importlib.import_module(name)
    del builtins.get_ipython
    gc.freeze()  # what is here stays: when kernels collect garbage, they need not look at it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for kernels: the system reaps them
    with socket.socket(fileno=os.dup(0)) as stdin:
        line = stdin.makefile("rw", encoding="utf-8")
    for request in line:
        if (pid := os.fork()) == 0:
            line.close()
            return kernel(*json.loads(request))
        print(pid, file=line, flush=True)


def kernel(arguments: list[str], folder: str) -> None:
    """What is left of a fresh kernel's start."""
    from ipykernel.kernelapp import launch_new_instance

    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.chdir(folder)
    sys.argv[1:] = arguments
    launch_new_instance()


if __name__ == "__main__":
    main()
