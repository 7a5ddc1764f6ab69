"""Kernels of this environment's own Python: forked, where that is safe, from a process that has done the imports.

A notebook's imports (Jupyter's own, torch, pandas, matplotlib) take longer than all else where its runs are stored.
A batch makes them once, in ``forker.py``; whatever else a kernel does is as in a fresh process.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

FORKS = sys.platform == "linux"  # elsewhere system libraries may not survive a fork


@dataclass(frozen=True)
class Process:
    """A forked kernel, with what Jupyter asks of a Popen."""

    pid: int
    stdin = stdout = stderr = None

    def poll(self) -> int | None:
        """None while it runs, then 0: how it ended, only the process that forked it could tell."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    wait = poll  # it is called once the kernel has ended

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


class Forker:
    """``forker.py`` at work, with the environment of the kernels to come; it ends with this object or this process."""

    def __init__(self, env: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:  # the file and the process keep them open
            command = [sys.executable, str(Path(__file__).with_name("forker.py"))]
            self.process = subprocess.Popen(command, stdin=theirs, env=env, start_new_session=True)
            self.line = ours.makefile("rw", encoding="utf-8")
        weakref.finalize(self, _end, self.process, self.line)

    def fork(self, arguments: Sequence[str]) -> Process:
        """A kernel with these arguments, in the folder where we are. Raises RuntimeError if the forker has died."""
        try:
            print(json.dumps([arguments, os.getcwd()]), file=self.line, flush=True)
            return Process(int(self.line.readline()))
        except (OSError, ValueError):
            forker.cache_clear()
            raise RuntimeError("the process that kernels are forked from has died") from None


def _end(process: subprocess.Popen, line: TextIO) -> None:
    process.kill()
    process.wait()
    with suppress(OSError):
        line.close()


@lru_cache(maxsize=1)
def forker(env: frozenset[tuple[str, str]]) -> Forker:
    """The same one for as long as the environment is the same: libraries read theirs when they are imported."""
    return Forker(dict(env))


def kernel_manager(env: Mapping[str, str]) -> type:
    """A kernel manager for this environment's own Python, whatever kernels the user has, with ``env`` added."""
    import zmq
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from traitlets import default

    class OwnKernel(AsyncKernelManager):
        @default("kernel_spec_manager")
        def _only_this_environment(self) -> KernelSpecManager:
            return KernelSpecManager(kernel_dirs=[])  # no folder to search: it then takes the ipykernel beside us

        @default("transport_encryption")
        def _encrypted_where_possible(self) -> str:  # ipykernel warns at every start otherwise
            return "auto" if zmq.has("curve") else "disabled"

        async def _async_start_kernel(self, **options: Any) -> None:
            await super()._async_start_kernel(**{**options, "env": {**os.environ, **env}})

        start_kernel = _async_start_kernel

        async def _async_launch_kernel(self, command: list[str], **options: Any) -> None:
            if not FORKS:
                return await super()._async_launch_kernel(command, **options)
            kernel = self.provisioner
            kernel.process = forker(frozenset(options["env"].items())).fork(command[command.index("-f") :])
            kernel.pid = kernel.pgid = kernel.process.pid

        async def _async_cleanup_resources(self, restart: bool = False) -> None:
            """At the very end: worker processes of a kernel that had to be killed are left in its process group."""
            with suppress(OSError, AttributeError):  # as a rule there are none
                os.killpg(self.provisioner.pgid, signal.SIGTERM)
            await super()._async_cleanup_resources(restart)

        cleanup_resources = _async_cleanup_resources

    return OwnKernel
