"""FedPAC: against plain PyTorch with a brute-force solver, and optimality of the quadratic program."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from pfl_core.algorithms.fedpac import MIN_WEIGHT, FedPAC, drop_small_weights, quadratic, simplex_minimum
from pfl_core.algorithms.partial import FedRep
from pfl_core.seeding import generator
from tests.algorithms.two_nets import F64, NETS, every_net, head_of, named_fed
from tests.helpers import after, everyone, module_of, same_bits


class OwnHeads(FedPAC):
    """Without the mixture."""

    def head_weights(self, A, V):
        return torch.eye(len(V)).to(V)


# ---- plain PyTorch --------------------------------------------------------------------------------------------------


def by_supports(H):
    """argmin wᵀ H w on the simplex: every support's equality-constrained optimum, the best that is not negative."""
    n, best = len(H), (np.inf, None)
    for size in range(1, n + 1):
        for support in map(list, itertools.combinations(range(n), size)):
            kkt = np.ones((size + 1, size + 1))
            kkt[:size, :size], kkt[-1, -1] = H[np.ix_(support, support)], 0
            w = np.zeros(n)
            w[support] = np.linalg.lstsq(kkt, np.eye(size + 1)[-1], rcond=None)[0][:size]
            if w.min() >= -1e-12 and abs(w.sum() - 1) < 1e-9:
                best = min(best, (w @ H @ w, tuple(w)))
    return np.array(best[1])


def literal(A, V):
    """diag(V) + G_i, sum by sum."""
    num, classes = A.shape[:2]
    H = torch.diag(V).repeat(num, 1, 1)
    for i, j, l, c in itertools.product(range(num), range(num), range(num), range(classes)):  # noqa: E741
        H[i, j, l] += (A[i, c] - A[j, c]) @ (A[i, c] - A[l, c])
    return H


def plain_features(plain, x):
    plain.eval()
    for layer in list(plain)[:-1]:
        x = layer(x)
    plain.train()
    return x.detach()


def plain_client(algorithm, fed, model, theta_k, k, t, P):
    """One client with ``torch.optim.SGD``; P: class -> prototype, None before there are any."""
    plain = module_of(fed, model, theta_k)
    x, y = fed.splits["train"].client(k)
    z, n = plain_features(plain, x), len(y)
    A, V, own = torch.zeros(3, z.shape[1], dtype=F64), torch.tensor(0.0, dtype=F64), {}
    for c in y.unique().tolist():
        pi, own[c] = (y == c).sum() / n, z[y == c].mean(0)
        A[c] = pi * own[c]
        V += (pi * z[y == c].square().sum(1).mean() - pi**2 * own[c].square().sum()) / n
    aims = None if P is None or algorithm.lam == 0 else own | {c: P[c] for c in P if c in own}
    head = list(plain.head.parameters())
    body = [p for p in plain.parameters() if all(p is not q for q in head)]
    optimizer = torch.optim.SGD(head, lr=fed.train.lr if algorithm.lr_head is None else algorithm.lr_head)
    for batch in fed.batches(torch.tensor([k]), t, epochs=1):
        optimizer.zero_grad()
        cross_entropy(plain(batch.x[0]), batch.y[0]).backward()
        optimizer.step()
    optimizer = torch.optim.SGD(body, lr=fed.train.lr)
    for batch in fed.batches(torch.tensor([k]), t):
        optimizer.zero_grad()
        z = plain[:-1](batch.x[0])
        loss = cross_entropy(plain.head(z), batch.y[0])
        if aims is not None:
            loss = loss + algorithm.lam * (z - torch.stack([aims[c] for c in batch.y[0].tolist()])).square().mean()
        loss.backward()
        optimizer.step()
    z = plain_features(plain, x)
    means = {c: (int((y == c).sum()), z[y == c].mean(0)) for c in own}
    return fed.layout.flatten(dict(plain.state_dict())), A, V, means


def plain_rounds(algorithm, fed, model, taking_part, mixing=True):
    """(the clients' models [N, e], prototypes by class) after each round."""
    head, own = head_of(fed), head_of(fed)
    own[fed.num_params :] = algorithm.buffer_policy == "local"
    models, P = fed.theta0.repeat(fed.num_clients, 1), None
    for t, clients in enumerate(taking_part):
        by_client = [plain_client(algorithm, fed, model, models[k], k, t, P) for k in clients]
        theta, A, V, means = zip(*by_client, strict=True)
        n, H, models = fed.num_train[clients], literal(torch.stack(A), torch.stack(V)).numpy(), models.clone()
        shared = sum(n_k * theta_k for n_k, theta_k in zip(n, theta, strict=True)) / n.sum()
        for i, k in enumerate(clients):
            w = by_supports(H[i]) if mixing else np.eye(len(clients))[i]
            w[w < 1e-3] = 0
            models[k] = theta[i]
            models[k, head] = sum(w_j / w.sum() * theta_j[head] for w_j, theta_j in zip(w, theta, strict=True))
        models[:, ~own] = shared[~own]
        P = {}
        for c in range(3):
            having = [m[c] for m in means if c in m]
            if having and algorithm.prototype_weighting == "counts":
                P[c] = sum(count * mean for count, mean in having) / sum(count for count, _ in having)
            elif having:
                P[c] = sum(mean for _, mean in having) / len(having)
        yield models, P


PARTS = [[0, 2], [1, 3], [0, 2], [0, 1, 2, 3]]


def fed_of(name, sizes=(12, 6, 9, 4), **options):
    """Clients with two classes each; 0 and 2, alone in two of ``PARTS``, lack class 2."""
    fed = named_fed(name, sizes=sizes, dtype=F64, **options)
    owner = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    classes = torch.tensor([[0, 1], [0, 2], [0, 1], [1, 2]])
    train = fed.splits["train"]
    fed.splits["train"] = replace(train, y=classes[owner, torch.arange(len(owner)) % 2])
    return NETS[name][0](), fed


OPTIONS = [
    FedPAC(),
    FedPAC(lam=2.0, lr_head=0.3, prototype_weighting="uniform", buffer_policy="average"),
    OwnHeads(lam=0.0),
]


@every_net
@pytest.mark.parametrize("algorithm", OPTIONS, ids=["default", "options", "own heads"])
def test_against_plain_pytorch(name, algorithm):
    model, fed = fed_of(name)
    plain = plain_rounds(algorithm, fed, model, PARTS, mixing=not isinstance(algorithm, OwnHeads))
    for (state, notes), (models, P) in zip(after(algorithm, fed, PARTS), plain, strict=True):
        torch.testing.assert_close(
            algorithm.evaluation_models(fed, state, everyone(fed), 0), models, rtol=1e-6, atol=1e-8
        )
        assert state.known.tolist() == [c in P for c in range(3)]
        for c in P:
            torch.testing.assert_close(state.prototypes[c], P[c], rtol=1e-6, atol=1e-8)
        vectors = 2 * 2 * state.prototypes.shape[1]  # two for each of a client's two classes; all counts, and V
        assert (notes["upload"] == fed.num_params + vectors + 3 + 1).all()
        assert notes["passes"] == pytest.approx(1 + 2 + 2 / 3)


@pytest.mark.parametrize(
    ("name", "policy"),
    [("mlp, stacked", "local"), ("cnn with batch norm", "local"), ("cnn with batch norm", "average")],
)
def test_without_prototypes_and_mixture_it_is_bitwise_fedrep(name, policy):
    """One head epoch, then the body's, on the same batches."""
    _, fed = fed_of(name)
    options = {"lr_head": 0.3, "buffer_policy": policy}
    want = after(FedRep(**options, client_weighting="samples", head_epochs=1, body_epochs=2), fed, PARTS)
    for (state, _), (other, _) in zip(after(OwnHeads(lam=0.0, **options), fed, PARTS), want, strict=True):
        assert same_bits((state.shared, state.own), (other.shared, other.own))


# ---- the quadratic program ------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.integers(0, 999), st.integers(1, 6))
def test_the_quadratic_program_is_the_papers(seed, num):
    stream = generator(seed, "A")
    A, V = torch.randn(num, 3, 2, generator=stream, dtype=F64), torch.rand(num, generator=stream, dtype=F64)
    torch.testing.assert_close(quadratic(A, V), literal(A, V))


def test_a_large_common_part_cancels():
    """Clients whose features differ by a millionth of their common part."""
    A = torch.randn(3, 2, 2, generator=generator(0, "A"), dtype=F64)
    exact = quadratic(A, torch.zeros(3, dtype=F64)) * 1e-12
    got = quadratic(1e-6 * A + 100, torch.zeros(3, dtype=F64))
    torch.testing.assert_close(got, exact, rtol=1e-5, atol=1e-18)


def quadratic_programs(seed, num, size):
    """H [num, num, num] of random clients, the A of some of them equal or 0."""
    stream = generator(seed, "programme")
    A = torch.randn(num, 1, size, generator=stream, dtype=F64)
    A = A[torch.randint(0, num, (num,), generator=stream)] * (torch.rand(num, 1, 1, generator=stream) < 0.8)
    V = 10 ** (2 - 4 * torch.rand(num, generator=stream, dtype=F64))
    return A, V, quadratic(A, V)


SEED = st.integers(0, 99_999)


@settings(max_examples=50)
@given(SEED, st.integers(1, 5), st.integers(1, 4))
def test_the_minimum_against_all_supports(seed, num, size):
    _, _, H = quadratic_programs(seed, num, size)
    want = torch.tensor(np.stack([by_supports(each.numpy()) for each in H]))
    torch.testing.assert_close(simplex_minimum(H), want, rtol=1e-6, atol=1e-7)


@given(SEED, st.integers(1, 20), st.integers(1, 12), st.floats(0, 1))
@example(seed=1, num=20, size=1, zeros=1.0)
def test_the_minimum_satisfies_karush_kuhn_tucker(seed, num, size, zeros):
    """w ≥ 0, Σ w = 1, and every gradient at least wᵀ H w, with equality where w > 0; also for V with zeros."""
    A, V, _ = quadratic_programs(seed, num, size)
    V = V * (torch.rand(num, generator=generator(seed, "zeros")) >= zeros)
    H = quadratic(A, V)
    w = simplex_minimum(H)
    scale = H.diagonal(dim1=1, dim2=2).amax(1)
    found = scale > 0  # nothing to choose by: no result
    assert w[~found].isnan().all()
    w, H, scale = w[found], H[found] / scale[found, None, None], scale[found]
    assert (w >= 0).all()
    torch.testing.assert_close(w.sum(1), torch.ones_like(scale))
    gradient = (H @ w[:, :, None]).squeeze(2)
    excess = gradient - (w * gradient).sum(1, keepdim=True)
    assert (excess > -1e-10).all()
    assert ((w * excess).abs() < 1e-10).all()


def test_pivoting_does_not_cycle():
    """For a few of 4,000 arbitrary matrices pivoting would cycle if all wrong signs were always exchanged together."""
    B = torch.randn(4000, 8, 8, generator=generator(0, "arbitrary"), dtype=F64)
    H = B @ B.mT + 1e-3 * torch.eye(8)
    w = simplex_minimum(H)
    gradient = (H @ w[:, :, None]).squeeze(2)
    assert (w >= 0).all()
    assert (gradient - (w * gradient).sum(1, keepdim=True) > -1e-9).all()


@settings(max_examples=30)
@given(SEED, st.integers(1, 30), st.integers(1, 12))
def test_small_weights_are_dropped_and_the_rest_sum_to_1(seed, num, size):
    A, V, H = quadratic_programs(seed, num, size)
    w, exact = FedPAC().head_weights(A, V), simplex_minimum(H)
    torch.testing.assert_close(w.sum(1), torch.ones(num, dtype=F64))
    assert torch.equal(w == 0, exact < MIN_WEIGHT)
    assert ((w == 0) | (w >= MIN_WEIGHT)).all()
    torch.testing.assert_close(w, torch.where(w > 0, exact, 0) / torch.where(w > 0, exact, 0).sum(1, keepdim=True))


@pytest.mark.parametrize("value", [0.0, torch.nan, torch.inf])
def test_without_a_solution_every_client_keeps_its_head(value):
    w = FedPAC().head_weights(torch.full((3, 2, 2), value, dtype=F64), torch.full((3,), 0 * value, dtype=F64))
    assert torch.equal(w, torch.eye(3, dtype=F64))


def test_if_all_weights_are_small_the_client_keeps_its_head():
    even = torch.full((1200, 1200), 1 / 1200, dtype=F64)
    even[1] = torch.where(torch.arange(1200) == 7, 1.0, 0.0)
    w = drop_small_weights(even)
    assert torch.equal(w[1], even[1])
    assert torch.equal(w[[0, *range(2, 1200)]], torch.eye(1200, dtype=F64)[[0, *range(2, 1200)]])


def test_zero_variance_gives_the_own_head_or_an_equal_mixture():
    """V = 0 for clients 0 to 2, 1 and 2 with equal features: of many minima, the one with equal weights is chosen."""
    A = torch.tensor([[[5.0]], [[1.0]], [[1.0]], [[1.5]]], dtype=F64)
    w = FedPAC().head_weights(A, torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=F64))
    torch.testing.assert_close(w[0], torch.tensor([1.0, 0, 0, 0], dtype=F64), atol=1e-6, rtol=0)
    torch.testing.assert_close(w[1:3], torch.tensor([[0, 0.5, 0.5, 0]], dtype=F64).expand(2, -1), atol=1e-6, rtol=0)
