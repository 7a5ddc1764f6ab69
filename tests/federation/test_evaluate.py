"""Outputs and evaluation: per sample, per client, in chunks; nothing is modified."""

import pytest
import torch

from pfl_core.federation import Federation, Scores, Split, Trained
from pfl_core.federation import federation as federation_module
from pfl_core.ops import mean
from tests.helpers import cnn, everyone, federation, mlp, module_of, same_bits, samples, some_rows

F64 = torch.float64


def plain_outputs(model, fed, theta_k, k, split="test", train=False):
    """(features, logits) of a plain module on one client's split."""
    plain, seen = module_of(fed, model, theta_k).train(train), []
    plain.head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        logits = plain(fed.splits[split].client(k)[0])
    return seen[0], logits


# ---- forward --------------------------------------------------------------------------------------------------------


def test_forward_gives_each_rows_outputs_on_its_clients_samples():
    model = cnn(bn=True)
    fed = federation(model, shape=(1, 4, 4), dtype=F64, sizes=(12, 9, 14))
    clients = torch.tensor([2, 0])
    theta = some_rows(fed, clients)
    for split in ("train", "test"):
        for s, k in enumerate(clients.tolist()):
            features, logits = plain_outputs(model, fed, theta[s], k, split)
            torch.testing.assert_close(fed.forward(theta, clients, split)[s], logits)
            torch.testing.assert_close(fed.forward(theta, clients, split, layer="features")[s], features)
            plain = module_of(fed, model, theta[s]).eval()
            conv = plain.conv1(fed.splits[split].client(k)[0])
            torch.testing.assert_close(fed.forward(theta, clients, split, layer="conv1")[s], conv)
            torch.testing.assert_close(fed.forward(theta, clients, split, layer="relu1")[s], plain.bn1(conv).relu())


def test_forward_in_training_mode_uses_the_batchs_statistics_and_leaves_the_rows():
    model = mlp(bn=True)
    fed = federation(model, dtype=F64)
    theta = some_rows(fed, everyone(fed))
    kept = theta.clone()
    got = fed.forward(theta, everyone(fed), mode="train")
    assert torch.equal(theta, kept)
    torch.testing.assert_close(got[1], plain_outputs(model, fed, theta[1], 1, train=True)[1])
    assert not torch.allclose(got[1], fed.forward(theta, everyone(fed))[1])


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("n", [256, 257, 600])
def test_forward_takes_any_number_of_samples(n, mode):
    fed = federation(mlp(bn=True), sizes=(4,), test=n)
    assert fed.forward(fed.theta0[None], torch.tensor([0]), mode=mode)[0].shape == (n, 3)


def test_forward_on_samples_that_are_given():
    """FedMD's public data, FedAP's other clients: (x, y) for each row."""
    fed = federation(mlp(bn=True))
    theta, lent = some_rows(fed, torch.arange(2)), fed.splits["test"].client(3)
    given = fed.forward(theta, torch.tensor([0, 1]), [lent, lent])
    own = fed.forward(theta, torch.tensor([3, 3]))
    assert same_bits(given, own)


def test_forward_gives_the_input_of_a_layer():
    fed = federation()
    one = torch.tensor([0])
    assert torch.equal(fed.forward(fed.theta0[None], one, layer="fc1:input")[0], fed.splits["test"].client(0)[0])
    features = fed.forward(fed.theta0[None], one, layer="features")
    assert same_bits(fed.forward(fed.theta0[None], one, layer="head:input"), features)


def test_forward_makes_no_graph_and_leaves_no_hook():
    fed = federation()
    assert not fed.forward(fed.theta0[None], torch.tensor([0]), layer="relu1")[0].requires_grad
    assert not fed.forward(fed.theta0[None], torch.tensor([0]), layer="features")[0].requires_grad
    module = fed.network.relu1
    assert not module._forward_hooks


def test_an_unknown_layer_is_refused_by_name():
    fed = federation()
    with pytest.raises(ValueError, match="no layer 'relu9'.*logits, features or one of fc1, relu1, head"):
        fed.forward(fed.theta0[None], torch.tensor([0]), layer="relu9")


# ---- evaluate -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [[3, 1], [0, 1, 2, 3]])
def test_scores_are_counted_by_client(clients):
    model = mlp(bn=True)
    fed = federation(model)
    clients = torch.tensor(clients)
    theta = some_rows(fed, clients)
    scores = fed.evaluate(theta, clients)
    for s, k in enumerate(clients.tolist()):
        y = fed.labels(k, "test")
        _, logits = plain_outputs(model, fed, theta[s], k)
        assert scores.correct[s] == (logits.argmax(1) == y).sum()
        assert scores.count[s] == 8
        torch.testing.assert_close(scores.loss[s], torch.nn.functional.cross_entropy(logits, y))
    assert 0 < scores.correct.sum() < scores.count.sum()


def test_a_mean_is_over_samples_and_not_over_batches():
    """300 samples, 256 of them in the first pass."""
    model = mlp()
    fed = federation(model, sizes=(4,), test=300, dtype=F64)
    scores = fed.evaluate(fed.theta0[None], torch.tensor([0]))
    _, logits = plain_outputs(model, fed, fed.theta0, 0)
    y = fed.labels(0, "test")
    assert (scores.correct.item(), scores.count.item()) == ((logits.argmax(1) == y).sum(), 300)
    torch.testing.assert_close(scores.loss[0], torch.nn.functional.cross_entropy(logits, y))


@pytest.mark.parametrize("clients", [[0, 1, 2, 3], [1, 2], [2], [3, 1], [0, 2], [1, 1]])
def test_one_model_for_all_is_scored_like_equal_rows(clients):
    fed = federation(mlp(bn=True))
    clients = torch.tensor(clients)
    shared = some_rows(fed, torch.arange(1))[0]
    fast = fed.evaluate(fed.broadcast(shared, clients), clients)
    slow = fed.evaluate(shared.repeat(len(clients), 1), clients)
    assert torch.equal(fast.correct, slow.correct)
    assert torch.equal(fast.count, slow.count)
    torch.testing.assert_close(fast.loss, slow.loss)


def test_clients_of_unequal_size_keep_their_own_scores():
    parts = [samples(n, key=n) for n in (3, 11, 1)]
    fed = Federation(mlp(), {"train": Split.of(parts), "test": Split.of(parts)}, seed=0, rounds=1)
    for theta in (fed.broadcast(fed.theta0, everyone(fed)), fed.theta0.repeat(3, 1)):
        scores = fed.evaluate(theta, everyone(fed))
        assert scores.count.tolist() == [3, 11, 1]
        alone = [fed.evaluate(fed.theta0[None], torch.tensor([k])).correct.item() for k in range(3)]
        assert scores.correct.tolist() == alone


def test_a_custom_prediction():
    fed = federation()
    clients = torch.tensor([2, 0])
    theta, calls = some_rows(fed, clients), []

    def predict(k, theta_k, x):
        calls.append((k, theta_k.clone(), len(x)))
        return torch.nn.functional.one_hot(torch.full((len(x),), k), 3).float()

    scores = fed.evaluate(theta, clients, predict=predict)
    assert [(k, n) for k, _, n in calls] == [(2, 8), (0, 8)]
    assert all(torch.equal(row, theta[s]) for s, (_, row, _) in enumerate(calls))
    assert scores.correct.tolist() == [(fed.labels(k, "test") == k).sum() for k in (2, 0)]


def test_evaluation_modifies_nothing():
    fed = federation(mlp(bn=True))
    theta = some_rows(fed, everyone(fed))
    kept = theta.clone()
    first = fed.evaluate(theta, everyone(fed))
    fed.sgd(theta, everyone(fed), key=0)
    assert same_bits(fed.evaluate(theta, everyone(fed)), first)
    assert torch.equal(theta, kept)


def test_logits_is_one_rows_prediction():
    model = cnn(bn=True)
    fed = federation(model, shape=(1, 4, 4))
    theta = some_rows(fed, torch.arange(1))
    x = fed.splits["test"].client(0)[0]
    torch.testing.assert_close(fed.logits(theta[0], x), plain_outputs(model, fed, theta[0], 0)[1])


# ---- chunks and averages --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_an_average_in_chunks_is_the_average(monkeypatch, weighted):
    """Rows of 53 entries of 4 bytes; a budget of two rows gives chunks of 2, 2, 1."""
    fed = federation(mlp(bn=True), sizes=(12, 9, 14, 10, 7))
    fed.score = lambda theta, chunk, predict: fed.evaluate(theta, chunk, predict=predict)
    clients = torch.tensor([4, 0, 2, 1, 3])
    weight = fed.num_train[clients] if weighted else None
    calls = []

    def local(chunk, rows):
        calls.append(len(chunk))
        assert torch.equal(chunk, clients[rows])
        return fed.sgd(fed.broadcast(fed.theta0, chunk), chunk, key=0)

    whole = fed.average(local, clients, weight)
    monkeypatch.setattr(federation_module, "ROW_BUDGET", 2 * fed.num_entries * 4 + 3)
    pieces = fed.average(local, clients, weight)
    monkeypatch.setattr(federation_module, "ROW_BUDGET", 1)
    singly = fed.average(local, clients, weight)
    assert calls == [5, 2, 2, 1, 1, 1, 1, 1, 1]
    assert same_bits(whole, pieces)
    assert same_bits(whole, singly)
    theta = fed.sgd(fed.broadcast(fed.theta0, clients), clients, key=0)
    assert torch.equal(whole[0], mean(theta.theta, weight))
    assert torch.equal(whole[1]["train_loss"], theta.loss)
    assert same_bits(whole[1]["trained"], fed.evaluate(theta.theta, clients))


def test_trained_rows_are_scored_as_the_method_says():
    fed = federation()
    fed.score = lambda theta, chunk, predict: fed.evaluate(theta, chunk, predict=predict)

    def local(chunk, rows):
        return Trained(fed.broadcast(fed.theta0, chunk), torch.zeros(len(chunk)), torch.zeros(len(chunk)))

    def first_class(k, theta_k, x):
        return torch.tensor([[1.0, 0, 0]]).expand(len(x), -1)

    _, notes = fed.average(local, everyone(fed), predict=first_class)
    assert notes["trained"].correct.tolist() == [(fed.labels(k, "test") == 0).sum() for k in range(4)]


def test_an_average_in_double_precision_is_exact_to_double_precision():
    fed = federation(sizes=(4, 4, 4), dtype=F64)
    rows = torch.tensor([0.1, 0.2, 0.6], dtype=F64)[:, None].repeat(1, fed.num_entries)

    def local(chunk, rows_):
        return Trained(rows[rows_], torch.zeros(len(chunk)), torch.zeros(len(chunk)))

    got, notes = fed.average(local, everyone(fed))
    torch.testing.assert_close(got, rows.mean(0), rtol=1e-14, atol=1e-15)
    assert set(notes) == {"train_loss"}


def test_chunks_cover_the_clients_in_order(monkeypatch):
    fed = federation()
    clients = torch.arange(7)
    assert list(fed.chunks(clients)) == [slice(0, 7)]
    monkeypatch.setattr(federation_module, "ROW_BUDGET", 3 * fed.num_entries * 4)
    assert [clients[rows].tolist() for rows in fed.chunks(clients)] == [[0, 1, 2], [3, 4, 5], [6]]
    monkeypatch.setattr(federation_module, "ROW_BUDGET", 1)
    assert len(list(fed.chunks(clients))) == 7


# ---- records --------------------------------------------------------------------------------------------------------


def test_split_by_client():
    split = Split.of([(torch.zeros(2, 3), torch.tensor([0, 1])), (torch.ones(1, 3), torch.tensor([2]))])
    assert split.bounds == (0, 2, 3)
    assert split.sizes.tolist() == [2, 1]
    x, y = split.client(1)
    assert torch.equal(x, torch.ones(1, 3))
    assert y.tolist() == [2]


def test_scores_join():
    parts = [Scores(torch.tensor([i]), torch.tensor([10 + i]), torch.tensor([i / 2])) for i in range(3)]
    joined = Scores.join(parts)
    assert (joined.correct.tolist(), joined.count.tolist(), joined.loss.tolist()) == (
        [0, 1, 2],
        [10, 11, 12],
        [0, 0.5, 1],
    )
