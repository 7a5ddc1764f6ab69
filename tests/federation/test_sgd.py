"""Local training equals the plain PyTorch loop, changes only trainable entries, and draws batches by key."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from pfl_core import Federation, LocalTraining, Split, Training
from pfl_core.federation import DerivedWeights
from pfl_core.federation import local_step as rows
from pfl_core.seeding import generator
from tests.helpers import cnn, coin, everyone, federation, mlp, module_of, plain_sgd, same_bits, samples, some_rows

F64 = torch.float64
IMAGES = {"shape": (1, 4, 4), "dtype": F64}


def train(fed, clients=None, key=0, theta=None, data="train", velocity=None, in_place=False, **training):
    clients = everyone(fed) if clients is None else torch.tensor(clients)
    theta = fed.broadcast(fed.theta0, clients) if theta is None else theta
    how = LocalTraining(**training)
    return fed.sgd(theta, clients, how, key=key, data=data, velocity=velocity, in_place=in_place)


# ---- equal to the plain loop ----------------------------------------------------------------------------------------

SETTINGS = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "weight decay": {"weight_decay": 0.05},
    "momentum and decay": {"momentum": 0.5, "weight_decay": 0.01},
    "clip": {"clip": 0.1},
    "all": {"momentum": 0.9, "weight_decay": 0.01, "clip": 0.1},
}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("bn", [False, True], ids=["no norm", "batch norm"])
def test_sgd_is_the_plain_loop(setting, bn):
    model = cnn(bn)
    options = {("clip_norm" if name == "clip" else name): value for name, value in setting.items()}
    fed = federation(model, **IMAGES, epochs=2, **options)
    clients = everyone(fed)
    theta = some_rows(fed, clients)
    out = train(fed, theta=theta, key=3)
    for s, k in enumerate(clients.tolist()):
        want, losses = plain_sgd(fed, model, theta[s], k, 3, lr=0.1, epochs=2, **setting)
        torch.testing.assert_close(out.theta[s], want, rtol=1e-6, atol=1e-7)
        assert out.loss[s].item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)
        assert out.steps[s] == fed.num_steps(k, 2)


def test_augmented_images_go_through_the_same_steps():
    model = cnn(bn=True)
    fed = federation(model, **IMAGES, augment="crop_flip")
    out = train(fed, clients=[1])
    want, _ = plain_sgd(fed, model, fed.theta0, 1, 0, lr=0.1)
    torch.testing.assert_close(out.theta[0], want, rtol=1e-6, atol=1e-7)
    assert not torch.equal(out.theta, train(federation(model, **IMAGES), clients=[1]).theta)


def test_the_rate_is_not_rounded_to_single_precision():
    """One step in float64 with a rate that float32 cannot represent: theta - 0.1 g."""
    model = mlp()
    fed = federation(model, dtype=F64, batch_size=100)
    batch = next(fed.batches(torch.tensor([0]), 0))
    g = fed.grad(fed.theta0[None], batch).theta[0]
    for rate in (None, 0.1, torch.tensor([0.1], dtype=F64)):
        torch.testing.assert_close(train(fed, [0], lr=rate).theta[0], fed.theta0 - 0.1 * g, rtol=1e-12, atol=1e-13)


def test_a_network_that_is_no_chain_trains_as_well():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.bn, self.fc = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

        def forward(self, x):
            return self.fc(x + self.bn(self.inner(x)).relu())

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Residual()
    fed = federation(model, dtype=F64, momentum=0.9)
    want, _ = plain_sgd(fed, model, fed.theta0, 2, 1, lr=0.1, momentum=0.9)
    torch.testing.assert_close(train(fed, [2], key=1).theta[0], want, rtol=1e-6, atol=1e-7)


def test_the_model_that_was_given_stays_out_of_it():
    model = mlp(bn=True)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    fed = federation(model)
    first = train(fed)
    assert same_bits(dict(model.state_dict()), kept)
    assert model.fc1.weight.grad is None
    nn.init.zeros_(model.fc1.weight)
    assert same_bits(train(fed), first)


# ---- what is left alone ---------------------------------------------------------------------------------------------


def test_the_callers_tensors_stay_as_they_were():
    fed = federation(mlp(bn=True), momentum=0.9)
    clients, d = everyone(fed), fed.num_params
    given = {
        "theta": some_rows(fed, clients),
        "trainable": coin(4, d),
        "velocity": torch.randn(4, d, generator=generator(0, "velocity")),
        "lr": torch.full((4,), 0.1),
    }
    kept = {name: x.clone() for name, x in given.items()}
    theta0, data = fed.theta0.clone(), fed.splits["train"].x.clone()
    train(fed, **given)
    variables = torch.ones(4, d)
    train(fed, theta=given["theta"], weights=DerivedWeights(lambda t, v, x, s: t * v, variables, lr=0.1))
    assert same_bits(given, kept)
    assert (variables == 1).all()
    assert torch.equal(fed.theta0, theta0)
    assert torch.equal(fed.splits["train"].x, data)


@pytest.mark.parametrize("clients", [[0, 1, 2, 3], [2, 0]], ids=["all", "in another order"])
def test_rows_trained_in_place_are_those_trained_elsewhere(clients):
    fed = federation(mlp(bn=True), momentum=0.9)
    theta, mask = some_rows(fed, torch.tensor(clients)), coin(len(clients), fed.num_params)
    want = train(fed, clients, theta=theta, trainable=mask)
    given = theta.clone()
    out = train(fed, clients, theta=given, trainable=mask, in_place=True)
    assert out.theta is given
    assert same_bits(out, want)


@pytest.mark.parametrize("block", [1, 7, 1000])
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_a_step_taken_block_by_block_is_the_whole_step(monkeypatch, block, setting):
    options = {("clip_norm" if name == "clip" else name): value for name, value in setting.items()}
    fed = federation(mlp(bn=True), dtype=F64, epochs=2, **options)
    theta, mask = some_rows(fed, everyone(fed)), coin(4, fed.num_params)
    rates = torch.tensor([0.1, 0.2, 0.0, 0.1])
    want = [train(fed, theta=theta, trainable=mask), train(fed, theta=theta, lr=rates)]
    monkeypatch.setattr(rows, "BLOCK", block)
    for got, whole in zip(
        [train(fed, theta=theta, trainable=mask), train(fed, theta=theta, lr=rates)], want, strict=True
    ):
        torch.testing.assert_close(got.theta, whole.theta, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("case", ["all", "the head alone is trained", "the head is not used"])
@pytest.mark.parametrize("setting", [{}, {"momentum": 0.9, "weight_decay": 0.01}], ids=["plain", "momentum, decay"])
def test_gradients_left_apart_give_the_bits_of_one_vector(monkeypatch, setting, case):
    fed = federation(mlp(bn=True), epochs=2, **setting)
    theta, loss = some_rows(fed, everyone(fed)), None
    mask = coin(4, fed.num_params)
    if case == "the head alone is trained":  # the other tensors have no gradient at all
        mask &= fed.layout.mask(lambda f: f.layer == fed.layout.head)[: fed.num_params]
    elif case == "the head is not used":
        mask, loss = None, lambda out: out.features.square().mean()
    velocity = torch.randn(4, fed.num_params, generator=generator(0, "velocity")) if setting else None
    options = dict(theta=theta, trainable=mask, velocity=velocity, loss=loss)
    want = train(fed, **options)
    monkeypatch.setattr(rows, "BLOCK", 5)
    apart = train(fed, **options)
    train(fed, theta=theta, gradient=lambda g, theta, s: g)  # needs the vector, so that the two kinds alternate
    again = train(fed, **options)
    for got in (apart, again):
        assert same_bits(got.theta, want.theta)
        assert velocity is None or torch.equal(got.velocity, want.velocity)


def test_results_of_one_call_are_not_written_by_the_next():
    fed = federation(mlp(bn=True))
    first = train(fed)
    kept = first.theta.clone()
    train(fed, key=1, theta=first.theta)
    fed.evaluate(first.theta, everyone(fed))
    fed.forward(first.theta, everyone(fed), mode="train")
    assert torch.equal(first.theta, kept)


@pytest.mark.parametrize("rows", [False, True], ids=["one mask", "a mask for each row"])
@pytest.mark.parametrize("tail", [False, True], ids=["[d]", "[e]"])
@pytest.mark.parametrize("with_hook", [False, True], ids=["", "with a hook"])
@pytest.mark.parametrize("setting", [{}, {"weight_decay": 0.1}, {"momentum": 0.9, "weight_decay": 0.1}])
def test_frozen_entries_do_not_move_by_one_bit(rows, tail, with_hook, setting):
    fed = federation(mlp(bn=True), epochs=2, **setting)
    clients, d = everyone(fed), fed.num_params
    mask = coin(*([4] if rows else []), fed.num_entries if tail else d)
    theta = some_rows(fed, clients)
    theta[:, :3] = torch.tensor([0.0, -0.0, 1e-42])
    velocity = torch.ones(4, d) if "momentum" in setting else None
    hook = (lambda g, theta_k, s: g + 1.0) if with_hook else None
    out = train(fed, theta=theta, trainable=mask, velocity=velocity, gradient=hook)
    frozen = ~mask.expand(4, -1)[:, :d]
    assert torch.equal(out.theta[:, :d][frozen].view(torch.int32), theta[:, :d][frozen].view(torch.int32))
    assert (out.theta[:, :d] != theta[:, :d])[~frozen].float().mean() > 0.8


def test_a_gradient_that_is_not_a_number_does_not_reach_a_frozen_entry():
    fed = federation()
    mask = coin(fed.num_params)
    out = train(fed, trainable=mask, gradient=lambda g, theta_k, s: torch.where(mask, g, torch.nan))
    assert out.theta.isfinite().all()


@pytest.mark.parametrize("setting", [{}, {"momentum": 0.9, "weight_decay": 0.1}], ids=["plain", "momentum and decay"])
def test_a_mask_of_whole_tensors_is_an_optimizer_with_those_parameters(setting):
    """The head alone: FedRep's first half."""
    model = cnn(bn=True)
    fed = federation(model, **IMAGES, **setting)
    head = fed.layout.mask(fed.layout.in_head)
    out = train(fed, [0], trainable=head, epochs=2)
    want, _ = plain_sgd(fed, model, fed.theta0, 0, 0, lr=0.1, epochs=2, only=("head.weight", "head.bias"), **setting)
    torch.testing.assert_close(out.theta[0], want, rtol=1e-6, atol=1e-7)


def test_a_mask_inside_tensors_masks_the_gradient():
    fed = federation(dtype=F64)
    mask, one = coin(fed.num_params), torch.tensor([1])
    theta = fed.theta0.clone()
    for batch in fed.batches(one, 0):
        theta -= 0.1 * torch.where(mask, fed.grad(theta[None], batch).theta[0], 0.0)
    torch.testing.assert_close(train(fed, [1], trainable=mask).theta[0], theta, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("layer", ["head", "fc1"])
def test_leaving_out_gradient_work_changes_no_bit(layer):
    """With a gradient hook the whole gradient is computed, without one only what is trainable."""
    fed = federation(mlp(bn=True), momentum=0.9, weight_decay=0.1)
    mask = fed.layout.mask(lambda f: f.layer == layer)
    start = torch.zeros(4, fed.num_params)
    lean = train(fed, trainable=mask, velocity=start, epochs=2)
    whole = train(fed, trainable=mask, velocity=start, epochs=2, gradient=lambda g, theta_k, s: g)
    assert same_bits((lean.theta, lean.loss), (whole.theta, whole.loss))
    assert same_bits(lean.velocity, whole.velocity)


def test_nothing_trainable_moves_only_the_statistics():
    """Statistics are updated as in plain forward passes; the loss is that of the unchanged model."""
    model = mlp(bn=True)
    fed = federation(model, dtype=F64, weight_decay=0.1, momentum=0.9)
    out = train(fed, [0], trainable=torch.zeros(fed.num_params, dtype=torch.bool))
    want, losses = plain_sgd(fed, model, fed.theta0, 0, 0, lr=0.0)
    d = fed.num_params
    assert torch.equal(out.theta[0, :d], fed.theta0[:d])
    torch.testing.assert_close(out.theta[0, d:], want[d:])
    assert not torch.equal(out.theta[0, d:], fed.theta0[d:])
    assert out.loss.item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_nothing_trainable_still_reports_the_loss_that_was_asked_for():
    fed = federation()
    frozen = torch.zeros(fed.num_params, dtype=torch.bool)
    out = train(fed, [0], trainable=frozen, loss=lambda output: output.logits.sum() * 0 + 42.0)
    assert out.loss.item() == 42.0


def test_which_epochs():
    """One call for two epochs, or a call for each: the same batches."""
    fed = federation(mlp(bn=True))
    both = train(fed, epochs=2)
    first = train(fed, epochs=range(1))
    second = train(fed, theta=first.theta, epochs=range(1, 2))
    assert torch.equal(second.theta, both.theta)
    assert not torch.equal(train(fed, theta=first.theta, epochs=1).theta, both.theta)
    assert fed.num_steps(0, range(3, 5)) == 6
    batches = [b.index.tolist() for b in fed.batches(torch.tensor([0]), 0, epochs=2)]
    assert [b.index.tolist() for b in fed.batches(torch.tensor([0]), 0, epochs=range(1, 2))] == batches[3:]


def test_no_epochs_change_nothing():
    fed = federation(mlp(bn=True), momentum=0.9)
    theta = some_rows(fed, everyone(fed))
    out = train(fed, theta=theta, epochs=0)
    assert torch.equal(out.theta, theta)
    assert out.loss.isnan().all()
    assert out.steps.tolist() == [0] * 4


# ---- batch norm -----------------------------------------------------------------------------------------------------


def test_statistics_belong_to_the_row_and_take_no_gradient_step():
    fed = federation(mlp(bn=True), weight_decay=0.5)
    d, theta = fed.num_params, some_rows(fed, torch.arange(2))
    theta[1, :d] = theta[0, :d]
    twice = train(fed, [0, 0], theta=theta).theta
    assert torch.equal(twice[0, :d], twice[1, :d])  # in training, batches are normalised by themselves
    assert not torch.equal(twice[0, d:], twice[1, d:])
    alone = train(fed, [0], theta=theta[1:]).theta
    assert torch.equal(twice[1], alone[0])
    n = len(list(fed.batches(torch.tensor([0]), 0)))
    torch.testing.assert_close(twice[0, d:] - twice[1, d:], 0.9**n * (theta[0, d:] - theta[1, d:]))


def test_statistics_move_where_every_parameter_is_frozen_or_the_tail_is_masked():
    fed = federation(mlp(bn=True))
    d = fed.num_params
    only_tail = torch.zeros(fed.num_entries, dtype=torch.bool)
    for mask in (only_tail, ~only_tail, torch.cat([~only_tail[:d], only_tail[d:]])):
        out = train(fed, trainable=mask).theta
        assert (out[:, d:] != fed.theta0[d:]).all()


def test_eval_mode_freezes_statistics_and_uses_them():
    model = mlp(bn=True)
    fed = federation(model, dtype=F64)
    theta = some_rows(fed, torch.arange(1))
    out = train(fed, [0], theta=theta, norm_mode="eval").theta[0]
    plain = module_of(fed, model, theta[0]).eval()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for batch in fed.batches(torch.tensor([0]), 0):
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(batch.x[0]), batch.y[0]).backward()
        optimizer.step()
    torch.testing.assert_close(out, fed.layout.flatten(dict(plain.state_dict())), rtol=1e-6, atol=1e-7)
    assert torch.equal(out[fed.num_params :], theta[0, fed.num_params :])
    again = train(fed, [0], theta=theta).theta[0]
    assert not torch.equal(again[fed.num_params :], theta[0, fed.num_params :])


@pytest.mark.parametrize(("bn", "steps"), [(True, [2, 2, 3, 0]), (False, [3, 2, 3, 1])])
def test_a_last_batch_of_one_sample_is_left_out_only_where_batch_norm_cannot_use_it(bn, steps):
    fed = federation(mlp(bn), sizes=(9, 8, 10, 1))
    out = train(fed)
    assert out.steps.tolist() == steps
    assert [fed.num_steps(k) for k in range(4)] == steps
    assert [len(list(fed.batches(torch.tensor([k]), 0))) for k in range(4)] == steps
    assert out.theta.isfinite().all()
    assert out.loss.isnan().tolist() == [s == 0 for s in steps]


def test_batch_norm_without_statistics_never_sees_one_sample_either():
    layers = {"fc1": nn.Linear(6, 5), "bn1": nn.BatchNorm1d(5, track_running_stats=False)}
    model = nn.Sequential(OrderedDict(layers | {"relu1": nn.ReLU(), "head": nn.Linear(5, 3)}))
    assert train(federation(model, sizes=(9, 8))).steps.tolist() == [2, 2]


# ---- rates, momentum ------------------------------------------------------------------------------------------------


def test_a_rate_for_each_row():
    fed = federation()
    rates = torch.tensor([0.0, 0.05, 0.1, 0.2])
    out = train(fed, lr=rates).theta
    assert torch.equal(out[0], fed.theta0)
    for k in range(1, 4):
        assert torch.equal(out[k], train(fed, [k], lr=rates[k].item()).theta[0])


@pytest.mark.parametrize("base", [None, 0.2])
def test_the_schedule_follows_the_round_in_the_key(base):
    late = {"milestones": (0.5,), "decay": 0.1}
    fed, flat = federation(rounds=4, dtype=F64, **late), federation(rounds=4, dtype=F64)
    assert [fed.lr(t, base) for t in range(4)] == pytest.approx([x * (base or 0.1) for x in (1, 1, 0.1, 0.1)])
    for key, factor in ((1, 1.0), (2, 0.1), ((3, "second"), 0.1)):
        got = train(fed, key=key, lr=base).theta
        torch.testing.assert_close(got, train(flat, key=key, lr=factor * (base or 0.1)).theta)


def test_velocity_goes_in_and_comes_out():
    """With one batch per epoch, two epochs in one call equal two calls with the velocity passed on."""
    fed = federation(dtype=F64, momentum=0.9, batch_size=100)
    rest = torch.zeros(4, fed.num_params, dtype=F64)
    both = train(fed, velocity=rest, epochs=2)
    first = train(fed, velocity=rest)
    second = train(fed, theta=first.theta, velocity=first.velocity)
    torch.testing.assert_close(second.theta, both.theta)
    torch.testing.assert_close(second.velocity, both.velocity)
    torch.testing.assert_close(train(fed, epochs=2).theta, both.theta)
    assert not torch.allclose(train(fed, theta=first.theta).theta, both.theta)
    assert train(fed).velocity is None


def test_velocity_is_what_torch_calls_the_momentum_buffer():
    model = mlp()
    fed = federation(model, dtype=F64, momentum=0.9, weight_decay=0.1)
    plain = module_of(fed, model, fed.theta0)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for batch in fed.batches(torch.tensor([0]), 0):
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(batch.x[0]), batch.y[0]).backward()
        optimizer.step()
    want = torch.cat([optimizer.state[p]["momentum_buffer"].reshape(-1) for p in plain.parameters()])
    out = train(fed, [0], velocity=torch.zeros(1, fed.num_params, dtype=F64))
    torch.testing.assert_close(out.velocity[0], want, rtol=1e-6, atol=1e-8)


# ---- random addresses -----------------------------------------------------------------------------------------------


def test_every_epoch_uses_all_samples_in_a_new_order():
    fed = federation(sizes=(10,))
    one = torch.tensor([0])
    x, y = fed.splits["train"].client(0)
    found = list(fed.batches(one, 0, epochs=3))
    assert [b.x.shape for b in found] == [(1, 4, 6), (1, 4, 6), (1, 2, 6)] * 3
    epochs = [torch.cat([b.index[0] for b in found[i : i + 3]]) for i in (0, 3, 6)]
    assert all(e.sort().values.tolist() == list(range(10)) for e in epochs)
    assert len({tuple(e.tolist()) for e in epochs}) == 3
    for b in found:
        assert b.clients.tolist() == [0]
        assert torch.equal(b.x[0], x[b.index[0]])
        assert torch.equal(b.y[0], y[b.index[0]])


def test_the_same_key_gives_the_same_batches_and_another_key_others():
    fed = federation()
    first = train(fed, key=(1, "a"))
    assert same_bits(train(fed, key=(1, "a")), first)
    for other in ((1, "b"), (2, "a"), 1, (1, "a", 0)):
        assert not torch.equal(train(fed, key=other).theta, first.theta)
    assert same_bits(train(fed, key=1), train(fed, key=(1,)))
    assert not torch.equal(train(federation(seed=1), key=(1, "a")).theta, first.theta)


@pytest.mark.parametrize("one", [np.int64(1), torch.tensor(1)])
def test_integers_of_any_kind_are_the_same_key(one):
    fed = federation(milestones=(0.3,), rounds=3)
    want = train(fed, key=(1, 7))
    assert same_bits(train(fed, key=(one, one * 7)), want)
    assert same_bits(train(fed, key=one), train(fed, key=1))


def test_neither_the_order_nor_the_number_of_clients_matters():
    fed = federation(mlp(bn=True))
    theta = some_rows(fed, everyone(fed))
    all_rows = train(fed, theta=theta)
    order = torch.tensor([2, 0, 3])
    some = fed.sgd(theta[order], order, key=0)
    assert torch.equal(some.theta, all_rows.theta[order])
    assert same_bits(some.loss, all_rows.loss[order])


def test_a_client_may_take_part_twice():
    """FedEM: several models of one client, each with its own row, on the same batches."""
    fed = federation(mlp(bn=True))
    clients = torch.tensor([1, 1, 0, 1])
    theta = some_rows(fed, clients)
    theta[3] = theta[0]
    out = fed.sgd(theta, clients, key=0).theta
    assert torch.equal(out[0], out[3])
    assert not torch.equal(out[0], out[1])
    for s, k in enumerate(clients.tolist()):
        assert torch.equal(out[s], train(fed, [k], theta=theta[s : s + 1]).theta[0])


# ---- other data -----------------------------------------------------------------------------------------------------


def test_other_data_for_each_row():
    """FedMD and FedAP train on data of other clients."""
    fed = federation(sizes=(12, 12, 12))
    lent = fed.splits["train"].client(2)
    extra = tuple(part.to(like.dtype) for part, like in zip(samples(5, key=50), lent, strict=True))
    out = train(fed, [0, 1, 2], data=[lent, extra, lent])
    assert torch.equal(out.theta[2], train(fed, [2]).theta[0])
    assert out.steps.tolist() == [3, 2, 3]
    assert not torch.equal(out.theta[0], out.theta[2])  # same samples, but each client's own order
    assert not torch.equal(out.theta[0], train(fed, [0]).theta[0])


def test_another_split_by_name():
    parts = [samples(6, key=k) for k in range(2)]
    splits = {name: Split.of(parts) for name in ("train", "test")} | {"val": Split.of(parts[::-1])}
    fed = Federation(mlp(), splits, seed=0, rounds=1, train=Training(batch_size=100))
    lent = [fed.splits["train"].client(1), fed.splits["train"].client(0)]
    assert same_bits(train(fed, data="val"), train(fed, data=lent))
    assert not torch.equal(train(fed, data="val").theta, train(fed).theta)


def test_an_unknown_split_is_refused_by_name():
    with pytest.raises(ValueError, match="no split 'public'; it has train, test"):
        train(federation(), data="public")


def test_the_smallest_batch_that_is_used():
    fed = federation(sizes=(9, 10, 11, 12))
    assert [train(fed, smallest_batch=n).steps.tolist() for n in (1, 2, 3, 4, 5)] == [
        [3, 3, 3, 3],
        [2, 3, 3, 3],
        [2, 2, 3, 3],
        [2, 2, 2, 3],
        [0, 0, 0, 0],
    ]
    assert len(list(fed.batches(torch.tensor([0]), 0, smallest_batch=2))) == 2
