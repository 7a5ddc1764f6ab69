"""pFedGate's settings have the paper's values."""

import json
from dataclasses import replace

import pytest

from pfl_core.papers.pfedgate.experiments import BASELINES, EXTRA, gates
from pfl_core.papers.pfedgate.paper import PAPER
from pfl_core.papers.pfedgate.settings import SETTINGS
from pfl_core.runs import assign, build, load_data
from pfl_core.study.published import parse_variant

SETS = {"EMNIST": "emnist", "FEMNIST": "femnist", "CIFAR10": "cifar10", "CIFAR100": "cifar100"}


def gate(preset: str = "paper", dataset: str = "cifar10", **options):
    return SETTINGS.spec("pfedgate", preset=preset, setting=dataset, **options)


def test_the_paper_preset_has_the_paper_values():
    clients = {"emnist": 100, "femnist": 539, "cifar10": 100, "cifar100": 50}
    assert {name: SETTINGS.setting("paper", name).clients for name in clients} == clients
    for name in clients:
        frame = SETTINGS.setting("paper", name)
        assert (frame.rounds, frame.eval_every, frame.train.batch_size, frame.train.epochs) == (400, 5, 128, 1)
        assert (frame.train.momentum, frame.train.weight_decay, frame.train.clip_norm) == (0.9, 5e-4, 10.0)
        assert name == "femnist" or (frame.partition["alpha"], frame.partition["split_seed"]) == (0.4, 12345)
        assert SETTINGS.setting("paper", f"{name}, sampled").participation == 0.2
        assert SETTINGS.setting("paper", f"{name}, novel").novel == 0.2
    assert SETTINGS.setting("paper", "pathological").clients == 10


def test_at_real_every_budget_has_the_searched_rates_of_the_gate():
    """With the rates of Table 7 and a bias of 3 the gate would learn nothing in 80 rounds."""
    rows = json.loads(PAPER.searched.read_text())
    (chosen,) = (row["values"] for row in rows if (row["preset"], row["method"]) == ("real", "pfedgate"))
    for s in (1.0, 0.5, 0.3, 0.1):
        made = SETTINGS.spec("pfedgate", preset="real", setting="fashion_mnist", keep_ratio=s)
        assert {"lr": made.train.lr} | {name: made.method[name] for name in ("lr_gate", "scale_bias_init")} == chosen


def test_rates_are_those_of_table_7():
    for cell in PAPER.table(7).itertuples():
        made = gate(dataset=SETS[cell.dataset], keep_ratio=parse_variant(cell.variant)["s"])
        rates = {"lr_model": made.train.lr, "lr_gate": made.method["lr_gate"]}
        assert rates[cell.metric] == cell.value, f"{cell.dataset}, {cell.variant}, {cell.metric}"


def test_overrides_win_over_table_7():
    made = gate(keep_ratio=0.3, lr_gate=0.01, overrides={"lr": 0.2})
    assert (made.train.lr, made.method["lr_gate"]) == (0.2, 0.01)


def test_other_budgets_use_the_rates_of_the_nearest():
    def rates(s):
        made = gate(dataset="emnist", keep_ratio=s)
        return made.train.lr, made.method["lr_gate"]

    assert rates(0.9) == rates(1.0) and rates(0.7) == rates(0.5) and rates(0.1) == rates((0.5, 0.1)) == rates(0.3)


def test_rates_of_the_released_scripts_belong_to_their_reading():
    assert gate(keep_ratio=0.5, reading="authors_code").train.lr == 0.05
    assert gate(keep_ratio=0.3, reading="authors_code").train.lr == 0.03
    assert gate("quick", keep_ratio=0.5, reading="authors_code").train == gate("quick", keep_ratio=0.5).train


def test_last_batch_and_gate_paths_of_the_released_code():
    def made(dataset, preset="paper", **options):
        method = gate(preset, dataset, reading="authors_code", **options).build_method()
        return method.last_batch, method.gate_paths

    assert made("cifar10") == made("cifar10, sampled") == made("cifar10", "quick") == ("dropped", "shared")
    assert made("emnist") == made("femnist") == made("fashion_mnist", "real") == ("kept", "shared")
    assert made("cifar100") == ("dropped", "two") and made("femnist, sampled") == ("kept", "two")
    assert made("emnist", last_batch="dropped") == ("dropped", "shared")
    assert gate(dataset="cifar100").build_method().gate_init == "independent"
    assert gate(dataset="cifar100", reading="authors_code").build_method().gate_init == "copied"


def test_scale_bias_at_ci_and_where_a_search_chose_it():
    values = {"lr": 0.3, "lr_gate": 5.0, "scale_bias_init": 3.0}
    settings = replace(
        SETTINGS, searched=dict.fromkeys((("real", "fashion_mnist"), ("quick", "cifar10")), {"pfedgate": values})
    )

    def made(preset, dataset, **options):
        return settings.spec("pfedgate", preset=preset, setting=dataset, **options)

    assert made("paper", "cifar10").build_method().scale_bias_init == 0
    assert made("ci", "cifar10").build_method().scale_bias_init == 3
    for preset, name in settings.searched:
        for way in (name, f"{name}, novel", f"{name}, sampled", "pathological"):
            one = made(preset, way, keep_ratio=0.1)
            assert (one.train.lr, one.method["lr_gate"], one.build_method().scale_bias_init) == (0.3, 5.0, 3.0), way
        assert made(preset, name, sigmoid=False).build_method().scale_bias_init == 0


def test_baselines_weight_by_samples_and_layers_of_fedmask():
    for name in BASELINES[1:]:
        assert SETTINGS.spec(name, preset="paper").build_method().client_weighting == "samples"
    layers = [SETTINGS.spec("fedmask", preset="paper", setting=d).build_method().layers for d in SETS.values()]
    assert layers == [1, 1, 2, 2]


@pytest.mark.realdata("cifar10")
def test_the_split_of_cifar10_matches_the_released_one():
    """Sizes from 53 to 1,531, 6:2:2."""
    made = gate("paper", "cifar10")
    part = assign(made, load_data(made))
    total = sorted(sum(len(split[k]) for split in (part.train, part.val, part.test)) for k in range(100))
    assert (total[0], total[-1], len(part.train)) == (53, 1531, 100)
    assert abs(sum(map(len, part.train)) / sum(total) - 0.6) < 0.01


def test_only_gates_without_options_have_a_probe():
    assert gates((0.5,)) == [("pfedgate", {"keep_ratio": 0.5, "probe": True})]
    assert gates((0.5,), mask="random") == [("pfedgate", {"keep_ratio": 0.5, "mask": "random"})]


def test_quick_has_ten_clients_with_validation_samples():
    _, fed, _ = build(gate("quick"))
    assert fed.num_clients == 10 and set(fed.splits) == {"train", "val", "test"}
    assert fed.splits["train"].sizes.sum() < 1300  # four batches of 32 on average


def test_all_methods_keep_their_momentum():
    """In the released code the baselines keep it as well as pFedGate; pFedMe has none."""
    for name in {*BASELINES, *EXTRA, "fedmd"} - {"pfedme"}:
        assert SETTINGS.spec(name, preset="paper", setting="cifar10").build_method().keep_momentum, name
    assert gate().build_method().keep_momentum and not gate(keep_momentum=False).build_method().keep_momentum


def test_sampled_settings_of_short_presets_have_five_times_the_rounds():
    for preset, times in (("paper", 1), ("real", 5), ("quick", 5), ("ci", 1)):
        name = "fashion_mnist" if preset == "real" else "cifar10"
        whole, sampled = (SETTINGS.setting(preset, f"{name}{way}") for way in ("", ", sampled"))
        assert (sampled.rounds, sampled.eval_every) == (times * whole.rounds, times * whole.eval_every)


def test_rates_at_ci():
    """Not Table 7's or a search's; smaller where a fifth of the clients takes part."""
    searched = {("quick", "cifar10"): {"pfedgate": {"lr": 7.0}}, ("real", "fashion_mnist"): {"fedavg": {"lr": 7.0}}}
    settings = replace(SETTINGS, searched=searched)
    made = {s: settings.spec("pfedgate", preset="ci", keep_ratio=s) for s in (1.0, 0.5, 0.3, (0.5, 0.1))}
    assert [(one.train.lr, one.method["lr_gate"]) for one in made.values()] == [(0.3, 1.5)] * 2 + [(0.3, 0.05)] * 2
    sampled = [settings.spec(name, preset="ci", setting="cifar10, sampled") for name in ("pfedgate", "fedavg", "fedem")]
    assert [one.train.lr for one in sampled] == [0.1] * 3 and sampled[0].method["lr_gate"] == 0.05
    assert settings.spec("fedavg", preset="ci").train.lr == 0.3
    assert gate("real", "fashion_mnist, sampled").train == gate("real", "fashion_mnist").train
