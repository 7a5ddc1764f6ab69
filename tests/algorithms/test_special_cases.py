"""Settings with which a method computes what another one does, bit for bit; and memory for one model at a time."""

import numpy as np
import pytest
import torch

from pfl_core import Schedule, Split, methods, run
from pfl_core.algorithm import build
from tests.algorithms.two_nets import both_nets, fed_of
from tests.helpers import everyone, same_bits, samples, without_times

MOVING, ONE_BATCH = {"momentum": 0.9, "weight_decay": 0.01}, {"batch_size": 20}
SERVER = {"client_weighting": "samples", "lr_server": 0.7}
BY_SAMPLES, UNIFORM = {"client_weighting": "samples"}, {"client_weighting": "uniform"}
# (method, its options, the other method, its options, training, whether this also holds with batch norm)
SPECIAL = [
    ("fedap", {"lam": 1.0}, "local", {}, MOVING, False),
    ("fedbn", {}, "fedavg", BY_SAMPLES, MOVING, False),
    ("fedbn", UNIFORM, "fedavg", {}, {}, False),
    ("fedem", {"components": 1, **SERVER}, "fedavg", SERVER, MOVING, True),
    ("fedmd", {"digest_epochs": 0, "public": "train"}, "local", {}, MOVING, True),
    ("fedper", {"personal_layers": 0, "buffer_policy": "average"}, "fedavg", {}, MOVING, True),
    ("fedper", {"personal_layers": 0, "buffer_policy": "average", **BY_SAMPLES}, "fedavg", BY_SAMPLES, {}, True),
    ("fedprox", {"mu": 0.0, **SERVER}, "fedavg", SERVER, MOVING, True),
    ("fedselect", {"p": 0.0, "alpha": 0.3}, "fedavg", {}, {}, False),
    ("fedselect", {"alpha": 0.0, "buffer_policy": "average"}, "fedavg", {}, {"epochs": 3}, True),
    ("fedselect", {"alpha": 0.0, "buffer_policy": "average", **BY_SAMPLES}, "fedavg", BY_SAMPLES, {}, True),
    ("fedselect", {"masks": "layers", "layers": ("fc1", "head")}, "local", {}, {}, False),
    ("fedselect_gradltn", {"keep_rate": 0.0}, "fedavg", {}, {}, False),
    ("fedselect_gradltn", {"keep_rate": 1.0}, "local", {}, {}, True),
    ("heterofl", {"full_share": 1.0}, "fedavg", BY_SAMPLES, MOVING, True),
    ("heterofl", {"full_share": 0.0, "small": 1.0, "half": "width", **UNIFORM}, "fedavg", {}, MOVING, True),
    ("lg_fedavg", {"shared_layers": 0}, "local", {}, MOVING, True),
    ("lotteryfl", {"target_density": 1.0}, "fedavg", {}, MOVING, True),
    ("lotteryfl", {"acc_threshold": 1.0, **BY_SAMPLES}, "fedavg", BY_SAMPLES, {}, True),
    ("moon", {"mu_con": 0.0, **SERVER}, "fedavg", SERVER, MOVING, True),
    (
        "perfedavg",
        {"alpha": 0.0, "order": "first_order", **SERVER},
        "fedavg",
        SERVER,
        MOVING | {"batch_size": 20},
        True,
    ),
    ("perfedavg", {"alpha": 0.0, "order": "hessian", **SERVER}, "fedavg", SERVER, {"batch_size": 20}, True),
    ("pfedme", {"lam": 8.0, "inner_steps": 1}, "fedavg", BY_SAMPLES, {"lr": 0.125}, True),  # lr lam = 1
]
OTHER_METRICS = {
    "fedselect": {"train_loss"},  # over the last of its passes
    "fedselect_gradltn": {"train_loss"},
    "lg_fedavg": {"correct"},  # a client that never took part adapts
    "perfedavg": {"correct", "train_loss"},  # adapts the model for evaluation
    "pfedme": {"correct"},  # scores the personal models
}
CASES = [(net, *case[:-1]) for case in SPECIAL for net in ("mlp", "cnn") if net == "mlp" or case[-1]]


@pytest.mark.parametrize(("net", "name", "options", "other", "others", "training"), CASES)
def test_with_these_settings_it_is_the_other_method(net, name, options, other, others, training):
    """Also with absent clients: the clients' models and their scores in every round."""
    fed, schedule = fed_of(net, **training), Schedule(3, participation=0.75)
    held_out = Split.of([samples(10, fed.splits["train"].x.shape[1:], key=50 + k) for k in range(4)])
    fed.splits["val"] = Split(held_out.x.to(fed.theta0), held_out.y, held_out.bounds)  # LotteryFL's accuracy
    pair = build(name, options), build(other, others)
    (state, history), (want, expected) = (run(algorithm, fed, schedule) for algorithm in pair)
    models = [a.evaluation_models(fed, s, everyone(fed), 2) for a, s in zip(pair, (state, want), strict=True)]
    if name in ("perfedavg", "pfedme"):
        models = [state.shared, want.shared]
    assert torch.equal(*models)
    for metric in {"correct", "correct_trained", "loss_trained", "train_loss"} - OTHER_METRICS.get(name, set()):
        assert same_bits(history.series[metric], expected.series[metric]), metric


ONE_BY_ONE = [(name, methods()[name].ci) for name in sorted(methods())] + [
    ("fedavg", SERVER),
    ("fedmask", {"lr_mask": 3.0}),
    ("heterofl", {"full_share": 0.3, "absent_labels": "zero"}),
    ("moon", {"mu_con": 2.0}),
    ("pfedme", {"algorithm": "fedem_code"}),
]


@both_nets
@pytest.mark.parametrize(("name", "options"), ONE_BY_ONE, ids=str)
def test_rows_one_at_a_time_give_the_same_bits(net, name, options, one_by_one):
    """As if there were memory for one model only. Losses of scores are equal up to rounding: a processor may sum the
    products of a batch in another order than those of a larger one.
    """
    options = dict(options)
    reading = options.pop("reading", "paper")

    def play():
        state, history = run(build(name, options, reading), fed_of(net), Schedule(2, participation=0.5))
        series = without_times(history)
        return state, series, {metric: series.pop(metric) for metric in list(series) if metric.startswith("loss")}

    *whole, losses = play()
    one_by_one()
    *others, other_losses = play()
    assert same_bits(whole, others) and losses.keys() == other_losses.keys()
    for metric, (times, values) in losses.items():
        assert times == other_losses[metric][0]
        np.testing.assert_allclose(values, other_losses[metric][1], rtol=1e-6)
