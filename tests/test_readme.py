"""What README.md shows runs as it stands there, and its table of methods is the registry's."""

import inspect
import json
import re
import shlex
from pathlib import Path

from pfl_core.algorithm import methods
from pfl_core.cli import main
from pfl_core.runs import Store

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TABLE = re.search(r"^\| method \| paper \|.*\n\| --- .*\n((?:\|.*\n)+)", README, re.MULTILINE)[1]


def test_the_method_of_ones_own_runs(folders, tmp_path, capsys):
    """On a small network, for one round; the name and the option as in the command below the block."""
    (block,) = re.findall(r"```python\n(# mine\.py\n.*?)```", README, re.DOTALL)
    (command,) = re.findall(r"^pfl (run mine:.*)$", README, re.MULTILINE)
    (tmp_path / "mine.py").write_text(block, encoding="utf-8")
    assert main([*shlex.split(command), *"--rounds 1 --model mlp --clients 5 --json".split()]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    record = Store().get(found["key"])
    assert record.spec.method == {"name": "mine:HalfStep", "step": 0.3} and record.spec.rounds == 1
    assert record.values("correct").shape == (1, 5) and found["acc_mean"] == record.summary()["acc_mean"]


def test_a_methods_row_links_the_file_that_it_is_in():
    for row in TABLE.splitlines():
        names, files = re.findall(r"`(\w+)`", row.split("|")[1]), re.findall(r"\((pfl_core/\S+\.py)\)", row)
        own = {Path(inspect.getfile(methods()[name].cls)).relative_to(ROOT).as_posix() for name in names}
        assert set(files) == own, row


def test_the_table_has_every_method_once():
    names = [name for row in TABLE.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(names) == sorted(methods())
