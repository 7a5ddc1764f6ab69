"""FedPeWS-Fixed: sizes of its masks, rounds against plain PyTorch, and invariants."""

import math
from fractions import Fraction
from itertools import product

import pytest
import torch
from torch.nn.functional import cross_entropy

from pfl_core import Schedule, models, run
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.fedpews.fixed import FedPeWSFixed, split_neurons
from pfl_core.algorithms.fedpews.method import expand
from pfl_core.layout import Layout
from pfl_core.seeding import generator
from tests.algorithms.fedpews.plain import F64, both_nets, expanded, fed_of, gated, net, plain_steps
from tests.algorithms.two_nets import both_backends
from tests.helpers import after, cnn, coin, everyone, federation, module_of, one_line, some_rows

SHARES = [(0.5, 0.5), (0.25, 0.75), (1 / 3,) * 3, (0.1, 0.2, 0.3, 0.4), (0.2,) * 5, (0.9, 0.1), (1.0, 0.0), (1.0,)]
EQUAL = [(1 / num,) * num for num in (2, 3, 4, 5, 10, 20)]
ROUNDED = (0.3, 0.35, 0.35)  # 0.3 + 0.35 falls short of 0.65 in floating point, and 10 * 0.65 would be rounded down


def start(fed, shared=None):
    return FedPeWSFixed().init(fed, fed.theta0 if shared is None else shared)


def a_model(fed):
    return some_rows(fed, torch.arange(1))[0]


# ---- masks ----------------------------------------------------------------------------------------------------------


def test_fixed_masks_partition_the_neurons():
    """Contiguous blocks in every layer; their ends are exact fractions rounded half up, and the last takes the rest."""
    layers = [(32, 64, 128, 32), (32, 64, 128), (5, 4), (3, 4), (1, 7), (10,)]
    for sizes, shares in product(layers, [*SHARES, *EQUAL, ROUNDED]):
        exact = [Fraction(share).limit_denominator(20) for share in shares]
        neurons = split_neurons(sizes, shares)
        assert neurons.shape == (len(shares), sum(sizes)), (sizes, shares)
        assert (neurons.sum(0) == 1).all(), (sizes, shares)
        for layer, n in zip(neurons.split(sizes, 1), sizes, strict=True):
            ends = [math.floor(n * sum(exact[:i]) + Fraction(1, 2)) for i in range(len(shares))] + [n]
            assert layer.sum(1).tolist() == [b - a for a, b in zip(ends, ends[1:], strict=False)], (sizes, shares, n)
            owner = layer.int().argmax(0)
            assert (owner.diff() >= 0).all(), (sizes, shares, n)


def chain_of(name, num_classes=4):
    return Layout.of(models.build(name, (5,) if name == "fc_pews" else (3, 32, 32), num_classes, 0)).chain


@pytest.mark.parametrize(
    ("name", "num_classes", "shares", "each", "covered", "d"),
    [
        ("fc_pews", 4, (0.5, 0.5), [3_860] * 2, 7_716, 14_884),
        ("fc_pews", 4, (0.25,) * 4, [1_036] * 4, 4_132, 14_884),
        ("conv_pews", 20, (0.5, 0.5), [44_084] * 2, 88_148, 134_228),
        ("conv_pews", 21, (1 / 3,) * 3, [25_047, 24_773, 25_047], 74_825, 136_277),
        ("conv_pews", 20, (0.25, 0.75), [16_292, 83_396], 16_292 + 83_396 - 20, 134_228),
    ],
)
def test_covered_parameters_in_the_papers_networks(name, num_classes, shares, each, covered, d):
    """Only the last bias is covered by all clients."""
    chain = chain_of(name, num_classes)
    neurons = split_neurons(chain.sizes, shares)
    active = expand(chain, neurons, "both_ends")
    assert active.shape == (len(shares), d)
    assert active.sum(1).tolist() == each
    assert active.any(0).sum() == covered
    shared = torch.zeros(d, dtype=torch.bool)
    shared[-num_classes:] = True
    assert torch.equal(active.sum(0) > 1, shared)
    assert expand(chain, torch.ones_like(neurons[0]), "both_ends").all()
    assert torch.equal(expand(chain, torch.zeros_like(neurons[0]), "both_ends"), shared)


@both_nets
def test_expansion_layer_by_layer(name):
    fed, model = fed_of(name), net(name)
    for rule, key in product(("both_ends", "row"), range(5)):
        on = coin(fed.layout.chain.num_neurons, key=key)
        got = expand(fed.layout.chain, on, rule)
        assert got.dtype == torch.bool
        assert torch.equal(got, expanded(model, on.float(), rule).bool()), (rule, key)
        assert expand(fed.layout.chain, torch.ones_like(on), rule).all(), (rule, key)


# ---- rounds against plain autograd ----------------------------------------------------------------------------------


def plain_fixed(fed, model, shared, on, k, t, *, mu=0.0, epochs=1, momentum=0.0):
    """theta [d] after training the network with gates [h] on its activations; no mask is applied to the weights."""
    active, velocity = expanded(model, on), torch.zeros_like(shared)

    def change(g, theta):
        velocity.mul_(momentum).add_((g + mu * (theta - shared)) * active)
        return velocity

    def loss(plain, x, y):
        return cross_entropy(gated(plain, x, on), y)

    return plain_steps(fed, model, shared, k, t, change=change, loss=loss, epochs=epochs)[0]


CASES = [
    {},
    {"client_weighting": "samples", "lr_server": 0.5},
    {"base": "fedprox", "base_options": {"mu": 0.5}},
    {"shares": (0.2, 0.5, 0.3)},
    {"expand_rule": "row"},
]


@pytest.mark.parametrize("options", CASES, ids=str)
@both_nets
@both_backends
def test_warm_rounds_against_gates_and_plain_autograd(options, name, stacked):
    """Two rounds, the second with two of three clients, with different numbers of samples."""
    fed, model = fed_of(name, (12, 6, 9), dtype=F64, stacked=stacked, epochs=2), net(name)
    algorithm = FedPeWSFixed(tau=1.0, **options)
    neurons, state = split_neurons(fed.layout.chain.sizes, algorithm.shares or (1 / 3,) * 3), start(fed)
    mu = algorithm.base_options.get("mu", 0.0)
    weight = (12.0, 6.0, 9.0) if algorithm.client_weighting == "samples" else (1.0,) * 3
    for t, clients in enumerate([everyone(fed), torch.tensor([2, 0])]):
        new, notes = algorithm.round(fed, state, clients, t)
        top, bottom = torch.zeros_like(state.shared), torch.zeros_like(state.shared)
        for k, row in zip(clients.tolist(), notes["trained"], strict=True):
            on = neurons[k].to(F64)
            active = expanded(model, on, algorithm.expand_rule)
            theta = active * plain_fixed(fed, model, state.shared, on, k, t, mu=mu, epochs=2)
            torch.testing.assert_close(row, theta)
            top, bottom = top + weight[k] * theta, bottom + weight[k] * active
        mean = torch.where(bottom > 0, top / bottom.clamp(min=1e-9), state.shared)
        torch.testing.assert_close(new.shared, state.shared + algorithm.lr_server * (mean - state.shared))
        assert notes["upload"].tolist() == [
            int(expanded(model, neurons[k].float(), algorithm.expand_rule).sum()) for k in clients.tolist()
        ]
        assert notes["passes"] == 2
        assert set(notes["upload_bits"].tolist()) == {fed.layout.chain.num_neurons}
        state = new


@both_nets
def test_momentum_of_a_masked_client(name):
    """Training under a fixed mask is ordinary local training; masked entries have no velocity."""
    fed, model = fed_of(name, (12, 9), dtype=F64, momentum=0.9, epochs=2), net(name)
    _, notes = FedPeWSFixed(tau=1.0).round(fed, start(fed), everyone(fed), 0)
    for k, on in enumerate(split_neurons(fed.layout.chain.sizes, (0.5, 0.5)).to(F64)):
        want = plain_fixed(fed, model, fed.theta0, on, k, 0, epochs=2, momentum=0.9)
        torch.testing.assert_close(notes["trained"][k], want * expanded(model, on))


@pytest.mark.parametrize("training", [{}, {"momentum": 0.9, "weight_decay": 0.1}, {"clip_norm": 0.1}], ids=str)
def test_batch_norm_of_unselected_neurons_is_unchanged(training):
    fed = federation(cnn(bn=True), (12, 9), shape=(1, 4, 4), **training)
    algorithm = FedPeWSFixed(tau=1.0, shares=(1.0, 0.0))
    state, notes = algorithm.round(fed, start(fed), torch.tensor([1]), 0)
    moved = state.shared != fed.theta0
    assert not moved[~fed.layout.mask(lambda f: f.name == "head.bias")].any()
    assert state.shared.isfinite().all() and notes["trained"].isfinite().all()
    state, _ = algorithm.round(fed, start(fed), everyone(fed), 0)
    fields, before = (fed.layout.unflatten(x) for x in (state.shared, fed.theta0))
    assert (fields["bn1.running_mean"] != before["bn1.running_mean"]).all()


# ---- invariants -----------------------------------------------------------------------------------------------------


@both_nets
@both_backends
def test_one_client_with_all_neurons_is_fedavg(name, stacked):
    fed = fed_of(name, (12,), stacked=stacked)
    state, history = run(FedPeWSFixed(tau=1.0), fed, Schedule(3))
    want, of_fedavg = run(FedAvg(), fed, Schedule(3))
    assert torch.equal(state.shared, want.shared)
    assert history.series["train_loss"] == of_fedavg.series["train_loss"]


@both_nets
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_masks_of_ones_give_fedavg(name, weighting, monkeypatch):
    monkeypatch.setattr(FedPeWSFixed, "neurons", lambda self, fed: torch.ones(4, len_of(fed), dtype=torch.bool))
    fed, schedule = fed_of(name, dtype=F64, epochs=2), Schedule(3, participation=0.75)
    state, _ = run(FedPeWSFixed(tau=1.0, client_weighting=weighting), fed, schedule)
    torch.testing.assert_close(state.shared, run(FedAvg(weighting), fed, schedule)[0].shared)


def len_of(fed):
    return fed.layout.chain.num_neurons


@both_nets
@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_weights_between_groups_are_unchanged_until_the_warm_up_ends(name, rate):
    fed = fed_of(name, rounds=4)
    algorithm = FedPeWSFixed(tau=0.5, lr_server=rate)
    active = fed.layout.chain.expand(split_neurons(fed.layout.chain.sizes, (0.25,) * 4)).any(0)
    state = start(fed)
    for t in range(4):
        state, _ = algorithm.round(fed, state, everyone(fed), t)
        assert torch.equal(state.shared[~active], fed.theta0[~active]) == (t < 2)


@both_nets
@both_backends
@pytest.mark.parametrize("rule", ["both_ends", "row"])
@pytest.mark.parametrize("base", ["fedprox", "scaffold", "moon"])
def test_entries_outside_the_mask_are_unchanged(name, stacked, rule, base):
    """A client trains the network x * m, and sends no entries outside m."""
    fed = fed_of(name, stacked=stacked, epochs=2)
    options = {"mu": 0.5} if base == "fedprox" else {}
    algorithm = FedPeWSFixed(tau=1.0, base=base, base_options=options, expand_rule=rule)
    state = start(fed, a_model(fed))
    active = expand(fed.layout.chain, algorithm.neurons(fed), rule)
    for k in range(4):
        new, notes = algorithm.round(fed, state, torch.tensor([k]), 0)
        assert torch.equal(new.shared[~active[k]], state.shared[~active[k]])
        assert (notes["trained"][0][~active[k]] == 0).all()
        assert (new.shared[active[k]] != state.shared[active[k]]).any()


# ---- shares ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shares", [(0.5, 0.4), (0.5, 0.6), (1.5, -0.5), (50.0, 50.0), (), (float("nan"), 0.5)])
def test_invalid_shares_are_refused(shares):
    with one_line("finite number" if any(map(math.isnan, shares)) else "sum to 1"):
        FedPeWSFixed(shares=shares)


@pytest.mark.parametrize("num", [1, 3, 5])
def test_a_wrong_number_of_shares_is_refused(num):
    fed = fed_of()
    algorithm = FedPeWSFixed(tau=1.0, shares=(1 / num,) * num)
    with one_line(f"{num} shares for 4 clients"):
        algorithm.round(fed, algorithm.init(fed, fed.theta0), everyone(fed), 0)


# ---- activations (Figures 14 and 15) --------------------------------------------------------------------------------


@both_nets
@pytest.mark.parametrize("tau", [0.5, 0.0])
def test_activations_against_plain_modules(name, tau):
    """Sums over probe samples and positions, of the subnetwork during the warm-up, and of the whole model."""
    fed, algorithm = fed_of(name, dtype=F64, rounds=4), FedPeWSFixed(tau=tau, probe=11, probe_whole=True)
    own, num, warm = algorithm.neurons(fed), fed.layout.chain.num_neurons, int(4 * tau)
    parts = [expanded(net(name), row.double()) for row in own]
    for t, (state, _) in enumerate(after(algorithm, fed, 4)):
        assert state.activations.shape == (t + 1, 2, 4, num)
        for k in range(4):
            x, _ = fed.splits["train"].client(k)
            x = x[torch.randperm(len(x), generator=generator(0, "probe", k))[:11]]
            theta_k = state.shared * parts[k] if t < warm else state.shared
            torch.testing.assert_close(state.activations[t, 0, k], summed(fed, name, theta_k, x))
            torch.testing.assert_close(state.activations[t, 1, k], summed(fed, name, state.shared, x))
    assert not state.activations[:warm, 0, ~own].any()
    assert state.activations[warm:, 0, ~own].any()
    kept = algorithm.artifacts(fed, state)
    torch.testing.assert_close(kept["activations"], state.activations[:, 0], atol=0.05, rtol=0)
    torch.testing.assert_close(kept["activations_whole"], state.activations[:, 1], atol=0.05, rtol=0)
    assert kept["layer_sizes"].tolist() == list(fed.layout.chain.sizes)
    plain = FedPeWSFixed(tau=tau, probe=11)
    alone = plain.artifacts(fed, after(plain, fed, 4)[-1][0])
    assert torch.equal(alone["activations"], kept["activations"]) and alone.keys() == {"activations", "layer_sizes"}


def summed(fed, name, theta_k, x):
    """[h] each neuron's activations over all of x, layer by layer."""
    found = []
    for layer, module in module_of(fed, net(name), theta_k).eval().named_children():
        x = module(x)
        if layer in fed.layout.chain.activations:
            found.append(x.detach().flatten(2).sum((0, 2)) if x.dim() > 2 else x.detach().sum(0))
    return torch.cat(found)


def test_a_probe_changes_no_result_and_without_it_nothing_is_stored():
    fed = fed_of(rounds=3)
    plain, probed = (after(FedPeWSFixed(tau=0.5, probe=probe), fed, 3)[-1][0] for probe in (0, 5))
    assert torch.equal(plain.shared, probed.shared)
    assert FedPeWSFixed().artifacts(fed, plain) == {}
