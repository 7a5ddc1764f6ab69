"""pFedMe: a round by hand, against plain autograd, and where it is FedAvg."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from pfl_core import Schedule, run
from pfl_core.algorithms.pfedme import PFedMe
from tests.algorithms.two_nets import F64, SOME, both_nets, fed_of, net_of, wrong
from tests.helpers import after, linear_federation, module_of, same_bits


@pytest.mark.parametrize("beta", [1.0, 0.5])
@pytest.mark.parametrize("lam", [0.0, 0.1, 2.0])
def test_a_round_by_hand(lam, beta):
    """Logits W x, W = 0, one sample a client, eta = 1, eta_v = h = 0.5, K = 2.

    Client 0, x = (2, 1), y = 0: the gradient at 0 is -A, A = (1, .5; -1, -.5), so v = h A after a step, without a pull.
    Its margin there is 5 h, the gradient -2 q A with q = 1 / (1 + e^{5 h}); the pull is lam h A. So the second step
    leads to a A with a = h + h (2 q - lam h), and w moves from 0 to lam a A. Client 1, x = (1, 3), y = 1, twice the
    same sample: B = (-.5, -1.5; .5, 1.5), margin 10 h. It weighs twice as much.
    """
    fed = linear_federation([([[2, 1]], [0]), ([[1, 3]] * 2, [1] * 2)])
    ((state, notes),) = after(PFedMe(lam=lam, inner_steps=2, lr_personal=0.5, lr_server=beta), fed, 1)
    a, b = torch.tensor([[1, 0.5, -1, -0.5], [-0.5, -1.5, 0.5, 1.5]], dtype=F64)
    far = [0.5 + 0.5 * (2 * wrong(m) - lam * 0.5) for m in (2.5, 5.0)]
    torch.testing.assert_close(torch.stack(state.local), torch.stack([far[0] * a, far[1] * b]))
    torch.testing.assert_close(state.shared, beta * lam * (far[0] * a + 2 * far[1] * b) / 3)
    first, second = wrong(torch.zeros(2)), wrong(torch.tensor([2.5, 5.0]))
    want = -(torch.log(1 - first) + torch.log(1 - second)) / 2  # the losses before the two steps
    torch.testing.assert_close(notes["train_loss"], want.float())
    assert notes["upload"].tolist() == [4, 4]
    assert notes["passes"] == 2


def test_a_round_of_the_released_code_by_hand():
    """Two rounds of one step at rate 1, lam = 0.5: to A and B, theta = M = (A + 2 B) / 3; then A + 2 q A - (A - M) / 2.

    v persists; what goes up is v itself. Margins at A and B: 5 and 10.
    """
    fed = linear_federation([([[2, 1]], [0]), ([[1, 3]] * 2, [1] * 2)])
    (first, _), (second, notes) = after(PFedMe(lam=0.5, algorithm="fedem_code"), fed, 2)
    a, b = torch.tensor([[1, 0.5, -1, -0.5], [-0.5, -1.5, 0.5, 1.5]], dtype=F64)
    mean = (a + 2 * b) / 3
    torch.testing.assert_close(first.shared, mean)
    own = [a + 2 * wrong(5.0) * a - (a - mean) / 2, b + 2 * wrong(10.0) * b - (b - mean) / 2]
    torch.testing.assert_close(torch.stack(second.local), torch.stack(own))
    torch.testing.assert_close(second.shared, (own[0] + 2 * own[1]) / 3)
    assert notes["passes"] == 1


# ---- where it is FedAvg ---------------------------------------------------------------------------------------------


@both_nets
def test_with_lam_0_the_shared_model_never_changes(net):
    fed = fed_of(net)
    d = fed.num_params
    for state, _ in after(PFedMe("uniform", lam=0.0), fed, 2):  # quarters add up without rounding
        assert torch.equal(state.shared[:d], fed.theta0[:d])
        assert not torch.equal(state.local[0][:d], fed.theta0[:d])


# ---- against plain autograd -----------------------------------------------------------------------------------------


def plain_client(algorithm, fed, model, theta, v, k, t):
    """w [e] and v [e] after a round, the pull written as a penalty in the loss."""
    paper = algorithm.algorithm == "paper"
    plain, w = module_of(fed, model, theta if paper else v), theta[: fed.num_params].clone()
    optimizer = torch.optim.SGD(plain.parameters(), algorithm.lr_personal or 0.1, weight_decay=algorithm.personal_decay)
    for batch in fed.batches(torch.tensor([k]), t):
        for _ in range(algorithm.inner_steps if paper else 1):
            apart = (torch.cat([p.flatten() for p in plain.parameters()]) - w).square().sum()
            optimizer.zero_grad()
            (cross_entropy(plain(batch.x[0]), batch.y[0]) + algorithm.lam / 2 * apart).backward()
            optimizer.step()
        now = fed.layout.flatten(dict(plain.state_dict()))
        w = w - 0.1 * algorithm.lam * (w - now[: fed.num_params]) if paper else w
    return (torch.cat([w, now[fed.num_params :]]) if paper else now), now


@both_nets
@pytest.mark.parametrize(
    "options",
    [{}, {"lam": 0.3, "inner_steps": 2, "lr_personal": 0.05, "lr_server": 0.7, "personal_decay": 0.01}]
    + [{"algorithm": "fedem_code", "lam": 0.4, "client_weighting": "uniform"}],
    ids=str,
)
def test_rounds_against_plain_modules(net, options):
    """Clients of different sizes; all, two, then three of four take part. Absent clients are unchanged."""
    fed, model, algorithm = fed_of(net, dtype=F64), net_of(net), PFedMe(**options)
    theta, v = fed.theta0, fed.theta0.repeat(4, 1)
    for t, (state, _) in enumerate(after(algorithm, fed, SOME)):
        sent = torch.zeros_like(v)
        for k in SOME[t]:
            sent[k], v[k] = plain_client(algorithm, fed, model, theta, v[k].clone(), k, t)
        n = torch.tensor([(12.0, 9, 14, 10)[k] if algorithm.client_weighting == "samples" else 1 for k in SOME[t]])
        mean = ((n / n.sum()).to(F64)[:, None] * sent[SOME[t]]).sum(0)
        theta = theta + algorithm.lr_server * (mean - theta)
        torch.testing.assert_close(torch.stack(state.local), v, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(state.shared, theta, rtol=1e-6, atol=1e-7)


def test_momentum_and_clipping_have_no_effect_and_weight_decay_has():
    plain, other, decayed = (fed_of(**o) for o in ({}, {"momentum": 0.9, "clip_norm": 0.01}, {"weight_decay": 0.1}))
    one, same, apart = (after(PFedMe(), fed, 2)[-1][0] for fed in (plain, other, decayed))
    assert same_bits(one, same)
    assert same_bits(apart, after(PFedMe(personal_decay=0.1), plain, 2)[-1][0])
    assert not same_bits(one, apart)


# ---- scores, the absent, memory, settings ---------------------------------------------------------------------------


@both_nets
def test_clients_are_scored_with_the_personal_models(net):
    fed = fed_of(net)
    state, history = run(PFedMe(), fed, Schedule(2))
    for metric in ("correct", "loss"):
        assert same_bits(history.series[metric], history.series[f"{metric}_trained"])
    want = fed.evaluate(torch.stack(state.local), torch.arange(4))
    assert history.series["correct"][1][-1] == want.correct.tolist()


@both_nets
@pytest.mark.parametrize("algorithm", ["paper", "fedem_code"])
def test_a_novel_client_trains_from_the_shared_model(net, algorithm):
    fed, method, novel = fed_of(net), PFedMe(algorithm=algorithm), torch.tensor([3, 1])
    ((state, _),) = after(method, fed, [[0, 2]])
    adapted = method.adapt(fed, state, novel, 0)
    _, want = method.train(fed, fed.broadcast(state.shared, novel), state.shared, novel, 0, (0, "adapt"))
    assert torch.equal(method.evaluation_models(fed, adapted, novel, 0), want)
    assert not torch.equal(want[0], state.shared)
    assert same_bits((adapted.shared, adapted.local[0], adapted.local[2]), (state.shared, *state.local[::2]))
