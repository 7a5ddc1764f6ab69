"""Star-PFL: invariants of a whole round, its memory and its uploads."""

from dataclasses import replace

import pytest
import torch

from pfl_core.algorithm import State
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.star_pfl.costs import traffic
from pfl_core.algorithms.star_pfl.method import Collected, StarPFL
from pfl_core.costs import weight_uses
from tests.algorithms.star_pfl.plain import EAGER, SHORT, fed_of, masks_of, steps
from tests.algorithms.two_nets import simplest_and_fullest
from tests.helpers import everyone, leaves, same_bits

F64 = torch.float64


# ---- without freezing it is FedAvg ----------------------------------------------------------------------------------


MOVING = {"momentum": 0.9, "weight_decay": 0.1, "clip_norm": 1.0}


@simplest_and_fullest
@pytest.mark.parametrize(
    ("options", "training"),
    [
        ({"threshold_global": None, "threshold_local": None}, {}),
        ({"threshold_global": 0.0, "threshold_local": 0.0, "threshold_rule": "inclusive"}, MOVING),
        ({"threshold_global": None, "threshold_local": None, "masked_aggregation": "active_weighted"}, {}),
    ],
    ids=["none", "inclusive", "active_weighted"],
)
def test_without_freezing_a_round_is_that_of_fedavg(name, options, training):
    """The clients' training is bitwise equal. The server adds a weighted update: equal up to rounding."""
    fed, plain = fed_of(name, epochs=7, **training), FedAvg(client_weighting="samples")
    for t, (before, after, notes, clients) in enumerate(steps(StarPFL(**options), fed, [[0, 1, 2, 3], [0, 2]])):
        clients = torch.tensor(clients)
        want = fed.sgd(fed.broadcast(before.shared, clients), clients, key=t)
        expected, _ = plain.round(fed, State(shared=before.shared), clients, t)
        assert same_bits(notes["trained"], want.theta)
        torch.testing.assert_close(notes["train_loss"], want.loss)
        assert notes["upload"].tolist() == [fed.num_params] * len(clients)
        torch.testing.assert_close(after.shared, expected.shared, rtol=1e-5, atol=1e-6)
        assert same_bits(after.shared[fed.num_params :], expected.shared[fed.num_params :])


# ---- frozen entries, uploads and windows ----------------------------------------------------------------------------


@simplest_and_fullest
@pytest.mark.parametrize("training", [{}, {"momentum": 0.9, "weight_decay": 0.1}], ids=str)
def test_frozen_entries_are_bitwise_unchanged(name, training):
    fed, d, held = fed_of(name, **training), fed_of(name).num_params, [0, 0]
    algorithm = StarPFL(**EAGER, **SHORT)
    for before, after, notes, clients in steps(algorithm, fed):
        server, client = masks_of(algorithm, fed, before)
        for row, k in zip(notes["trained"], clients, strict=True):
            frozen = ~client[k]
            assert torch.equal(row[:d][frozen], before.shared[:d][frozen])
            assert (row[:d] != before.shared[:d])[client[k]].any()
            held[1] += int(frozen.sum())
        assert torch.equal(after.shared[:d][~server], before.shared[:d][~server])
        held[0] += int((~server).sum())
    assert min(held) > 20


@pytest.mark.parametrize("options", [{}, {"zero_update_policy": "skip"}, {"stability_measure": "ema"}], ids=str)
def test_records_of_frozen_entries_stay_as_they_are(options):
    """On the server too. With one local epoch and two records, a client's window is kept between rounds."""
    algorithm, fed, count = StarPFL(**EAGER, **SHORT, **options), fed_of(epochs=1), 0
    for before, after, _, clients in steps(algorithm, fed):
        server, client = masks_of(algorithm, fed, before)
        pairs = [(before.window, after.window, server)]
        pairs += [(before.windows[k], after.windows[k], client[k]) for k in clients]
        for old, new, active in pairs:
            assert torch.equal(old.values[:, ~active], new.values[:, ~active])
            assert torch.equal(old.slot[~active], new.slot[~active])
            assert torch.equal(old.count[~active], new.count[~active])
            count += int((~active).sum())
    assert count > 50


@simplest_and_fullest
def test_notes_of_uploads_and_active_shares(name):
    fed, algorithm = fed_of(name), StarPFL(**EAGER, **SHORT)
    uses, short = weight_uses(fed, fed.theta0), 0
    for before, _, notes, clients in steps(algorithm, fed):
        server, client = masks_of(algorithm, fed, before)
        sent = (server & client[clients]).sum(1)
        assert notes["upload"].tolist() == sent.tolist()
        assert notes["upload_bits"].tolist() == [fed.num_params] * len(clients)
        assert traffic("star_pfl", fed.layout, float(sent[0])).upload_payload == 4 * (
            int(sent[0]) + fed.layout.num_statistics
        )
        assert notes["active_share"].tolist() == pytest.approx((client[clients].double().mean(1)).tolist())
        assert notes["active_share_global"] == pytest.approx(float(server.double().mean()))
        assert notes["weight_macs"].tolist() == (client[clients] * uses).sum(1).tolist()
        short += int((sent < fed.num_params).sum())
    assert short > 5


@simplest_and_fullest
@pytest.mark.parametrize("epochs", [2, 3])
def test_a_window_that_every_round_refills_need_not_be_kept(name, epochs, monkeypatch):
    """Cleared each round, not stored, or kept: bitwise the same, except for the counts of frozen entries."""
    fed, rolling = fed_of(name, epochs=epochs), StarPFL(**EAGER, **SHORT)
    assert not rolling.carries_windows(fed) and not rolling.init(fed, fed.theta0).windows
    runs = [steps(a, fed) for a in (rolling, replace(rolling, history_scope="round"))]
    monkeypatch.setattr(StarPFL, "carries_windows", lambda self, fed: True)
    runs.append(steps(rolling, fed))
    assert runs[2][-1][1].windows
    for each in zip(*runs, strict=True):
        first, cleared, carried = (after for _, after, _, _ in each)
        assert same_bits((first.shared, first.server, first.window), (cleared.shared, cleared.server, cleared.window))
        assert same_bits(replace(carried, windows=()), first)
        for one, other in zip(first.clients, cleared.clients, strict=True):
            assert same_bits(replace(one, count=other.count), other)


# ---- averaging entries that some clients froze ----------------------------------------------------------------------


def collected(weights, deltas, sent):
    out = Collected.empty(torch.zeros(len(deltas[0]), dtype=F64))
    for w, delta, mask in zip(weights, deltas, sent, strict=True):
        out.add_(torch.tensor(delta, dtype=F64), torch.tensor(mask, dtype=torch.bool), w)
    return out


def test_three_ways_to_average_by_hand():
    """p = 1/8, 3/8, 1/2; all send the first entry, clients 0 and 1 the second, none the third (its NaN is ignored).

    zero_fill 1/8 + 6/8 + 8/2 = 39/8 and 1/8 + 6/8 = 7/8; renormalised 39/8 and (7/8) / (1/2); plain 11/3 and 3/2.
    """
    deltas = [[1.0, 1.0, float("nan")], [2.0, 2.0, 9.0], [8.0, 5.0, 9.0]]
    sent = [[1, 1, 0], [1, 1, 0], [1, 0, 0]]
    weighted, plain = collected([1 / 8, 3 / 8, 1 / 2], deltas, sent), collected([1, 1, 1], deltas, sent)
    assert weighted.total.tolist() == [39 / 8, 7 / 8, 0]
    assert weighted.mean().tolist() == pytest.approx([39 / 8, 7 / 4, 0])
    assert plain.mean().tolist() == pytest.approx([11 / 3, 3 / 2, 0])


# ---- what a round does not change, and its memory -------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"history_len_local": 5}], ids=["forgotten", "carried"])
def test_an_absent_client_keeps_everything(options):
    fed, algorithm = fed_of(), StarPFL(**EAGER, **{**SHORT, **options})
    for before, after, _, clients in steps(algorithm, fed):
        for k in set(range(4)) - set(clients):
            assert after.clients[k] is before.clients[k]
            assert not after.windows or after.windows[k] is before.windows[k]


def test_scored_after_local_training_and_before_it():
    fed, algorithm = fed_of(), StarPFL()
    state = algorithm.init(fed, fed.theta0)
    assert algorithm.reported == "after_local_update"
    assert torch.equal(algorithm.evaluation_models(fed, state, everyone(fed), 0), fed.theta0.expand(4, -1))


@pytest.mark.parametrize(
    ("options", "client"), [({}, 11), ({"history_len_local": 3}, 11 + 13), ({"stability_measure": "ema"}, 11 + 9)]
)
def test_memory_of_a_client_and_of_the_server(options, client):
    """Bytes per parameter in float32, as stated in the docstring of the module."""
    fed = fed_of(epochs=2)
    algorithm = StarPFL(**{**SHORT, **options})
    ((_, state, _, _),) = steps(algorithm, fed, [[0, 1, 2, 3]])

    def size(value):
        tensors = {x.data_ptr(): x for _, x in leaves(value) if isinstance(x, torch.Tensor)}
        return sum(x.untyped_storage().nbytes() for x in tensors.values()) / fed.num_params

    assert size((state.clients[1], state.windows[1:2])) == client
    assert size((state.server, state.window)) == 11 + 1 + 4 * (3 if not options.get("stability_measure") else 2)
