"""A fork server with pre-imported libraries: forks a Jupyter kernel for each request.

``pfl_core.notebooks.kernels`` runs this file as a script, on Linux only. It imports libraries but not this package, so
that each kernel imports the package's current code. Forking is safe because this process has no threads, event loops
or kernel sockets.
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
    "seaborn",
    "torch",
)


def main() -> None:
    """Serve requests on stdin, a socket, until it is closed.

    A request is a line of JSON: the kernel's arguments and its working folder. The reply is the kernel's process id.
    """
    del sys.path[0]  # this script's folder
    os.environ["JPY_PARENT_PID"] = str(os.getpid())  # ipykernel reads it on import; kernels end with this process
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")  # as in a kernel
    # pandas checks on import whether it is in a notebook
    builtins.get_ipython = lambda: SimpleNamespace(kernel=None)  # type: ignore[attr-defined]
    for name in LIBRARIES:
        with suppress(ImportError):  # reported by the cell that needs it
            importlib.import_module(name)
    del builtins.get_ipython  # type: ignore[attr-defined]
    gc.freeze()  # garbage collection in kernels can skip the objects that exist now
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended kernels leave no zombie processes
    with socket.socket(fileno=os.dup(0)) as stdin:
        connection = stdin.makefile("rw", encoding="utf-8")
    for request in connection:
        if (pid := os.fork()) == 0:  # in the kernel's process
            connection.close()
            return start_kernel(*json.loads(request))
        print(pid, file=connection, flush=True)


def start_kernel(arguments: list[str], folder: str) -> None:
    """The remaining steps of a kernel's start, after the fork."""
    from ipykernel.kernelapp import launch_new_instance

    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(os.devnull, "rb") as empty:
        os.dup2(empty.fileno(), 0)
    os.chdir(folder)
    sys.argv[1:] = arguments
    launch_new_instance()


if __name__ == "__main__":
    main()
