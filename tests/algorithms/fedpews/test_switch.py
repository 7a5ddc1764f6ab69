"""FedPeWS: the end of the warm-up, runs without a warm-up, runs that share one, and settings that are refused."""

import math
import sys

import pytest
import torch

from pfl_core import Schedule, methods, models, run
from pfl_core.algorithm import build, method
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.fedpews.fixed import FedPeWSFixed
from pfl_core.algorithms.fedpews.method import FedPeWS
from pfl_core.engine import History
from pfl_core.runs import RunSpec, Store, execute, sweep
from tests.algorithms.fedpews.plain import F64, both_nets, fed_of, some_scores, states, with_scores
from tests.algorithms.two_nets import NoChain, both_backends
from tests.helpers import cnn, everyone, federation, one_line, same_bits
from tests.runs.conftest import SMALL

BASES = [  # (base, its options): every method that differs from FedAvg only in its local step or its server step
    ("fedavg", {}),
    ("fedavg", {"keep_momentum": True}),
    ("fedprox", {"mu": 0.0}),
    ("fedprox", {"mu": 0.5}),
    ("scaffold", {}),
    ("fednova", {}),
    ("moon", {"mu_con": 2.0}),
]


# ---- no warm-up, and masks of ones ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("base", "options"), BASES)
@pytest.mark.parametrize("warmup", [FedPeWS, FedPeWSFixed])
def test_without_a_warm_up_it_equals_the_base(base, options, warmup):
    fed = fed_of(sizes=(12, 9, 14, 10), epochs=2)
    algorithm = warmup(base=base, base_options=options, tau=0.0, lr_server=0.7, client_weighting="samples")
    plain = build(base, {**options, "lr_server": 0.7, "client_weighting": "samples"})
    state, history = run(algorithm, fed, Schedule(3, participation=0.75))
    want, of_base = run(plain, fed, Schedule(3, participation=0.75))
    assert torch.equal(state.shared, want.shared)
    assert same_bits(state.base, want)
    for metric in ("correct", "correct_trained", "upload", "passes"):
        assert same_bits(history.series[metric], of_base.series[metric])


@pytest.mark.parametrize("warmup", [FedPeWS, FedPeWSFixed])
def test_other_bases_are_refused(warmup):
    """Methods that are built on FedAvg but train other models beside the shared one, and methods that are not."""
    built = {name for name in methods() if issubclass(method(name), FedAvg)}
    tested = {name for name, _ in BASES}
    assert built - tested == {"fedavg_ft", "ditto", "pfedme", "perfedavg"}
    for name in built - tested:
        with pytest.raises(ValueError, match=f"base='{name}' trains more than the shared model"):
            warmup(base=name)
    with pytest.raises(ValueError, match="base='local' is not built on FedAvg"):
        warmup(base="local")


@pytest.mark.parametrize("warmup", [FedPeWS, FedPeWSFixed])
def test_without_a_warm_up_batch_norm_is_that_of_the_base(warmup):
    fed = federation(cnn(bn=True), shape=(1, 4, 4))
    assert torch.equal(run(warmup(tau=0.0), fed, Schedule(2))[0].shared, run(FedAvg(), fed, Schedule(2))[0].shared)


@both_nets
@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_masks_of_ones_give_fedavg(name, rate, weighting):
    fed = fed_of(name, dtype=F64)
    options = {"lr_server": rate, "client_weighting": weighting}
    algorithm, schedule = FedPeWS(tau=1.0, **options), Schedule(3, participation=0.75)
    start = with_scores(algorithm, fed, torch.full_like(some_scores(fed), 50.0))
    state, history = run(algorithm, fed, schedule, start=(start, History(), 0))
    want, of_fedavg = run(FedAvg(**options), fed, schedule)
    torch.testing.assert_close(state.shared, want.shared)
    assert torch.equal(state.score, start.score)  # p (1 - p) is 0 at these scores
    assert history.series["neurons_covered"][1] == history.series["params_covered"][1] == [1.0] * 3
    assert history.series["correct"] == of_fedavg.series["correct"]


# ---- what a round does not change -----------------------------------------------------------------------------------


@both_nets
@both_backends
def test_procedure_1_changes_only_scores_and_procedure_2_only_the_model(name, stacked):
    still, algorithm = fed_of(name, lr=0.0, stacked=stacked), FedPeWS(tau=1.0)
    state = algorithm.init(still, still.theta0)
    new, notes = algorithm.round(still, state, everyone(still), 0)
    sent = notes["trained"] != 0
    assert torch.equal(notes["trained"][sent], state.shared.expand(4, -1)[sent])
    assert (new.score != state.score).float().mean() > 0.5
    fed = fed_of(name, stacked=stacked)
    start, *later = states(FedPeWS(tau=1.0, lr_mask=0.0), fed, 2)
    assert all(torch.equal(state.score, start.score) for state in later)
    assert (later[0].shared != start.shared).any()


@pytest.mark.parametrize("warm", [1, 2, 3])
def test_rounds_after_the_warm_up_are_fedavg_and_keep_the_scores(warm):
    fed = fed_of(rounds=5)
    taken = states(FedPeWS(tau=warm / 5), fed, 5)
    moved = [not torch.equal(a.score, b.score) for a, b in zip(taken, taken[1:], strict=False)]
    assert moved == [t < warm for t in range(5)]
    state = taken[warm]
    for t in range(warm, 5):
        want, _ = FedAvg().round(fed, FedAvg().init(fed, state.shared), everyone(fed), t)
        state = taken[t + 1]
        assert torch.equal(state.shared, want.shared)
        assert same_bits((state.score, state.mask_prob), (taken[warm].score, taken[warm].mask_prob))


@pytest.mark.parametrize(("base", "options"), BASES)
def test_after_the_warm_up_it_equals_the_base_started_from_that_model(base, options):
    """Control variates and previous models start from the model after the warm-up."""
    fed = fed_of(rounds=4)
    algorithm, plain = FedPeWS(base=base, base_options=options, tau=0.5), build(base, options)
    taken = states(algorithm, fed, 4)
    state = plain.init(fed, taken[2].shared)
    for t in (2, 3):
        state, _ = plain.round(fed, state, everyone(fed), t)
        assert same_bits(taken[t + 1].base, state)
        assert torch.equal(taken[t + 1].shared, state.shared)


@pytest.mark.parametrize("warmup", [FedPeWS, FedPeWSFixed])
@pytest.mark.parametrize("base", ["scaffold", "fednova", "moon"])
def test_during_the_warm_up_a_base_has_no_memory(warmup, base):
    """Control variates are 0 and previous models are the shared one: steps are FedAvg's; MOON's loss is log 2 more."""
    fed = fed_of(dtype=F64)
    one, two = (warmup(base=name, tau=1.0) for name in (base, "fedavg"))
    for state, want in zip(states(one, fed, 3), states(two, fed, 3), strict=True):
        torch.testing.assert_close(state.shared, want.shared)
        assert warmup is FedPeWSFixed or torch.allclose(state.score, want.score)
    start = two.init(fed, fed.theta0)
    losses = [algorithm.round(fed, start, everyone(fed), 0)[1]["train_loss"] for algorithm in (one, two)]
    torch.testing.assert_close(losses[0], losses[1] + (math.log(2) if base == "moon" else 0))


@pytest.mark.parametrize(("tau", "rounds", "want"), [(0.125, 200, 25), (0.1875, 400, 75), (0.2, 6, 1), (0.25, 10, 3)])
def test_the_length_of_the_warm_up(tau, rounds, want):
    assert FedPeWS(tau=tau).warmup_rounds(fed_of(rounds=rounds)) == want


@pytest.mark.parametrize("warmup", [FedPeWS, FedPeWSFixed])
@pytest.mark.parametrize("base", ["fedavg", "scaffold", "moon"])
def test_a_run_does_not_depend_on_tau_before_its_warm_up_ends(warmup, base):
    def taken(tau):
        return states(warmup(base=base, tau=tau), fed_of(rounds=5), 5, schedule=Schedule(5, participation=0.75))

    short, long = taken(0.4), taken(0.8)
    assert all(same_bits(a, b) for a, b in zip(short[:3], long[:3], strict=True))
    assert not torch.equal(short[3].shared, long[3].shared)
    trunk, shared = warmup(base=base, tau=0.4).shared_prefix(fed_of(rounds=5))
    assert (trunk, shared) == (warmup(base=base, tau=1.0), 2)


# ---- whole runs -----------------------------------------------------------------------------------------------------


def spec(method, **changes):
    fields = {k: changes.pop(k) for k in list(changes) if k in RunSpec.__dataclass_fields__}
    parts = {**SMALL, "model": {"name": "mlp", "hidden": [6, 5]}, "method": {"name": method, **changes}}
    return RunSpec(**parts | fields)


@pytest.mark.parametrize("options", [{}, {"base": "scaffold", "participation": 0.5}, {"base": "moon"}], ids=str)
@pytest.mark.parametrize("method", ["fedpews", "fedpews_fixed"])
def test_a_sweep_over_tau_shares_its_warm_up_and_is_bitwise_equal(method, options, tmp_path, monkeypatch):
    """W = 1, 2 and 3 of 4 rounds share a prefix of 3 rounds: 3 + 3 + 2 + 1 rounds instead of 12."""
    specs, made = [spec(method, tau=tau, **options) for tau in (0.0, 0.25, 0.5, 0.75)], []

    def counted(one, store, *, on_round=lambda done: None, **given):
        return execute(one, store, on_round=lambda done: (made.append(done), on_round(done)), **given)

    monkeypatch.setattr(sys.modules[sweep.__module__], "execute", counted)
    records = sweep(specs, jobs=1, store=Store(tmp_path / "together", tmp_path / "results"))
    assert len(made) == 4 + 3 + 3 + 2 + 1
    monkeypatch.undo()
    for one, record in zip(specs, records, strict=True):
        (alone,) = sweep([one], jobs=1, store=Store(tmp_path / one.key(), tmp_path / "results"))
        assert record.state == alone.state
        assert all(str(pair) == str(alone.series[name]) for name, pair in record.series.items() if name != "seconds")
    assert len({record.state for record in records}) == len(specs)


@pytest.mark.parametrize("base", ["fedavg", "fedprox", "scaffold", "fednova", "moon"])
def test_the_version_of_the_base_is_part_of_a_runs_key(base, monkeypatch):
    before, counts = spec("fedpews", base=base).key(), {base, "fedavg", "fedpews"}
    for name in ("fedavg", "fedprox", "scaffold", "fednova", "moon", "fedselect", "fedpews"):
        with monkeypatch.context() as patch:
            patch.setattr(method(name), "version", 2)
            assert (spec("fedpews", base=base).key() != before) == (name in counts), name


# ---- what is refused ------------------------------------------------------------------------------------------------

BAD = {  # options of fedpews -> what the line says
    "tau below": ({"tau": -0.1}, "tau=-0.1"),
    "tau above": ({"tau": 1.1}, "tau=1.1"),
    "tau in percent": ({"tau": 12.5}, "tau=12.5: input should be less than or equal to 1; for 12.5 percent give 0.125"),
    "tau not a number": ({"tau": float("nan")}, "tau=nan"),
    "no FedAvg": ({"base": "local"}, "base='local' is not built on FedAvg"),
    "personal": ({"base": "fedselect"}, "base='fedselect' is not built on FedAvg"),
    "itself": ({"base": "fedpews"}, "base='fedpews' is not built on FedAvg"),
    "unknown base": ({"base": "fedproxy"}, "fedproxy"),
    "base's option": ({"base": "fedprox", "base_options": {"muh": 1.0}}, "muh"),
    "base's value": ({"base": "fedprox", "base_options": {"mu": -1.0}}, "mu=-1"),
    "base's type": ({"base": "fedprox", "base_options": {"mu": "much"}}, "mu='much'"),
    "base's lr_server": ({"base_options": {"lr_server": 0.5}}, "lr_server cannot be set here"),
    "base's weighting": ({"base_options": {"client_weighting": "samples"}}, "client_weighting cannot be set here"),
    "option of another base": ({"base_options": {"mu": 0.1}}, "mu"),
    "choice": ({"score_init": "ones"}, "score_init='ones'"),
    "lam": ({"lam": -1.0}, "lam=-1"),
    "lr_mask": ({"lr_mask": -0.1}, "lr_mask=-0.1"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_settings_are_refused_in_one_line(case):
    options, match = BAD[case]
    with one_line(match):
        FedPeWS(**options)
    with one_line(match):
        spec("fedpews", **options)
    if not {"score_init", "lam", "lr_mask"} & set(options):
        with one_line(match):
            FedPeWSFixed(**options)


@pytest.mark.parametrize("net", [NoChain, lambda: models.build("linear", (6,), 3, 0)], ids=["no chain", "no hidden"])
@pytest.mark.parametrize("warmup", [FedPeWS, FedPeWSFixed])
def test_networks_without_a_chain_of_hidden_neurons_are_refused(warmup, net):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        fed = federation(net())
    with one_line("needs a plain chain"):
        warmup(tau=0.5).init(fed, fed.theta0)
    state, _ = run(warmup(tau=0.0), fed, Schedule(2))
    assert torch.equal(state.shared, run(FedAvg(), fed, Schedule(2))[0].shared)


@pytest.mark.parametrize("training", [{"momentum": 0.9}, {"weight_decay": 0.1}, {"clip_norm": 1.0}], ids=str)
def test_training_options_other_than_plain_sgd_are_refused(training):
    fed = fed_of(**training)
    for warmup in (FedPeWS, FedPeWSFixed):
        with one_line("plain SGD"):
            warmup(tau=0.5).init(fed, fed.theta0)
        assert run(warmup(tau=0.0), fed, Schedule(2))[0].shared.isfinite().all()
