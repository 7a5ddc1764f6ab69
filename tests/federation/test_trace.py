"""A user's network: what it draws, changes and keeps is the same for every client order, thread and run, or refused."""

from __future__ import annotations

import random
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from pfl_core import Schedule
from pfl_core.algorithms.ditto import Ditto
from pfl_core.algorithms.fedap import FedAP
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.fedbn import FedBN
from pfl_core.algorithms.fedpac import FedPAC
from pfl_core.algorithms.local import Local
from pfl_core.algorithms.moon import Moon
from pfl_core.algorithms.partial import FedPer, FedRep, LGFedAvg
from pfl_core.algorithms.star_pfl.method import StarPFL
from pfl_core.costs import weight_uses
from pfl_core.engine import run
from tests.helpers import WIDTH, everyone, federation, one_line, same_bits, without_times

STEPS = [0]


class Net(nn.Module):
    """6 features -> 5 neurons -> 3 classes; subclasses add what users add."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.head = nn.Linear(WIDTH, 5), nn.Linear(5, 3)
        with torch.no_grad():
            for i, p in enumerate(self.parameters()):
                p.copy_(torch.linspace(-1, 1, p.numel()).sin().view(p.shape) * (i + 1) / 3)

    def change(self, h: torch.Tensor) -> torch.Tensor:
        return h

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.change(self.fc1(x)).relu())


class Dropout(Net):
    def change(self, h):
        return nn.functional.dropout(h, 0.5, self.training)


class Noise(Net):
    """Also in evaluation."""

    def change(self, h):
        return h + 0.3 * torch.randn_like(h)


class NumpyNoise(Net):
    def change(self, h):
        return h + np.random.normal()


class PythonNoise(Net):
    def change(self, h):
        return h * random.random()


class LateNoise(Net):
    """Draws only for some batches, which a first look does not show."""

    def change(self, h):
        return h + torch.randn_like(h) if len(h) == 4 else h


DRAWING = [Dropout, Noise, NumpyNoise, PythonNoise, LateNoise]


def trained(net, method=None, *, start=None, until=None, **options):
    fed = federation(net, **options)
    state, history = run(method or FedAvg(), fed, Schedule(rounds=3), start=start, until=until)
    return state, history


@pytest.mark.parametrize("kind", DRAWING, ids=lambda kind: kind.__name__)
def test_equal_runs_of_networks_that_draw_are_equal(kind):
    """In any order, with any number of threads, after a kill; and the generators are left as they were."""
    net, start = kind(), lambda: (torch.manual_seed(5), np.random.seed(5), random.seed(5))
    draw = lambda: (float(torch.rand(())), np.random.rand(), random.random())  # noqa: E731
    start()
    state, history = trained(net)
    drawn = draw()
    start()
    assert drawn == draw()
    half = trained(kind(), until=1)
    later = trained(kind(), start=(*half, 1))
    for other in (trained(kind()), trained(kind(), threads=3), later):
        assert same_bits(state, other[0])
        assert same_bits(without_times(history), without_times(other[1]))
    assert not same_bits(state, trained(kind(), seed=1)[0])


def test_evaluation_does_not_change_the_draws_of_training():
    one, _ = run(Local(), federation(Noise()), Schedule(rounds=4, eval_every=1))
    other, _ = run(Local(), federation(Noise()), Schedule(rounds=4, eval_every=4))
    assert same_bits(one, other)


def test_a_clients_draws_do_not_depend_on_the_other_clients():
    fed = federation(Dropout())
    with fed.one_by_one():
        both = fed.sgd(fed.broadcast(fed.theta0, everyone(fed)), everyone(fed), key=0).theta
        alone = fed.sgd(fed.theta0[None], torch.tensor([2]), key=0).theta
    assert same_bits(both[2], alone[0])


class InPlace(Net):
    def forward(self, x):
        x -= 0.5
        return super().forward(x)


class InPlaceByNumpy(Net):
    def forward(self, x):
        x.numpy()[...] *= 0.5
        return super().forward(x)


class InPlaceInEvaluation(Net):
    def forward(self, x):
        return super().forward(x if self.training else x.clamp_(-0.1, 0.1))


def data_of(fed) -> list:
    return [(split.x.clone(), split.y.clone()) for split in fed.splits.values()]


@pytest.mark.parametrize(
    "net",
    [InPlace(), InPlaceByNumpy(), InPlaceInEvaluation(), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(WIDTH, 3))],
    ids=lambda net: type(net).__name__,
)
def test_networks_that_work_in_place_leave_the_data_as_they_are(net):
    fed = federation(net)
    before = data_of(fed)
    run(Moon(), fed, Schedule(rounds=2))
    assert same_bits(before, data_of(fed))


class KeepsMean(Net):
    """A running mean as a plain attribute."""

    mean = 0.0

    def change(self, h):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * h.detach().mean()
            return h
        return h - self.mean


class Counts(Net):
    """A warm-up by an integer buffer: every second batch is halved."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def change(self, h):
        self.steps += self.training
        return h / (1 + self.steps % 2)


class Table(Net):
    """The counter is an index, which a floating buffer cannot be."""

    def __init__(self):
        super().__init__()
        self.register_buffer("at", torch.zeros((), dtype=torch.int64))

    def change(self, h):
        self.at += 1
        return h * torch.ones(10**3)[self.at]


class Assigns(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))

    def change(self, h):
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return h - self.mean


class Unstored(Net):
    """A running mean in a buffer that is in no state dict."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(5), persistent=False)

    def change(self, h):
        self.mean.mul_(0.9).add_(0.1 * h.detach().mean(0))
        return h - self.mean


class Outside(Net):
    def change(self, h):
        STEPS[0] += 1
        return h * STEPS[0]


class Weird(Net):
    def __init__(self):
        super().__init__()
        self.lock = (lambda: 0, time)  # cannot be copied

    def __deepcopy__(self, memo):
        raise TypeError("locks stay where they are")


class Tokens(Net):
    """A head for each of two tokens, without a mean."""

    def forward(self, x):
        return super().forward(torch.stack([x, -x], 1))


class Fails(Net):
    def change(self, h):
        return h @ torch.ones(7)


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (KeepsMean(), "depends on earlier batches through mean, which clients would share"),
        (Table(), "its integer buffer at changes with every batch"),
        (Assigns(), "assigns a new tensor to its buffer mean"),
        (Unstored(), "depends on earlier batches through mean"),
        (Weird(), "network Weird cannot be copied"),
        (Tokens(), r"the output has shape \[2, 2, 3\], not \[2, classes\]"),
        (Fails(), "network Fails fails on two samples of shape .* in training mode"),
        (nn.Sequential(nn.ReLU(), nn.LSTM(WIDTH, 3)), "for 2 samples the output has type tuple"),
        (nn.Sequential(nn.Unflatten(1, (3, 2)), nn.Conv1d(3, 3, 2), nn.Flatten()), "no linear layer"),
        (nn.Linear(WIDTH, 3).requires_grad_(False), "no trainable parameter"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_networks_that_cannot_be_trained_are_refused_in_one_line(net, message):
    with one_line(message):
        federation(net)


def test_an_integer_buffer_belongs_to_the_client():
    """Every client counts its own steps: order and threads do not matter, and nothing leaks into the next client."""
    sizes = (9, 12)
    fed = federation(Counts(), sizes)
    assert [f.name for f in fed.layout.fields][-1] == "steps"
    rows = fed.broadcast(fed.theta0, everyone(fed))
    out = fed.sgd(rows, everyone(fed), key=0).theta
    assert out[:, -1].tolist() == [3, 3]
    for k in (1, 0):
        assert same_bits(out[k], fed.sgd(fed.theta0[None], torch.tensor([k]), key=0).theta[0])


class Caches(Net):
    last = None

    def change(self, h):
        self.last = h.detach()
        return h


class Unseeded(Net):
    def change(self, h):
        return h + float(np.random.default_rng().normal())


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (Caches(), "last changes with every batch"),
        (Unseeded(), "equal runs give different results"),
        (Outside(), "equal runs give different results"),
    ],
)
def test_what_may_matter_is_said(net, message):
    with pytest.warns(UserWarning, match=message):
        run(FedAvg(), federation(net), Schedule(rounds=1))


class Reversed(nn.Module):
    """The classifier is registered before the body, and a layer that is not used after it."""

    def __init__(self):
        super().__init__()
        self.classifier = nn.Linear(5, 3)
        self.body = nn.Linear(WIDTH, 5)
        self.unused = nn.Linear(7, 7)
        self.aside = nn.Linear(3, 2)

    def forward(self, x):
        logits = self.classifier(self.body(x).relu())
        self.aside(logits.detach())
        return logits


class Named(Reversed):
    head_layer = "body"


@pytest.mark.parametrize(
    ("net", "method", "personal"),
    [
        (Reversed(), FedPer(), {"classifier"}),
        (Reversed(), FedPer(personal_layers=2), {"body", "classifier"}),
        (Reversed(), LGFedAvg(), {"body", "unused", "aside"}),
        (Named(), FedRep(), {"body"}),
    ],
)
def test_the_head_is_the_last_linear_layer_that_the_logits_need(net, method, personal):
    fed = federation(net)
    chosen = {f.layer for f in fed.layout.params if method.is_personal(fed.layout)(f)}
    assert chosen == personal
    run(method, fed, Schedule(rounds=1))


class Attentive(nn.Module):
    """Three positions of two features. The network calls neither ``unused`` nor the attention's own ``out_proj``."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(2, 4), nn.Linear(4, 3)
        self.attention = nn.MultiheadAttention(4, 1, batch_first=True)
        self.norm, self.unused = nn.BatchNorm1d(4), nn.BatchNorm1d(4)

    def forward(self, x):
        h = self.embed(x.view(-1, WIDTH // 2, 2))
        h = self.attention(h, h, h, need_weights=False)[0].mean(1)
        return self.head(self.norm(h))


@pytest.mark.parametrize("method", [StarPFL(), FedAP(pretrain_epochs=1)])
def test_layers_that_are_not_called_are_no_obstacle(method):
    fed = federation(Attentive())
    uses = weight_uses(fed, fed.theta0)
    assert {f.name: int(uses[f.start]) for f in fed.layout.params if uses[f.start]} == {
        "embed.weight": WIDTH // 2,
        "attention.in_proj_weight": WIDTH // 2,
        "head.weight": 1,
    }
    run(method, fed, Schedule(rounds=1))


def test_a_head_that_the_network_lacks_is_refused():
    net = Net()
    net.head_layer = "fc9"
    with pytest.raises(ValueError, match="head_layer='fc9' is none of fc1, head"):
        federation(net)


class Normed(Net):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(5)

    def change(self, h):
        return self.norm(h)


@pytest.mark.parametrize(
    ("method", "net", "message"),
    [
        (FedPer(), nn.Linear(WIDTH, 3), "no parameter is shared"),
        (FedRep(), nn.Linear(WIDTH, 3), "no parameter is shared"),
        (LGFedAvg(), nn.Linear(WIDTH, 3), "no parameter stays with a client"),
        (FedPer(personal_layers=0), Net(), "no parameter stays with a client"),
        (FedBN(), Net(), "no parameter stays with a client"),
        (FedBN(), Normed(), "not group or layer norm"),
        (Ditto(lam=0), Net(), "as with Local"),
    ],
)
def test_methods_say_where_nothing_or_everything_is_personal(method, net, message):
    assert message in " ".join(method.warnings(federation(net)))
    assert not type(method)().warnings(federation(Net())) or type(method) is FedBN


def test_frozen_parameters_stay_and_are_not_counted():
    net = Net()
    net.fc1.requires_grad_(False)
    fed = federation(net)
    assert fed.num_params == 5 * 3 + 3 and fed.layout.head == "head"
    before = net.fc1.weight.clone()
    for method in (FedAvg(), FedPer(), LGFedAvg()):
        _, history = run(method, fed, Schedule(rounds=2))
        assert max(history.series["upload"][1][-1]) <= 18
    assert same_bits(before, fed.network.fc1.weight)


class Object(Net):
    def forward(self, x):
        return SimpleNamespace(logits=super().forward(x))


class Constant(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.full((5,), 2.0), persistent=False)

    def change(self, h):
        return h * self.scale / 2


class Doubled(Net):
    def __init__(self):
        super().__init__()
        self.double()


@pytest.mark.parametrize("kind", [Object, Constant, Doubled])
def test_other_forms_of_the_same_network_train_the_same(kind):
    state, history = trained(kind())
    expected = trained(Net())
    assert same_bits(state.shared, expected[0].shared)
    assert same_bits(without_times(history), without_times(expected[1]))


class Recurrent(nn.Module):
    """Its first layer returns a tuple, its head sees every token."""

    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.lstm(x.view(len(x), 3, 2))[0]).mean(1)


@pytest.mark.parametrize("method", [Moon(), FedPAC()])
def test_heads_of_tokens_are_refused_where_features_are_needed(method):
    with pytest.raises(
        ValueError, match=r"needs a vector of features for each sample; the head head is given \(3, 4\)"
    ):
        run(method, federation(Recurrent()), Schedule(rounds=1))


def test_layers_that_return_tuples_have_an_output():
    fed = federation(Recurrent())
    (out, *_) = fed.forward(fed.theta0[None], torch.tensor([0]), layer="lstm")
    assert out.shape == (8, 3, 4)


def test_features_cannot_be_cropped():
    with pytest.raises(ValueError, match=r"augment='crop_flip' needs images, not samples of shape \[6\]"):
        federation(augment="crop_flip")


class Chained(nn.Sequential):
    """A chain of known layers with a forward pass of its own."""

    def forward(self, x):
        return 2 * super().forward(x)


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize("net", [Chained(nn.Linear(WIDTH, 3)), nn.Sequential(Scaled(WIDTH, 3))])
def test_a_forward_pass_of_ones_own_is_not_replaced(net):
    fed = federation(net)
    assert not fed.batched
    x = fed.splits["test"].client(0)[0]
    torch.testing.assert_close(fed.logits(fed.theta0, x), net(x))


def test_networks_of_torch_are_examined_without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not federation().traced.draws


def test_a_federation_can_be_made_where_gradients_are_off():
    with torch.no_grad():
        assert federation(Reversed()).layout.head == "classifier"
