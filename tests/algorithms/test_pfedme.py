"""pFedMe: against plain autograd, and where the shared model never changes."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from pfl_core import Schedule, run
from pfl_core.algorithms.pfedme import PFedMe
from tests.algorithms.two_nets import F64, SOME, both_nets, fed_of, net_of
from tests.helpers import after, module_of, same_bits


@both_nets
def test_with_lam_0_the_shared_model_never_changes(net):
    fed = fed_of(net)
    d = fed.num_params
    for state, _ in after(PFedMe("uniform", lam=0.0), fed, 2):  # quarters add up without rounding
        assert torch.equal(state.shared[:d], fed.theta0[:d])
        assert not torch.equal(state.local[0][:d], fed.theta0[:d])


# ---- against plain autograd -----------------------------------------------------------------------------------------


def plain_client(algorithm, fed, model, theta, v, k, t):
    """w [e] and v [e] after a round, the pull written as a penalty in the loss; and the mean cross-entropy."""
    paper = algorithm.algorithm == "paper"
    plain, w, losses = module_of(fed, model, theta if paper else v), theta[: fed.num_params].clone(), []
    optimizer = torch.optim.SGD(plain.parameters(), algorithm.lr_personal or 0.1, weight_decay=algorithm.personal_decay)
    for batch in fed.batches(torch.tensor([k]), t):
        for _ in range(algorithm.inner_steps if paper else 1):
            apart = (torch.cat([p.flatten() for p in plain.parameters()]) - w).square().sum()
            optimizer.zero_grad()
            loss = cross_entropy(plain(batch.x[0]), batch.y[0])
            (loss + algorithm.lam / 2 * apart).backward()
            optimizer.step()
            losses += [loss.detach()] * len(batch.y[0])
        now = fed.layout.flatten(dict(plain.state_dict()))
        w = w - 0.1 * algorithm.lam * (w - now[: fed.num_params]) if paper else w
    return (torch.cat([w, now[fed.num_params :]]) if paper else now), now, torch.stack(losses).mean()


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
    for t, (state, notes) in enumerate(after(algorithm, fed, SOME)):
        sent, losses = torch.zeros_like(v), torch.zeros(4)
        for k in SOME[t]:
            sent[k], v[k], losses[k] = plain_client(algorithm, fed, model, theta, v[k].clone(), k, t)
        n = torch.tensor([(12.0, 9, 14, 10)[k] if algorithm.client_weighting == "samples" else 1 for k in SOME[t]])
        mean = ((n / n.sum()).to(F64)[:, None] * sent[SOME[t]]).sum(0)
        theta = theta + algorithm.lr_server * (mean - theta)
        torch.testing.assert_close(torch.stack(state.local), v, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(state.shared, theta, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(notes["train_loss"], losses[SOME[t]])
        assert notes["upload"].tolist() == [fed.num_params] * len(SOME[t])
        assert notes["passes"] == 2 * (algorithm.inner_steps if algorithm.algorithm == "paper" else 1)


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
