"""Kernels for nbval: like those of `pfl figures` they know the folder of figures; on Linux a server forks them."""

from __future__ import annotations

import contextlib
from typing import Any

import nbval.kernel
from jupyter_client.manager import KernelManager

from pfl_core.notebooks.kernels import FORKS, fork_server
from pfl_core.runs.provenance import ROOT


class ForkedKernelManager(KernelManager):
    """Starts a kernel in the notebook's folder."""

    async def _async_launch_kernel(self, kernel_cmd: list[str], **kw: Any) -> None:
        env = {name: value for name, value in kw["env"].items() if name != "PYTEST_CURRENT_TEST"}  # the same for all
        env.setdefault("PFL_FIGURES_DIR", str(ROOT / "figures"))
        if not FORKS:
            await super()._async_launch_kernel(kernel_cmd, **{**kw, "env": env})
            return
        provisioner: Any = self.provisioner
        with contextlib.chdir(kw["cwd"]):
            provisioner.process = fork_server(frozenset(env.items())).fork(kernel_cmd[kernel_cmd.index("-f") :])
        provisioner.pid = provisioner.pgid = provisioner.process.pid


def install() -> None:
    nbval.kernel.KernelManager = ForkedKernelManager
