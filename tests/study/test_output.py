"""Captions of figures, the answer on a first screen."""

from __future__ import annotations

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
