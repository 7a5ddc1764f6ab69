"""Puts the papers' tables, which are in data/paper/ of the repository, into the wheel."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithTables(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            shutil.copytree("data/paper", Path(self.build_lib, "pfl_core/study/printed"), dirs_exist_ok=True)


setup(cmdclass={"build_py": WithTables})
