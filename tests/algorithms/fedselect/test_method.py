"""FedSelect, CVPR version: rounds by hand, plain PyTorch references, and invariants."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pfl_core import Schedule, State
from pfl_core.algorithms.fedselect.method import FedSelect, num_new
from pfl_core.algorithms.local import Local
from pfl_core.engine import rounds
from pfl_core.federation import federation as federation_module
from pfl_core.seeding import generator
from tests.helpers import (
    cnn,
    coin,
    everyone,
    federation,
    linear_federation,
    mlp,
    module_of,
    same_bits,
    samples,
    some_rows,
    steps,
)

F64 = torch.float64
IMAGES = {"shape": (1, 4, 4)}


def with_masks(algorithm, fed, masks, local=None):
    """A state in which every client has the given personal entries [N, d]; statistics are local."""
    state = algorithm.init(fed, fed.theta0)
    tail = state.personal[:, fed.num_params :]
    return replace(state, personal=torch.cat([masks, tail], dim=1), local=state.local if local is None else local)


def plain_local_alt(fed, model, theta_k, personal, k, t, *, epochs=1, lr=(0.1, 0.1)):
    """LocalAlt with plain modules: an epoch over the personal entries, then the shared ones on the same batches."""
    plain = module_of(fed, model, theta_k)
    params = list(plain.parameters())
    batches = list(fed.batches(torch.tensor([k]), t, epochs=epochs))
    a_pass = len(batches) // epochs
    for epoch in range(epochs):
        for part, rate in ((personal, lr[0]), (~personal, lr[1])):
            for batch in batches[epoch * a_pass : (epoch + 1) * a_pass]:
                gradients = torch.autograd.grad(cross_entropy(plain(batch.x[0]), batch.y[0]), params)
                flat = nn.utils.parameters_to_vector(params).detach()
                flat -= rate * torch.where(part[: len(flat)], torch.cat([g.flatten() for g in gradients]), 0.0)
                nn.utils.vector_to_parameters(flat, params)
    return fed.layout.flatten(dict(plain.state_dict()))


# ---- by hand --------------------------------------------------------------------------------------------------------


def test_two_rounds_by_hand():
    """Logits W x, W = (w0, w1; w2, w3) = 0, rate 1, one sample a client, p = 1/4, α = 1/2.

    Client 0: x = (2, 1), y = 0. Client 1: x = (1, 3), y = 1. The gradient of the row of class c is (p_c - [c = y]) x.

    Round 0, all shared, p_c = 1/2: A = (1, .5; -1, -.5) and B = (-.5, -1.5; .5, 1.5), mean (.25, -.5; -.25, .5).
    Largest change: |A| has w0 and w2 at 1, the lower index is w0; |B| has w1 and w3 at 1.5, so w1.

    Round 1, client 0: difference of logits z = (.5, -1).(2, 1) = 0, so p = 1/2. Personal pass: w0 += 2/2 -> 1.25.
    Shared pass: z = 1.5 * 2 - 1 = 2, wrong class q = 1 / (1 + e^2): (1.25, -.5 + q; -.25 - 2 q, .5 - q).
    Client 1: z = (.5, -1).(1, 3) = -2.5, wrong class r = 1 / (1 + e^2.5). Personal pass: w1 -= 3 r.
    Shared pass: z = .5 + 3 (-1 - 3 r) = -2.5 - 9 r, s = 1 / (1 + e^(2.5 + 9 r)):
    (.25 - s, -.5 - 3 r; -.25 + s, .5 + 3 s).
    Means: w0 of client 1 alone, w1 of client 0 alone, w2 and w3 of both.
    Largest change among the shared: client 0 has q, 2 q, q at w1, w2, w3: w2. Client 1 has s, s, 3 s at w0, w2, w3: w3.
    """
    fed = linear_federation([([[2, 1]], [0]), ([[1, 3]], [1])])
    (_, first, notes), (_, second, later), (_, third, _) = steps(FedSelect(p=0.25, alpha=0.5), fed, 3)
    mean = torch.tensor([0.25, -0.5, -0.25, 0.5], dtype=F64)
    torch.testing.assert_close(first.shared, mean)
    torch.testing.assert_close(first.local, mean.repeat(2, 1))
    assert first.personal.int().tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    assert not first.in_force.any()
    assert notes["upload"].tolist() == [4, 4]
    assert notes["personal_share"].tolist() == [0.25, 0.25]

    def wrong(margin):
        return 1 / (1 + torch.as_tensor(margin, dtype=F64).exp())

    q, r = wrong(2.0), wrong(2.5)
    s = wrong(2.5 + 9 * r)
    trained = torch.stack(
        [
            torch.stack([torch.tensor(1.25, dtype=F64), -0.5 + q, -0.25 - 2 * q, 0.5 - q]),
            torch.stack([0.25 - s, -0.5 - 3 * r, -0.25 + s, 0.5 + 3 * s]),
        ]
    )
    torch.testing.assert_close(later["trained"], trained)
    means = trained.mean(0)
    want = torch.stack(
        [
            torch.stack([trained[0, 0], trained[0, 1], *means[2:]]),
            torch.stack([trained[1, 0], trained[1, 1], *means[2:]]),
        ]
    )
    torch.testing.assert_close(second.local, want)
    torch.testing.assert_close(second.shared, torch.stack([trained[1, 0], trained[0, 1], *means[2:]]))
    assert second.personal.int().tolist() == [[1, 0, 1, 0], [0, 1, 0, 1]]
    assert second.in_force.int().tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    assert later["upload"].tolist() == [3, 3]
    torch.testing.assert_close(later["train_loss"].double(), torch.stack([-(1 - q).log(), -(1 - s).log()]))
    assert torch.equal(third.personal, second.personal)  # the limit is reached


# ---- invariants: growth of masks -----------------------------------------------------------------


GROWING = [
    {"p": 0.1, "alpha": 0.5},
    {"p": 0.25, "alpha": 0.8},
    {"p": 0.5, "alpha": 1.0},
    {"p": 0.3, "alpha": 0.6, "limit_policy": "cap"},
]


@pytest.mark.parametrize("settings", GROWING, ids=str)
def test_growth_of_masks(settings):
    """Of the d trainable entries alone: statistics are neither counted nor ranked."""
    fed, algorithm = federation(mlp(bn=True)), FedSelect(**settings)
    d, p, alpha = fed.num_params, algorithm.p, algorithm.alpha
    limit, stopped = int(alpha * d + 1e-9), False
    for before, after, notes in steps(algorithm, fed, 10):
        old, new = before.personal[:, :d], after.personal[:, :d]
        assert (old <= new).all()  # masks only grow
        change = (notes["trained"] - before.local).abs()[:, :d]
        want = num_new(int(old[0].sum()), d, algorithm)
        for k in range(4):  # by the exact count, largest changes first
            picked, left = new[k] & ~old[k], ~new[k]
            assert picked.sum() == want
            assert want in (0, d - old[k].sum()) or change[k, picked].min() >= change[k, left].max()
        share = notes["personal_share"]  # exceeds the limit by at most one update
        assert torch.equal(share, new.sum(1) / d)
        assert (
            (share <= alpha).all()
            if algorithm.limit_policy == "cap"
            else (share < alpha + p * (1 - alpha) + 1 / d).all()
        )
        reached = new.sum(1) >= limit  # then all clients stop growing
        assert reached.all() or not reached.any()
        assert not stopped or torch.equal(old, new)
        stopped = bool(reached.all())
    assert stopped


# ---- invariants: aggregation ----------------------------------------------------------------------------------------


def test_shared_entries_are_equal_and_new_personal_entries_start_from_the_mean():
    fed = federation(epochs=2)
    grew = 0
    for before, after, notes in steps(FedSelect(p=0.2, alpha=0.9), fed, 6):
        shares = ~before.personal
        assert torch.equal(after.in_force, before.personal)
        for k in range(4):
            assert torch.equal(after.local[k][shares[k]], after.shared[shares[k]])
            assert torch.equal(after.local[k][~shares[k]], notes["trained"][k][~shares[k]])
            chosen = after.personal[k] & ~before.personal[k]
            assert torch.equal(after.local[k][chosen], after.shared[chosen])
            grew += int(chosen.sum())
        count = shares.sum(0)
        for j in (count > 0).nonzero().flatten().tolist():
            torch.testing.assert_close(after.shared[j], notes["trained"][shares[:, j], j].mean())
    assert grew > 100


def test_entries_shared_by_one_client_or_by_none():
    fed, fixed = federation(), FedSelect(p=0.0)
    d = fed.num_params
    who = torch.arange(d) % 3  # 0: no client shares the entry, 1: one client does, 2: all do
    masks = torch.ones(4, d, dtype=torch.bool)
    masks[:, who == 2] = False
    masks[torch.arange(d)[who == 1] % 4, torch.arange(d)[who == 1]] = False
    state = with_masks(fixed, fed, masks, some_rows(fed, everyone(fed)))
    new, notes = fixed.round(fed, state, everyone(fed), 1)
    one_or_none = who < 2
    assert torch.equal(new.local[:, one_or_none], notes["trained"][:, one_or_none])
    assert new.local.isfinite().all()
    assert torch.equal(new.shared[who == 0], state.shared[who == 0])
    assert not (new.local[:, who == 0] == 0).any()


def test_nan_in_a_personal_entry_does_not_spread():
    """A NaN in a personal entry stays with its client; entries that no client shares cause no division by 0."""
    fed, fixed = federation(), FedSelect(p=0.0)
    masks = torch.ones(4, fed.num_params, dtype=torch.bool)
    masks[1:] = False
    local = fed.theta0.repeat(4, 1)
    local[0, 7] = torch.nan
    new, _ = fixed.round(fed, with_masks(fixed, fed, masks, local), everyone(fed), 1)
    assert new.local[0].isnan().any()
    assert new.local[1:].isfinite().all()
    assert new.shared.isfinite().all()


@pytest.mark.parametrize("alpha", [0.05, 1.0])
@pytest.mark.parametrize("lr_personal", [None, 0.03])
def test_p_1_is_local_training_from_the_first_mean(alpha, lr_personal):
    fed = federation(epochs=2, rounds=4)
    taken = steps(FedSelect(p=1.0, alpha=alpha, lr_personal=lr_personal), fed, 4)
    first = taken[0][1]
    assert first.personal.all()
    slow = federation(epochs=2, rounds=4, lr=lr_personal or 0.1)
    state = State(local=first.local)
    for t, (_, after, notes) in enumerate(taken[1:], start=1):
        state, _ = Local().round(slow, state, everyone(fed), t)
        assert torch.equal(after.local, state.local)
        assert torch.equal(after.shared, first.shared)
        assert notes["upload"].tolist() == [0] * 4
        assert notes["passes"].tolist() == [2] * 4  # the shared pass is empty


# ---- invariants: LocalAlt -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_learning_rate_of_0_freezes_one_part_only(epochs):
    fed = federation(epochs=epochs)
    clients = everyone(fed)
    theta, personal = some_rows(fed, clients), coin(4, fed.num_entries)
    still, _ = FedSelect(lr_shared=0.0).local_alt(fed, theta, personal, clients, 0)
    assert torch.equal(still[~personal], theta[~personal])
    assert (still[personal] != theta[personal]).float().mean() > 0.9
    still, _ = FedSelect(lr_personal=0.0).local_alt(fed, theta, personal, clients, 0)
    assert torch.equal(still[personal], theta[personal])
    assert (still[~personal] != theta[~personal]).float().mean() > 0.9


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("bn", [False, True], ids=["no norm", "batch norm"])
def test_local_alt_against_plain_modules(epochs, bn):
    model = cnn(bn)
    fed = federation(model, **IMAGES, dtype=F64, epochs=epochs)
    clients = torch.tensor([2, 0])
    theta, personal = some_rows(fed, clients), coin(2, fed.num_entries)
    got, _ = FedSelect(lr_personal=0.05, lr_shared=0.2).local_alt(fed, theta, personal, clients, 4)
    for s, k in enumerate((2, 0)):
        want = plain_local_alt(fed, model, theta[s], personal[s], k, 4, epochs=epochs, lr=(0.05, 0.2))
        torch.testing.assert_close(got[s], want, rtol=1e-6, atol=1e-7)


# ---- invariants: clients, streams, statistics, counts ---------------------------------------------------------------


def test_the_upload_is_the_shared_part_and_never_grows():
    fed = federation()
    last = [fed.num_params] * 4
    for before, after, notes in steps(FedSelect(p=0.2, alpha=0.5), fed, 6):
        assert notes["upload"].tolist() == (fed.num_params - before.personal.sum(1)).tolist()
        assert all(now <= then for now, then in zip(notes["upload"].tolist(), last, strict=True))
        grew = (after.personal.sum(1) > before.personal.sum(1)).tolist()
        assert notes["upload_bits"].tolist() == [fed.num_params * g for g in grew]
        last = notes["upload"].tolist()
    assert not any(grew)


@pytest.mark.parametrize("eligible", ["all", "weights_only"])
def test_with_per_tensor_scope_each_tensor_grows_by_its_size(eligible):
    fed = federation(cnn(bn=True), **IMAGES)
    algorithm = FedSelect(p=0.25, alpha=0.6, selection_scope="per_tensor", eligible_params=eligible)
    for before, after, notes in steps(algorithm, fed, 7):
        change = (notes["trained"] - before.local).abs()
        for f in fed.layout.params:
            at = slice(f.start, f.stop)
            size = f.stop - f.start
            for old, new, moved in zip(before.personal[:, at], after.personal[:, at], change[:, at], strict=True):
                may = eligible == "all" or "weight" in f.name
                want = num_new(int(old.sum()), size, algorithm) if may else 0
                picked = new & ~old
                assert picked.sum() == want
                assert new.sum() / size < 0.6 + 0.25 * 0.4 + 1 / size
                assert want in (0, size - old.sum()) or moved[picked].min() >= moved[~new].max()
    biases = fed.layout.mask(lambda f: "weight" not in f.name)[: fed.num_params]
    assert after.personal[:, : fed.num_params][:, biases].any() == (eligible == "all")


def test_statistics_stay_with_their_client():
    fed = federation(cnn(bn=True), **IMAGES)
    d = fed.num_params
    for before, after, notes in steps(FedSelect(p=0.2, alpha=0.6), fed, 3):
        assert torch.equal(after.local[:, d:], notes["trained"][:, d:])
        assert torch.equal(after.shared[d:], fed.theta0[d:])
        assert (before.personal[:, d:] & after.personal[:, d:]).all()
        assert len({tuple(row.tolist()) for row in after.local[:, d:]}) == 4
        assert (notes["upload"] <= d).all()


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize(
    "fields", [{}, {"change_reference": "last_mask_update"}, {"batch_order": "reshuffle_each_pass"}]
)
def test_rows_are_written_in_place_under_the_engine_with_the_same_bits(fields, share):
    """The engine needs no trained rows after their evaluation. States that others hold stay as they are."""
    fed, algorithm = federation(cnn(), **IMAGES, rounds=3), FedSelect(p=0.25, **fields)
    schedule = Schedule(3, participation=share)
    by_hand = algorithm.init(fed, fed.theta0)
    held = [(by_hand, by_hand.local.clone())]
    for snapshot in rounds(algorithm, fed, schedule, by_hand):
        clients = schedule.clients(fed.num_clients, fed.seed, snapshot.t)
        by_hand, notes = algorithm.round(fed, by_hand, clients, snapshot.t)
        assert same_bits(by_hand, snapshot.state)
        scores = fed.evaluate(notes["trained"], clients)
        assert [snapshot.notes["correct_trained"][k] for k in clients] == scores.correct.tolist()
        held.append((snapshot.state, snapshot.state.local.clone()))
    assert all(torch.equal(state.local, copy) for state, copy in held)


def test_a_subclass_that_predicts_otherwise_is_scored_with_the_new_state():
    class Rule(FedSelect):
        def predict(self, fed, state, k, theta_k, x):
            seen.append(state)
            return fed.logits(theta_k, x)

    seen, fed = [], federation(cnn(), **IMAGES, rounds=1)
    (snapshot,) = rounds(Rule(), fed, Schedule(1), Rule().init(fed, fed.theta0))
    assert all(state is snapshot.state for state in seen) and snapshot.notes["correct_trained"]


def test_renumbering_the_clients_matters_only_through_rounding():
    """Full batches, so that a client's number does not decide its batches."""
    order = [2, 0, 3, 1]
    parts = [samples(n, key=k) for k, n in enumerate((12, 9, 14, 10))]
    split = federation_module.Split.of

    def final(parts):
        data = {"train": split(parts), "test": split(parts)}
        train = federation().train
        fed = federation_module.Federation(
            mlp(), data, seed=0, rounds=4, train=replace(train, batch_size=100), dtype=F64
        )
        return steps(FedSelect(p=0.2, alpha=0.6), fed, 4)[-1][1]

    one, other = final(parts), final([parts[k] for k in order])
    torch.testing.assert_close(one.local[order], other.local, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(one.shared, other.shared, rtol=1e-6, atol=1e-12)
    assert torch.equal(one.personal[order], other.personal)


@pytest.mark.parametrize(("policy", "alone"), [("local", True), ("average", False)])
def test_statistics_do_not_depend_on_other_clients_data(policy, alone):
    """A round in which client 0 has other images: the statistics of other clients are bitwise equal."""
    fed = federation(cnn(bn=True), **IMAGES)
    train = fed.splits["train"]
    x = train.x.clone()
    x[: train.bounds[1]] += 1.0
    splits = {**fed.splits, "train": replace(train, x=x)}
    changed = federation_module.Federation(cnn(bn=True), splits, seed=0, rounds=fed.rounds, train=fed.train)
    rule, d = FedSelect(p=0.2, alpha=0.6, buffer_policy=policy), fed.num_params
    ((_, state, _),) = steps(rule, fed, 1)
    (one, _), (other, _) = (rule.round(each, state, everyone(each), 1) for each in (fed, changed))
    assert torch.equal(one.local[1:, d:], other.local[1:, d:]) == alone
    assert not torch.equal(one.local[0, d:], other.local[0, d:])
    assert not torch.equal(one.local[1:, :d], other.local[1:, :d])  # the mean does bring them what client 0 learned


def test_clients_with_equal_data_and_streams_stay_equal(monkeypatch):
    """Two clients with the same data and the same random streams."""
    monkeypatch.setattr(federation_module, "generator", lambda seed, *key: generator(seed, *key[:-2], key[-1]))
    twin, third = samples(12, (1, 4, 4), key=0), samples(9, (1, 4, 4), key=1)
    data = federation_module.Split.of([twin, third, twin])
    training = replace(federation().train, epochs=2)
    fed = federation_module.Federation(cnn(bn=True), {"train": data, "test": data}, seed=0, rounds=5, train=training)
    for _, after, notes in steps(FedSelect(p=0.2, alpha=0.7), fed, 5):
        assert same_bits(after.local[0], after.local[2])
        assert same_bits(after.personal[0], after.personal[2])
        assert not torch.equal(after.local[0], after.local[1])
        assert same_bits(notes["trained"][0], notes["trained"][2])
