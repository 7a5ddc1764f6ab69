"""Arguments of hooks; gradients through derived weights and gates equal those of autograd."""

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy, relu

from pfl_core import LocalTraining
from pfl_core.federation import DerivedWeights
from tests.helpers import cnn, coin, federation, mlp, module_of, same_bits, some_rows

F64 = torch.float64
IMAGES = {"shape": (1, 4, 4), "dtype": F64}


def first_batch(fed, k=0, key=0):
    return next(fed.batches(torch.tensor([k]), key))


def reference(model, fed, vector, x, mode="train"):
    """Logits of a plain functional call with the parameters of ``vector`` [d], differentiable."""
    plain = module_of(fed, model, fed.theta0).train(mode == "train")
    buffers = {name: b.clone() for name, b in plain.named_buffers()}
    return functional_call(plain, fed.layout.unflatten(vector) | buffers, (x,))


# ---- loss and gradient hooks ----------------------------------------------------------------------------------------


def test_the_loss_hook_sees_its_batch():
    model = mlp(bn=True)
    fed = federation(model)
    clients, seen = torch.tensor([2, 0]), []

    def loss(output):
        seen.append((output, output.theta.clone()))
        return cross_entropy(output.logits, output.labels)

    out = fed.sgd(fed.broadcast(fed.theta0, clients), clients, LocalTraining(loss=loss), key=0)
    assert [o.row for o, _ in seen] == [0] * out.steps[0] + [1] * out.steps[1]
    assert [o.client for o, _ in seen] == [2] * out.steps[0] + [0] * out.steps[1]
    for output, theta in seen:
        x, y = fed.splits["train"].client(output.client)
        assert torch.equal(output.x, x[output.index])
        assert torch.equal(output.labels, y[output.index])
        assert theta.shape == (fed.num_entries,)
        plain = module_of(fed, model, theta)
        features = plain.relu1(plain.bn1(plain.fc1(output.x)))
        torch.testing.assert_close(output.features, features)
        torch.testing.assert_close(output.logits, plain.head(features))
    assert torch.equal(seen[0][1][: fed.num_params], fed.theta0[: fed.num_params])
    assert not torch.equal(seen[1][1], seen[0][1])
    plain = fed.sgd(fed.broadcast(fed.theta0, clients), clients, key=0)
    assert same_bits(out, plain)


def test_the_loss_hook_is_what_is_minimised():
    """A loss of logits, features and labels against autograd over the plain module."""
    model = mlp()
    fed = federation(model, dtype=F64)

    def value(logits, features, labels):
        return 2 * cross_entropy(logits, labels, reduction="sum") + features.pow(3).mean()

    batch = first_batch(fed)
    got = fed.grad(fed.theta0[None], batch, loss=lambda o: value(o.logits, o.features, o.labels))
    plain = module_of(fed, model, fed.theta0)
    features = plain.relu1(plain.fc1(batch.x[0]))
    want = value(plain.head(features), features, batch.y[0])
    want.backward()
    torch.testing.assert_close(got.theta[0], torch.cat([p.grad.flatten() for p in plain.parameters()]))
    torch.testing.assert_close(got.loss[0], want.detach())


def test_the_gradient_hook_sees_gradient_row_and_place():
    fed = federation(sizes=(12, 9, 14, 9), dtype=F64, batch_size=100)
    clients, seen = torch.tensor([3, 1]), []
    theta = some_rows(fed, clients)

    def hook(g, theta_k, s):
        seen.append((g.clone(), theta_k.clone(), s))
        return g

    fed.sgd(theta, clients, LocalTraining(gradient=hook), key=0)
    for (g, theta_k, s), k in zip(seen, (3, 1), strict=True):
        assert torch.equal(theta_k, theta[s])
        assert torch.equal(g, fed.grad(theta[s : s + 1], first_batch(fed, k)).theta[0])
    assert [s for *_, s in seen] == [0, 1]


def test_the_gradient_hook_sees_the_whole_gradient_also_where_a_mask_freezes_it():
    fed = federation(mlp(), dtype=F64, batch_size=100)
    head, seen = fed.layout.mask(fed.layout.in_head), []
    theta, one = fed.theta0[None], torch.tensor([0])
    training = LocalTraining(trainable=head, gradient=lambda g, theta_k, s: seen.append(g.clone()) or g)
    fed.sgd(theta, one, training, key=0)
    assert torch.equal(seen[0], fed.grad(theta, first_batch(fed)).theta[0])


def test_the_result_of_a_gradient_hook_is_not_modified():
    """A hook may return a tensor of the method's state, e.g. a control variate."""
    fed = federation(momentum=0.9, weight_decay=0.1, clip_norm=1.0, epochs=2)
    kept = torch.ones(fed.num_params)
    frozen = fed.layout.mask(fed.layout.in_head)
    training = LocalTraining(trainable=~frozen, gradient=lambda g, theta_k, s: kept)
    fed.sgd(fed.theta0[None], torch.tensor([0]), training, key=0)
    assert (kept == 1).all()


def test_clipping_comes_after_the_hook_and_before_weight_decay():
    fed = federation(dtype=F64, clip_norm=0.5, weight_decay=0.1, batch_size=100)
    g = torch.full((fed.num_params,), 3.0, dtype=F64)
    one = torch.tensor([0])
    got = fed.sgd(fed.theta0[None], one, LocalTraining(gradient=lambda *_: g), key=0).theta[0]
    torch.testing.assert_close(got, fed.theta0 - 0.1 * (0.5 * g / g.norm() + 0.1 * fed.theta0), rtol=1e-6, atol=1e-7)


# ---- derived weights ------------------------------------------------------------------------------------------------


def scaled(theta_k, variables_k, x, s=0):
    """Every entry times one of three scales; the last scale depends on the batch as well."""
    scale = variables_k.sigmoid() * torch.stack([torch.ones_like(x[0, 0]), torch.ones_like(x[0, 0]), x.mean().exp()])
    return theta_k * scale[torch.arange(len(theta_k)) % 3]


def scaled_images(theta_k, variables_k, x, s=0):
    return scaled(theta_k, variables_k, x.flatten(1))


def autograd_through(model, fed, theta_k, variables_k, x, y, weights):
    """Loss and gradients of cross-entropy through weights(theta, variables, x), by one backward pass."""
    sources = [theta_k[: fed.num_params].clone().requires_grad_(), variables_k.clone().requires_grad_()]
    value = cross_entropy(reference(model, fed, weights(*sources, x), x), y)
    return value.detach(), *torch.autograd.grad(value, sources)


@pytest.mark.parametrize("bn", [False, True], ids=["no norm", "batch norm"])
@pytest.mark.parametrize("frozen", [False, True], ids=["", "theta frozen"])
def test_gradients_through_derived_weights(bn, frozen):
    model = cnn(bn)
    fed = federation(model, **IMAGES)
    variables = torch.tensor([[0.3, -1.0, 0.5]], dtype=F64)
    batch = first_batch(fed)
    got = fed.grad(
        fed.theta0[None].clone(),
        batch,
        weights=DerivedWeights(scaled_images, variables),
        of=["loss"] + ["theta"] * (not frozen),
    )
    sample = batch.x[0], batch.y[0], scaled_images
    value, of_theta, of_variables = autograd_through(model, fed, fed.theta0, variables[0], *sample)
    torch.testing.assert_close(got.loss[0], value, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(got.variables[0], of_variables, rtol=1e-6, atol=1e-9)
    if frozen:
        assert got.theta is None
    else:
        torch.testing.assert_close(got.theta[0], of_theta, rtol=1e-6, atol=1e-9)


MASKS = {"all": lambda f: True, "head": lambda f: f.layer == "head", "nothing": lambda f: False}


@pytest.mark.parametrize("select", MASKS.values(), ids=MASKS)
def test_training_theta_and_variables_together(select):
    """Both are updated from the same point; a mask on theta does not change the gradient of the variables."""
    model = mlp()
    fed = federation(model, dtype=F64, epochs=2)
    clients, mask = torch.tensor([1, 3]), fed.layout.mask(select)
    variables = torch.tensor([[0.3, -1.0, 0.5], [0.1, 0.2, 0.3]], dtype=F64)
    start = fed.broadcast(fed.theta0, clients)
    training = LocalTraining(trainable=mask, weights=DerivedWeights(scaled, variables, lr=0.7))
    out = fed.sgd(start, clients, training, key=0)
    for s, k in enumerate(clients.tolist()):
        theta, v = fed.theta0.clone(), variables[s].clone()
        for batch in fed.batches(torch.tensor([k]), 0):
            _, of_theta, of_variables = autograd_through(model, fed, theta, v, batch.x[0], batch.y[0], scaled)
            theta -= 0.1 * torch.where(mask, of_theta, 0.0)
            v -= 0.7 * of_variables
        torch.testing.assert_close(out.theta[s], theta, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(out.variables[s], v, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("decay", "own"), [(0.0, 0.2), (0.2, 0.0), (0.2, None), (0.2, 0.05)])
def test_weight_decay_of_variables(decay, own):
    """Default: that of ``Training``, which theta always uses."""
    model = mlp()
    fed = federation(model, dtype=F64, weight_decay=decay)
    variables = torch.tensor([[0.3, -1.0, 0.5]], dtype=F64)
    weights = DerivedWeights(scaled, variables, lr=0.7, weight_decay=own)
    out = fed.sgd(fed.theta0[None], torch.tensor([1]), LocalTraining(weights=weights), key=0)
    theta, v = fed.theta0.clone(), variables[0].clone()
    for batch in fed.batches(torch.tensor([1]), 0):
        _, of_theta, of_variables = autograd_through(model, fed, theta, v, batch.x[0], batch.y[0], scaled)
        theta = theta - 0.1 * (of_theta + decay * theta)
        v = v - 0.7 * (of_variables + (decay if own is None else own) * v)
    torch.testing.assert_close(out.theta[0], theta, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(out.variables[0], v, rtol=1e-6, atol=1e-7)


def test_a_loss_hook_sees_the_derived_forward_pass():
    model = mlp()
    fed = federation(model, dtype=F64)
    variables = torch.zeros(1, 3, dtype=F64)
    logits = []

    def loss(output):
        logits.append(output.logits.detach())
        assert torch.equal(output.theta, fed.theta0)
        return output.logits.pow(2).mean()

    batch = first_batch(fed)
    fed.grad(fed.theta0[None], batch, loss=loss, weights=DerivedWeights(scaled, variables))
    want = reference(model, fed, scaled(fed.theta0, variables[0], batch.x[0]), batch.x[0])
    torch.testing.assert_close(logits[0], want)


def test_a_loss_hook_must_not_use_the_network():
    fed = federation(stacked=False)
    with pytest.raises(RuntimeError, match="a loss hook must not call methods of the federation"):
        fed.grad(fed.theta0[None], first_batch(fed), loss=lambda o: fed.logits(fed.theta0.clone(), o.x).sum())


def test_weights_may_have_no_variables_and_know_their_row():
    """FedPeWS's product variant: a fixed mask for each row."""
    model = mlp()
    fed = federation(model, dtype=F64)
    masks, one = coin(2, fed.num_params), torch.tensor([0, 0])
    start = fed.broadcast(fed.theta0, one)
    masked = DerivedWeights(lambda theta_k, _, x, s: theta_k * masks[s])
    out = fed.sgd(start, one, LocalTraining(weights=masked), key=0)
    assert out.variables is None
    for s in range(2):
        theta = fed.theta0.clone()
        for batch in fed.batches(torch.tensor([0]), 0):
            sample = batch.x[0], batch.y[0], lambda t, v, x, s=s: t * masks[s] + 0 * v.sum()
            theta -= 0.1 * autograd_through(model, fed, theta, torch.zeros(1, dtype=F64), *sample)[1]
        torch.testing.assert_close(out.theta[s], theta, rtol=1e-6, atol=1e-7)
        assert torch.equal(out.theta[s][~masks[s]], fed.theta0[~masks[s]])


def test_variables_have_a_clip_a_decay_and_a_velocity_of_their_own():
    """pFedGate: both optimizers carry momentum, and clip their own gradient's norm."""
    model = mlp()
    fed = federation(model, dtype=F64, momentum=0.9, weight_decay=0.1, clip_norm=0.05, milestones=(0.5,), rounds=2)
    one, key = torch.tensor([1]), 1  # the schedule's second half: a tenth of each rate
    v = torch.tensor([0.3, -1.0, 0.5], dtype=F64)
    at_rest = torch.zeros(1, 53, dtype=F64), torch.zeros(1, 3, dtype=F64)
    training = LocalTraining(weights=DerivedWeights(scaled, v[None], 0.7, at_rest[1]))
    first = fed.sgd(fed.theta0[None], one, training, key=key, velocity=at_rest[0])
    weights = DerivedWeights(scaled, first.variables, 0.7, first.velocity_variables)
    training = LocalTraining(epochs=range(1, 2), weights=weights)
    second = fed.sgd(first.theta, one, training, key=key, velocity=first.velocity)
    x = [fed.theta0.clone(), v.clone()]
    speed = [torch.zeros_like(part) for part in x]
    for batch in fed.batches(one, key, epochs=2):
        found = autograd_through(model, fed, *x, batch.x[0], batch.y[0], scaled)[1:]
        for i, rate in enumerate((0.01, 0.07)):
            g = found[i] * min(1.0, 0.05 / (found[i].norm().item() + 1e-6)) + 0.1 * x[i]
            speed[i] = 0.9 * speed[i] + g
            x[i] = x[i] - rate * speed[i]
    torch.testing.assert_close(second.theta[0], x[0], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(second.variables[0], x[1], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(second.velocity_variables[0], speed[1], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(second.velocity[0], speed[0], rtol=1e-6, atol=1e-7)


def test_variables_without_a_rate_take_the_federations():
    fed = federation(dtype=F64)
    usual, stated = (
        fed.sgd(fed.theta0[None], torch.tensor([0]), LocalTraining(weights=weights), key=0)
        for weights in (DerivedWeights(scaled, torch.ones(1, 3, dtype=F64), lr) for lr in (None, 0.1))
    )
    assert same_bits(usual, stated)


def test_batch_norm_statistics_move_with_derived_weights():
    fed = federation(mlp(bn=True))
    one, d = torch.tensor([0]), fed.num_params
    ones = LocalTraining(weights=DerivedWeights(lambda t, v, x, s: t * v, torch.ones(1, d), lr=0.0))
    plain = fed.sgd(fed.theta0[None], one, key=0).theta
    assert torch.equal(fed.sgd(fed.theta0[None], one, ones, key=0).theta, plain)


# ---- gates ----------------------------------------------------------------------------------------------------------


def gated_logits(plain, gates, x):
    """The networks of the helpers with every hidden activation times its neuron's gate."""
    if not hasattr(plain, "conv1"):
        return plain.head(relu(plain.fc1(x)) * gates)
    hidden = (plain.pool1(relu(plain.conv1(x))) * gates[:3, None, None]).flatten(1)
    return plain.head(relu(plain.fc1(hidden)) * gates[3:])


@pytest.mark.parametrize("conv", [False, True], ids=["mlp", "cnn"])
@pytest.mark.parametrize("binary", [False, True], ids=["real gates", "0/1 gates"])
def test_gradients_of_gates_are_autograds(conv, binary):
    """Real gates and 0/1 masks: the gradient is not zero for neurons with a zero gate."""
    model = cnn(bn=False) if conv else mlp()
    fed = federation(model, **(IMAGES if conv else {"dtype": F64}))
    h = fed.layout.chain.num_neurons
    gates = torch.arange(h)[None] % 3 != 1 if binary else torch.linspace(0.2, 1.8, h)[None]
    gates = gates.to(F64)
    theta, batch = some_rows(fed, torch.arange(1)), first_batch(fed)
    got = fed.grad(theta, batch, gates=gates, of=("loss", "theta", "gates"))
    plain, leaf = module_of(fed, model, theta[0]), gates[0].clone().requires_grad_()
    value = cross_entropy(gated_logits(plain, leaf, batch.x[0]), batch.y[0])
    value.backward()
    torch.testing.assert_close(got.loss[0], value.detach())
    torch.testing.assert_close(got.gates[0], leaf.grad)
    torch.testing.assert_close(got.theta[0], torch.cat([p.grad.flatten() for p in plain.parameters()]))
    if binary:
        assert (got.gates[0][1::3] != 0).all()


def test_gates_leave_no_trace():
    fed = federation(mlp())
    batch = first_batch(fed)
    before = fed.grad(fed.theta0[None], batch)
    gates = torch.zeros(1, 5)
    fed.grad(fed.theta0[None], batch, gates=gates)

    def broken(output):
        raise KeyError("a fault in a loss hook")

    with pytest.raises(KeyError):
        fed.grad(fed.theta0[None], batch, gates=gates, loss=broken)
    assert same_bits(fed.grad(fed.theta0[None], batch), before)
    assert not gates.requires_grad
    assert before.gates is None


def test_gates_of_one_change_nothing():
    fed = federation(cnn(bn=True), shape=(1, 4, 4))
    batch = first_batch(fed)
    plain, gated = fed.grad(fed.theta0[None], batch), fed.grad(fed.theta0[None], batch, gates=torch.ones(1, 7))
    for name in ("loss", "theta", "statistics"):
        assert same_bits(getattr(plain, name), getattr(gated, name))


def test_gates_need_a_chain():
    fed = federation(torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3)))
    with pytest.raises(ValueError, match="gates need a plain chain"):
        fed.grad(fed.theta0[None], first_batch(fed), gates=torch.ones(1, 4))
