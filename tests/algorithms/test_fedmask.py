"""FedMask: against plain autograd, the server's step by hand, and which entries never change."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from pfl_core import Schedule, run
from pfl_core.algorithms.fedmask import FedMask, first_scores, largest
from pfl_core.seeding import generator
from tests.algorithms.two_nets import F64, SIZES, SOME, both_nets, fed_of, net_of
from tests.helpers import after, everyone, module_of, same_bits


def test_the_server_step_by_hand():
    """Three clients, four scores: kept by all, by two, by one and by none; weights 1, 2 and 1."""
    scores = torch.tensor([[1.0, 2, 3, 4], [4.0, 5, 6, 7], [7.0, 8, 9, 10]])
    kept = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 0]], dtype=torch.bool)
    got = torch.stack(FedMask().merge(scores, kept, torch.tensor([1.0, 2, 1])))
    assert torch.equal(got, torch.tensor([[4.0, 5, 3, 4], [4.0, 5, 6, 7], [4.0, 5, 9, 10]]))


@both_nets
def test_with_everything_kept_the_models_never_change(net):
    fed, algorithm = fed_of(net), FedMask(keep_ratio=1.0, layers=2)
    d = fed.num_params
    for state, notes in after(algorithm, fed, SOME):
        for row in algorithm.evaluation_models(fed, state, everyone(fed), 0):
            assert torch.equal(row[:d], fed.theta0[:d])
        assert notes["mask_agreement"] == 1
    assert not torch.equal(state.scores[0], algorithm.init(fed, fed.theta0).scores[0])


@both_nets
@pytest.mark.parametrize("layers", [1, 2])
def test_weights_never_change_and_each_layer_keeps_its_share(net, layers):
    fed, algorithm = fed_of(net, momentum=0.9, weight_decay=0.01), FedMask(keep_ratio=0.3, layers=layers, lr_mask=3.0)
    d, seen = fed.num_params, set()
    for state, _ in after(algorithm, fed, SOME):
        assert torch.equal(state.shared[:d], fed.theta0[:d])
        for row in algorithm.evaluation_models(fed, state, everyone(fed), 0):
            changed = row[:d] != fed.theta0[:d]
            assert (row[:d][changed] == 0).all()
            for f in fed.layout.params:
                masked = f.name in (("head.weight", "fc1.weight") if layers == 2 else ("head.weight",))
                gone = int(changed[f.start : f.stop].sum())
                size = f.stop - f.start
                assert gone == (size - int(0.3 * size + 0.5) if masked else 0), f.name
            seen.add(changed.numpy().tobytes())
    assert len(seen) > 1


@given(seed=st.integers(0, 999), n=st.integers(1, 30), share=st.floats(0.01, 1.0))
def test_initial_scores_are_zero_at_the_cut(seed, n, share):
    theta = torch.randn(n, generator=generator(seed, "theta"))
    scores = first_scores(theta, share)
    assert torch.equal(scores > 0, largest(theta.abs(), share))
    assert torch.equal(largest(scores, share), largest(theta.abs(), share))


def test_initial_scores_by_hand():
    """Half of them kept: 4 and 3, cut at 2.5; the mean of |W| is 2.5."""
    torch.testing.assert_close(first_scores(torch.tensor([4.0, 1, -2, 3]), 0.5), torch.tensor([0.6, -0.6, -0.2, 0.2]))


# ---- against plain autograd -----------------------------------------------------------------------------------------


class Cut(torch.autograd.Function):
    """Forward: the mask. Backward: the gradient of the sigmoid."""

    @staticmethod
    def forward(ctx, scores, mask):
        ctx.save_for_backward(scores)
        return mask.to(scores)

    @staticmethod
    def backward(ctx, gradient):
        (scores,) = ctx.saved_tensors
        return gradient * torch.sigmoid(scores) * (1 - torch.sigmoid(scores)), None


def plain_mask(algorithm, scores):
    if algorithm.cut == "threshold":
        return 1 / (1 + torch.exp(-scores)) > algorithm.tau
    count = max(1, int(algorithm.keep_ratio * len(scores) + 0.5))
    out = torch.zeros(len(scores), dtype=torch.bool)
    out[scores.argsort(descending=True, stable=True)[:count]] = True
    return out


def plain_client(algorithm, fed, model, theta, scores, k, t):
    """(scores by name, statistics) after a round; the optimizer is torch's, on the scores alone."""
    plain = module_of(fed, model, theta)
    leaves = {n: s.clone().requires_grad_() for n, s in scores.items()}
    optimizer = torch.optim.SGD(leaves.values(), algorithm.lr_mask, momentum=fed.train.momentum)
    for batch in fed.batches(torch.tensor([k]), t):
        params = dict(plain.named_parameters())
        for name, leaf in leaves.items():
            mask = Cut.apply(leaf, plain_mask(algorithm, leaf.detach()))
            params[name] = params[name].detach() * mask.view_as(params[name])
        optimizer.zero_grad()
        cross_entropy(functional_call(plain, params, batch.x[0]), batch.y[0]).backward(inputs=list(leaves.values()))
        optimizer.step()
    return {n: s.detach() for n, s in leaves.items()}, fed.layout.flatten(dict(plain.state_dict()))[fed.num_params :]


@pytest.mark.parametrize(("net", "stacked"), [("mlp", True), ("mlp", False), ("cnn", False)])
@pytest.mark.parametrize(
    "options", [{"layers": 1}, {"layers": 2, "client_weighting": "uniform"}, {"layers": 2, "cut": "threshold"}], ids=str
)
def test_rounds_against_plain_modules(net, stacked, options):
    fed, model = fed_of(net, dtype=F64, stacked=stacked, momentum=0.5), net_of(net)
    algorithm = FedMask(lr_mask=2.0, keep_ratio=0.6, **options)
    names = ["fc1.weight", "head.weight"][-algorithm.layers :]
    d, statistics = fed.num_params, fed.theta0[fed.num_params :]
    split = [fed.layout.field(n).stop - fed.layout.field(n).start for n in names]
    own = [dict(zip(names, row.split(split), strict=True)) for row in algorithm.init(fed, fed.theta0).scores]
    moved = False
    for t, (state, notes) in enumerate(after(algorithm, fed, SOME)):
        theta = torch.cat([fed.theta0[:d], statistics])
        trained = {k: plain_client(algorithm, fed, model, theta, own[k], k, t) for k in SOME[t]}
        n = {k: SIZES[k] if algorithm.client_weighting == "samples" else 1 for k in SOME[t]}
        statistics = sum(n[k] * trained[k][1] for k in SOME[t]) / sum(n.values())
        upload = 0
        for name in names:
            kept = {k: plain_mask(algorithm, trained[k][0][name]) for k in SOME[t]}
            upload = upload + torch.stack([*kept.values()]).sum(1)
            moved |= any(not torch.equal(m, plain_mask(algorithm, own[k][name])) for k, m in kept.items())
            new = {k: trained[k][0][name].clone() for k in SOME[t]}
            for j in range(len(new[SOME[t][0]])):
                keepers = [k for k in SOME[t] if kept[k][j]]
                for k in keepers if len(keepers) > 1 else []:
                    new[k][j] = sum(n[i] * trained[i][0][name][j] for i in keepers) / sum(n[i] for i in keepers)
            for k in SOME[t]:
                own[k] = own[k] | {name: new[k]}
        want = torch.stack([torch.cat([row[name] for name in names]) for row in own])
        torch.testing.assert_close(torch.stack(state.scores), want, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(state.shared[d:], statistics)
        assert torch.equal(notes["upload"], upload)
        assert notes["upload_bits"].tolist() == [sum(split)] * len(SOME[t])
    assert moved


# ---- scores, chunks, settings ---------------------------------------------------------------------------------------


@both_nets
def test_with_one_participant_both_scores_are_equal(net):
    _, history = run(FedMask(lr_mask=3.0, layers=2), fed_of(net, sizes=(14,)), Schedule(2))
    assert same_bits(history.series["loss"], history.series["loss_trained"])


def test_more_layers_than_the_network_has_are_refused():
    fed = fed_of()
    with pytest.raises(ValueError, match="last 3 layers"):
        FedMask(layers=3).init(fed, fed.theta0)
