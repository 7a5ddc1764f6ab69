"""Write the references in this folder: every notebook executed at preset ci. nbval compares later runs with them.

    python tests/notebooks/write.py [PAPER or NOTEBOOK ...]

Check the diff before you commit it: a changed number here is a changed result.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from pfl_core import notebooks

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("selection", nargs="*", metavar="PAPER or NOTEBOOK", help="default: all")
    args = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["PFL_FIGURES_DIR"] = f"{scratch}/figures"
        for name in notebooks.select(args.selection):
            start, error = perf_counter(), ""
            try:
                notebooks.rewrite(name, "ci", HERE / f"{name}.ipynb", Path(scratch))
            except notebooks.NotebookError as failure:
                error, failed = str(failure), True
            print(f"{name}  {perf_counter() - start:.1f} s  {error}", flush=True)
    for path in HERE.glob("**/*.ipynb"):
        if not notebooks.path_of(path.relative_to(HERE).with_suffix("").as_posix()).exists():
            path.unlink()
            print(f"removed {path.name}, which has no notebook any more")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
