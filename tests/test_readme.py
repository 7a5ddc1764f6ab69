"""The code in README.md runs, the lists on other pages are complete, and no link is broken."""

import json
import re
import shlex
from pathlib import Path

import pytest
import safetensors.torch
import torch

from pfl_core import load_models, models, notebooks
from pfl_core.cli import main
from pfl_core.runs import Store, load_data

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [path for path in sorted(ROOT.glob("**/*.md")) if not {".venv", "site", "build"} & set(path.parts)]


def test_the_example_of_a_custom_method_runs_and_its_models_load(folders, tmp_path, capsys):
    """On a small network, for one round; the name and the option as in the command below the block."""
    (block,) = re.findall(r"```python\n(# mine\.py\n.*?)```", README, re.DOTALL)
    (command,) = re.findall(r"`pfl (run mine:.*?)`", README)
    (load,) = re.findall(r"`(net\.load_state_dict\(.*?\))`", README)
    (tmp_path / "mine.py").write_text(block, encoding="utf-8")
    arguments = [*shlex.split(command, comments=True), *"--rounds 1 --model mlp --clients 5 --json".split()]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    record = Store().get(found["key"])
    assert record.spec.method == {"name": "mine:HalfStep", "step": 0.3} and record.spec.rounds == 1
    assert record.values("correct").shape == (1, 5) and found["acc_mean"] == record.summary()["acc_mean"]
    net = models.build("mlp", in_shape=(1, 8, 8), num_classes=10, seed=0)
    exec(load, {"net": net, "safetensors": safetensors})
    saved = load_models("models", code=["mine:HalfStep"])
    x = saved.prepare(load_data(record.spec).x[:9])
    assert torch.equal(net(x).argmax(1), saved[0].predict(x).argmax(1))


def test_every_notebook_is_listed_once():
    text = (ROOT / "notebooks" / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"\]\((\S+)\.ipynb\)", text)
    assert sorted(listed) == sorted(notebooks.names())


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_within_the_project_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"\w+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), f"{page.name} links to {target}"
        if anchor and path.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, f"{page.name} links to {target}"


def slug(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
