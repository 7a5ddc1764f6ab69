"""Captions of figures, the answer on a first screen."""

from __future__ import annotations

import pandas as pd

from pfl_core.runs import Record, RunSpec
from pfl_core.study import output


def record(**fields) -> Record:
    spec = {"method": {"name": "fedavg"}, "model": {"name": "mlp"}, "preset": "quick", **fields}
    return Record("key", RunSpec(**spec), {})


def test_a_caption_has_the_common_settings_of_the_runs():
    assert output.caption([record(seed=1), record(seed=0), record(seed=1)]) == (
        "preset quick: Digits, 10 clients, MLP, 20 rounds, 1 local epoch, learning rate 0.05, 2 seeds (0, 1)"
    )


def test_a_caption_gives_the_span_where_runs_differ():
    runs = [
        record(clients=4, rounds=200),
        record(clients=2, rounds=60),
        record(model={"name": "cnn_small"}, rounds=100),
    ]
    assert output.caption(runs) == (
        "preset quick: Digits, 2 to 10 clients, MLP or small CNN, 60 to 200 rounds, 1 local epoch, learning rate 0.05, "
        "one seed (0)"
    )


def test_a_caption_gives_the_seeds_of_each_data_set_where_they_differ():
    two = [record(seed=seed) for seed in (0, 1)]
    other = {"data": {"name": "fashion_small"}}
    assert output.caption([*two, record(**other)]).endswith(
        "2 seeds (0, 1) on Digits, one seed (0) on Fashion-MNIST (small)"
    )
    assert output.caption([*two, record(**other), record(seed=1, **other)]).endswith(
        " 1 local epoch, learning rate 0.05, 2 seeds (0, 1)"
    )


def test_a_caption_gives_each_description_of_data_once():
    copy, clouds = "CIFAR-10 (JPEG copy)", "our generator"

    def data(*runs: tuple[str, str, dict]) -> str:
        specs = [
            (RunSpec(method={"name": "fedavg"}, data={"name": name, **more}, preset="real"), about)
            for name, about, more in runs
        ]
        text = output.caption([Record("key", spec, {}, about=about) for spec, about in specs])
        return text.removeprefix("preset real: ").partition(", 10 clients")[0]

    corrupt = {"corrupt": True}
    assert data(("cifar10", copy, {})) == copy
    assert data(("cifar10", copy, {}), ("cifar10", copy, corrupt)) == f"CIFAR-10 and CIFAR-10-C from {copy}"
    assert data(("cifar_mnist", f"cifar10: {copy}", {})) == f"CIFAR-MNIST from {copy}"
    assert data(("synthetic_32k", clouds, {}), ("synthetic_3200", clouds, {})) == (
        "Synthetic-32K and Synthetic-3.2K (our generator)"
    )
    assert data(("fashion_small", "Fashion-MNIST (7,000 images, 14x14)", {})) == "Fashion-MNIST (7,000 images, 14x14)"


def test_an_answer_has_each_verdict_with_the_first_of_its_reasons(monkeypatch):
    shown = []
    monkeypatch.setattr(output, "display", lambda markdown: shown.append(markdown.data))
    reasons = "one seed; no search (a; b). Numbers: +1.0 [-1.0, 3.0]"
    claims = pd.DataFrame(
        [(1, "A is first.", "Table 1", "undecided", reasons)],
        columns=["claim", "text", "source", "ours", "numbers"],
    ).set_index("claim")
    output.show_answer(["A has 90 %.", "Two runs failed:\nB: NaN\nC: NaN"], claims)
    assert shown == [
        "A has 90 %.\n\n"
        "Two runs failed:\n- B: NaN\n- C: NaN\n\n"
        "- Claim 1 (Table 1): A is first. **Undecided** here: one seed.\n\n"
        "These verdicts are by the runs of this notebook. The paper's results page (RESULTS.md) judges all stored runs."
    ]
