"""FedPeWS's preset paper has the values of the paper's tables and figures."""

from __future__ import annotations

import pytest

from pfl_core.data.combine import RECIPES
from pfl_core.papers.fedpews.experiments import ALPHAS
from pfl_core.papers.fedpews.paper import PAPER
from pfl_core.papers.fedpews.settings import SETTINGS, TARGETS
from pfl_core.study.published import parse_variant

STATED = {  # figure: notebook, setting -> clients, T, rate, batch, λ, W; partition; data
    "5": ("01_synthetic", "four clients", (4, 500, 0.001, 32, 0.0, 62), "by_class", "synthetic_32k"),
    "8": ("04_heterogeneity_and_scale", "dirichlet", (10, 300, 0.01, 64, 5.0, 120), "dirichlet", "cifar_mnist"),
    "12": ("04_heterogeneity_and_scale", "classes of cifar10", (5, 300, 0.01, 64, 5.0, 60), "by_class", "cifar10"),
    "12, 20": (
        "04_heterogeneity_and_scale",
        "classes of cifar100",
        (20, 300, 0.01, 64, 5.0, 60),
        "by_class",
        "cifar100",
    ),
    "13": ("04_heterogeneity_and_scale", "many clients", (200, 500, 0.01, 64, 0.5, 25), "dirichlet", "cifar_mnist"),
    "11": ("05_masks_and_activations", "cifar_mnist", (2, 300, 0.01, 64, None, 120), "by_source", "cifar_mnist"),
    "14": ("05_masks_and_activations", "activations", (2, 250, 0.001, 32, None, 50), "by_class", "synthetic_32k"),
}


def runs(notebook, setting):
    specs = PAPER.experiments[notebook]("paper", (0,), {})
    return [(spec, spec.build_method()) for spec in specs if spec.setting == setting]


def length(spec, rule):
    """The warm-up rounds W."""
    return round(rule.tau * spec.rounds)


@pytest.mark.parametrize("number", [2, 6])
def test_tables_2_and_6(number):
    """Server's rate, T, batch size, target, λ and τ of every row; the last column is Synthetic-3.2K."""
    for row in PAPER.table(number).itertuples():
        stated = parse_variant(row.variant)
        base = "fedavg" if number == 2 else "fedprox"
        found = runs("01_synthetic", f"lr_server={stated['eta_g']:g}")
        if "lambda" in stated:
            found = [(spec, rule) for spec, rule in found if getattr(rule, "base", "") == base]
            ((spec, rule),) = found
            assert (rule.lam, rule.tau) == (stated["lambda"], stated["tau"])
        else:
            ((spec, rule),) = [(spec, rule) for spec, rule in found if spec.method["name"] == base]
        assert (spec.rounds, spec.train.batch_size, spec.clients) == (stated["T"], stated["batch_size"], 2)
        assert rule.lr_server == stated["eta_g"]
        if row.metric == "rounds_to_target":
            assert TARGETS[spec.setting] == stated["target"]
        small = row.dataset == "Synthetic-3.2K"
        assert (spec.data["name"], spec.train.lr) == (("synthetic_3200", 0.01) if small else ("synthetic_32k", 0.001))
        assert spec.train.epochs == 1 and spec.train.momentum == spec.train.weight_decay == 0


@pytest.mark.parametrize(("number", "setting"), [(7, "cifar_mnist"), (8, "path_oct_tissue")])
def test_the_grids_of_tables_7_and_8(number, setting):
    found = runs("02_sensitivity_heatmaps", setting)
    stated = [(row.key, parse_variant(row.variant)) for row in PAPER.table(number).itertuples()]
    cells = {(key, cell.get("lambda"), cell["tau"] if key != "fedavg" else 0.0) for key, cell in stated}
    planned = {(spec.method["name"], getattr(rule, "lam", None), getattr(rule, "tau", 0.0)) for spec, rule in found}
    assert planned == cells and len(planned) == len(found) == 56
    assert {(spec.rounds, spec.train.lr, spec.train.batch_size) for spec, _ in found} == {(300, 0.01, 64)}


@pytest.mark.parametrize("figure", STATED)
def test_the_settings_of_the_figures(figure):
    notebook, setting, (clients, rounds, lr, batch, lam, warm), partition, data = STATED[figure]
    found = runs(notebook, setting)
    assert {(spec.partition["name"], spec.data["name"]) for spec, _ in found} == {(partition, data)}
    assert {(spec.rounds, spec.train.lr, spec.train.batch_size) for spec, _ in found} == {(rounds, lr, batch)}
    assert clients in {spec.clients for spec, _ in found}
    warmed = [(spec, rule) for spec, rule in found if getattr(rule, "tau", 0)]
    assert {length(spec, rule) for spec, rule in warmed} == {warm}
    assert lam in {getattr(rule, "lam", None) for _, rule in warmed}


def test_further_settings_of_the_figures_and_of_table_3():
    assert {spec.partition["alpha"] for spec, _ in runs(*STATED["8"][:2])} == {0.1, 0.5, 1, 2, 5}
    assert {spec.clients for spec, _ in runs(*STATED["12"][:2])} == {5, 10}
    assert {rule.base for _, rule in runs(*STATED["12"][:2]) if hasattr(rule, "base")} == {"fedprox"}
    for spec, _ in runs(*STATED["13"][:2]):
        assert (spec.participation, spec.partition["alpha"]) == (0.1, 0.5)
        assert [spec.train.factor(t, spec.rounds) for t in (199, 200, 399, 400)] == pytest.approx([1, 0.1, 0.1, 0.01])
    assert {rule.shares for _, rule in runs(*STATED["11"][:2])} == {None, (0.25, 0.75)}  # None: equal
    assert {rule.tau for _, rule in runs(*STATED["14"][:2])} == {0.2, 0.0} and {
        rule.probe for _, rule in runs(*STATED["14"][:2])
    } == {256}
    for number, setting in ((7, "cifar_mnist"), (8, "path_oct_tissue")):  # Table 3 has the best cells of both
        table = runs("03_baselines", setting)
        names = {spec.method["name"] for spec, _ in table}
        assert names == {"fedavg", "fedprox", "scaffold", "fednova", "moon", "fedpews"}
        (lam, tau), *more = {(rule.lam, rule.tau) for spec, rule in table if spec.method["name"] == "fedpews"}
        cells = PAPER.table(number)
        best = cells[cells["key"] == "fedpews"].sort_values("value")["variant"].iloc[-1]
        assert not more and parse_variant(best) == {"lambda": lam, "tau": tau}
    for method in ("fedpews", "fedpews_fixed", "fedprox"):
        made = SETTINGS.spec(method, preset="paper", setting="lr_server=1").build_method()
        assert getattr(made, "lr_mask", 0.1) == 0.1 and getattr(made, "mu", 0.01) == 0.01


@pytest.mark.parametrize("setting", ["cifar_mnist", "dirichlet"])
def test_fewer_steps_at_preset_real_have_a_higher_mask_rate(setting):
    """The rate of the scores times the images of a class and the rounds is the paper's."""
    made = {preset: SETTINGS.spec("fedpews", preset=preset, setting=setting) for preset in ("real", "paper")}
    images = {"real": made["real"].data["samples_per_class"][0], "paper": RECIPES["cifar_mnist"].samples_per_class[0]}
    steps = {preset: images[preset] * made[preset].rounds for preset in made}
    rates = {preset: made[preset].build_method().lr_mask for preset in made}
    assert rates["real"] * steps["real"] == pytest.approx(rates["paper"] * steps["paper"])
    assert SETTINGS.spec("fedpews", preset="real", setting="many clients").build_method().lr_mask == 0.1


def test_images_at_preset_real_have_validation_images():
    """Convergence is judged by them: every run on images keeps a tenth of the training images, but for many clients,
    where the paper's own setting is run."""
    images = [
        spec for name in PAPER.experiments for spec in PAPER.specs(name, "real") if spec.model["name"] == "conv_pews"
    ]
    settings = {"cifar_mnist", "path_oct_tissue", "dirichlet", "classes of cifar10", "many clients"}
    assert {spec.setting for spec in images} == settings
    assert {spec.partition.get("val") for spec in images if spec.setting != "many clients"} == {0.1}
    assert {spec.partition["alpha"] for spec in images if spec.setting == "dirichlet"} == set(ALPHAS)
