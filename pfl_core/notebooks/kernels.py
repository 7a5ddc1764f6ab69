"""Jupyter kernels with this environment's Python. On Linux they are forked from a server with pre-imported libraries.

If all runs of a notebook are stored, most of its time is spent on imports (Jupyter, torch, pandas, matplotlib). The
fork server (``fork_server.py``) imports these once for all notebooks. Otherwise forked kernels behave like new ones.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, TextIO
from uuid import uuid4

running: set[Any] = set()  # the kernel managers of the notebooks that run now, each in its thread
_LOCK = threading.Lock()  # for the fork server, which these threads share
FORKS = sys.platform == "linux"  # macOS libraries may crash after a fork, and Windows has none


@dataclass(frozen=True)
class Process:
    """A forked kernel, with the methods of ``subprocess.Popen`` that Jupyter uses."""

    pid: int
    stdin = stdout = stderr = None

    def poll(self) -> int | None:
        """None while the process runs, then 0: only its parent, the fork server, could read the exit status."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    wait = poll  # Jupyter calls it only after the kernel has ended

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


class ForkServer:
    """A running ``fork_server.py``, with the environment of its kernels. It ends with this object or this process."""

    def __init__(self, env: Mapping[str, str]) -> None:
        client, server = socket.socketpair()
        with client, server:  # the connection and the child process hold copies
            command = [sys.executable, str(Path(__file__).with_name("fork_server.py"))]
            self.process = subprocess.Popen(command, stdin=server.fileno(), env=dict(env), start_new_session=True)
            self.connection = client.makefile("rw", encoding="utf-8")
        weakref.finalize(self, _stop, self.process, self.connection)

    def fork(self, arguments: Sequence[str]) -> Process:
        """Start a kernel in the current folder. Raises RuntimeError if the server has died."""
        try:
            print(json.dumps([arguments, os.getcwd()]), file=self.connection, flush=True)
            return Process(int(self.connection.readline()))
        except (OSError, ValueError):
            fork_server.cache_clear()
            raise RuntimeError("the fork server of the notebook kernels has died") from None


def _stop(process: subprocess.Popen, connection: TextIO) -> None:
    process.kill()
    process.wait()
    with suppress(OSError):
        connection.close()


@lru_cache(maxsize=2)
def fork_server(env: frozenset[tuple[str, str]]) -> ForkServer:
    """The server for this environment. Another environment needs another one: libraries read it when imported.

    Two are kept, since kernels end with their server: stored evidence and presets are drawn side by side.
    """
    return ForkServer(dict(env))


def kernel_manager(env: Mapping[str, str]) -> type:
    """A kernel manager class that uses this environment's Python, with ``env`` added to the kernel's environment.

    The kernels that the user has installed are ignored.
    """
    import zmq
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from traitlets import default

    class EnvironmentKernelManager(AsyncKernelManager):
        processes: ClassVar[list[Any]] = []  # of this notebook's kernels
        terminated = False

        @classmethod
        def terminate(cls) -> None:
            """End the notebook's kernel, and any that is started later."""
            cls.terminated = True
            for process in cls.processes:
                process.send_signal(signal.SIGTERM)

        @default("kernel_spec_manager")
        def _only_this_environment(self) -> KernelSpecManager:
            return KernelSpecManager(kernel_dirs=[])  # without folders to search, it uses this environment's ipykernel

        @default("transport_encryption")
        def _encrypted_if_available(self) -> str:  # otherwise ipykernel prints a warning at every start
            return "auto" if zmq.has("curve") else "disabled"

        @default("transport")
        def _without_ports(self) -> str:  # which another process may take before the kernel does
            return "tcp" if sys.platform == "win32" else "ipc"

        @default("ip")
        def _own_sockets(self) -> str:
            return f"{tempfile.gettempdir()}/pfl-{uuid4().hex}" if self.transport == "ipc" else "127.0.0.1"

        async def _async_start_kernel(self, **options: Any) -> None:
            await super()._async_start_kernel(**{**options, "env": {**os.environ, **env}})

        start_kernel = _async_start_kernel

        async def _async_launch_kernel(self, kernel_cmd: list[str], **kw: Any) -> None:
            provisioner: Any = self.provisioner  # a LocalProvisioner
            if FORKS:
                with _LOCK:
                    server = fork_server(frozenset(kw["env"].items()))
                    provisioner.process = server.fork(kernel_cmd[kernel_cmd.index("-f") :])
                provisioner.pid = provisioner.pgid = provisioner.process.pid
            else:
                await super()._async_launch_kernel(kernel_cmd, **kw)
            self.processes.append(provisioner.process)
            if self.terminated:
                self.terminate()

        async def _async_cleanup_resources(self, restart: bool = False) -> None:
            """Also end worker processes that a killed kernel left in its process group."""
            provisioner: Any = self.provisioner
            with suppress(OSError, AttributeError):  # no such processes, or no killpg (Windows)
                os.killpg(provisioner.pgid, signal.SIGTERM)
            await super()._async_cleanup_resources(restart)

        cleanup_resources = _async_cleanup_resources

    return EnvironmentKernelManager
