"""``precision="bf16"``: layers compute in bfloat16; what methods see and keep is float32."""

import sys
from collections import OrderedDict
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from pfl_core import engine
from pfl_core.algorithm import build, methods
from pfl_core.engine import Schedule
from pfl_core.federation import DerivedWeights, LocalTraining
from pfl_core.runs import RunSpec
from pfl_core.runs.build import build as build_run
from pfl_core.runs.build import run_warnings
from pfl_core.training import Training
from tests.helpers import cnn, everyone, federation, leaves, mlp, plain_sgd, same_bits, some_rows


class InBfloat16(nn.Sequential):
    """The plain PyTorch way."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out = super().forward(x)
        return out.float()


# Imitated bfloat16 is slow, above all in convolutions: the smallest networks and few samples
@pytest.mark.parametrize(("make", "shape"), [(mlp, (6,)), (partial(mlp, True), (6,)), (cnn, (1, 4, 4))])
def test_training_is_the_plain_loop_under_autocast(make, shape):
    options = {"sizes": (8, 6), "shape": shape, "epochs": 2, "momentum": 0.9}
    fed, exact = (federation(make(), **options, precision=precision) for precision in ("bf16", "float32"))
    clients = everyone(fed)
    start = some_rows(fed, clients)
    out, other = (f.sgd(start, clients, key=3) for f in (fed, exact))
    for s, k in enumerate(clients.tolist()):
        plain = InBfloat16(OrderedDict(make().named_children()))
        want, losses = plain_sgd(fed, plain, start[s], k, 3, lr=0.1, epochs=2, momentum=0.9)
        torch.testing.assert_close(out.theta[s], want, rtol=1e-6, atol=1e-6)
        assert out.loss[s].item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert not same_bits(out.theta, other.theta)
    torch.testing.assert_close(out.theta, other.theta, rtol=0.1, atol=0.1)


def test_what_a_method_sees_is_float32():
    fed = federation(mlp(True), precision="bf16", momentum=0.9)
    clients, seen = everyone(fed), []

    def hook(out):
        seen.extend((out.logits, out.features, out.theta))
        return nn.functional.cross_entropy(out.logits, out.labels)

    theta = fed.broadcast(fed.theta0, clients)
    out = fed.sgd(theta, clients, LocalTraining(loss=hook), key=0, velocity=torch.zeros(len(clients), fed.num_params))
    batch = next(fed.batches(clients[:1], 0))
    seen += [out.theta, out.velocity, out.loss, fed.evaluate(out.theta, clients).loss]
    seen += [fed.logits(out.theta[0], batch.x[0]), fed.hessian_product(theta[:1], batch, theta[:1, : fed.num_params])]
    seen += [fed.forward(out.theta, clients, layer=layer)[0] for layer in ("logits", "features")]
    weights = DerivedWeights(lambda theta_k, variables, x, s: 2 * theta_k)
    seen += [fed.grad(theta[:1], batch, weights=weights, of=("loss", "theta")).theta]
    assert {x.dtype for x in seen} == {torch.float32} and all(x.isfinite().all() for x in seen)


@pytest.mark.parametrize("name", methods())
def test_every_method_trains_and_keeps_float32(name):
    run = RunSpec(method={"name": name, **methods()[name].ci}, model={"name": "mlp"}, rounds=1, clients=5)
    _, fed, _ = build_run(replace(run, train=Training(batch_size=128, precision="bf16")))
    state, history = engine.run(build(name, methods()[name].ci), fed, Schedule(rounds=1))
    assert all(x.dtype != torch.bfloat16 for _, x in leaves(state) if isinstance(x, Tensor))
    assert all(loss == loss for loss in history.series["loss"][1][-1])


class Determinant(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.linalg.det(x.unsqueeze(1) * x.unsqueeze(2))[:, None]


def test_what_cannot_compute_in_bf16_is_refused():
    with pytest.raises(ValueError, match="batched=True computes in float32; leave batched at None"):
        federation(stacked=True, precision="bf16")
    net = nn.Sequential(OrderedDict(fc1=nn.Linear(6, 5), det=Determinant(), head=nn.Linear(5, 3)))
    federation(net)
    with pytest.raises(ValueError, match="Sequential cannot compute in bf16: .*BFloat16"):
        federation(net, precision="bf16")
    assert not federation(precision="bf16").batched


def test_a_run_has_its_own_key_and_a_warning_where_it_is_slow(monkeypatch):
    plain = RunSpec(method={"name": "fedavg"})
    run = replace(plain, train=Training(precision="bf16"))
    assert run.key() != plain.key() and replace(run, train=Training(precision="float32")).key() == plain.key()
    method, fed, _ = build_run(run)
    for supported in (False, True):
        monkeypatch.setattr(sys.modules["pfl_core.runs.build"], "has_bf16", lambda device, here=supported: here)
        assert any("bf16" in text for text in run_warnings(run, method, fed)) != supported
