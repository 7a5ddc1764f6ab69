"""pFedGate's options, readings and controls."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pfl_core import LocalTraining, Schedule, run
from pfl_core.algorithms.pfedgate.adapt import Adapter
from pfl_core.algorithms.pfedgate.gate import activate
from pfl_core.algorithms.pfedgate.local import Trainer, relu_loss, ungated
from pfl_core.algorithms.pfedgate.method import PFedGate
from tests.algorithms.pfedgate.plain import F64, after, fed_of, trained
from tests.helpers import everyone, linear_federation, same_bits


def test_chunks_give_equal_results(one_by_one):
    def last(**options):
        return after(PFedGate(keep_ratio=0.6, **options), fed_of(momentum=0.9), 3)[0]

    whole, dropped = last(), last(last_batch="dropped")
    one_by_one()
    assert same_bits(whole, last())
    torch.testing.assert_close(dropped.shared, last(last_batch="dropped").shared)


def test_momentum_is_kept_by_client_where_there_is_any():
    fed = fed_of(momentum=0.9)
    state, _ = run(PFedGate(), fed, Schedule(3, participation=0.7))
    assert state.velocity.shape == (3, fed.num_params)
    assert after(PFedGate(keep_momentum=False), fed)[0].velocity is None
    assert after(PFedGate(), fed_of())[0].gate_velocity is None


def test_novel_clients_train_only_their_gates():
    fed = fed_of()
    algorithm = PFedGate()
    state, _ = after(algorithm, fed, clients=torch.tensor([0, 1]))
    adapted = algorithm.adapt(fed, state, torch.tensor([2]), 0)
    assert same_bits(adapted.shared, state.shared)
    assert same_bits(adapted.gate[:2], state.gate[:2])
    assert not same_bits(adapted.gate[2], state.gate[2])
    assert same_bits(replace(algorithm, novel_epochs=0).adapt(fed, state, torch.tensor([2]), 0), state)


@pytest.mark.parametrize(
    ("option", "asked"),
    [({"logit_relu": True}, {"loss": relu_loss}), ({"last_batch": "dropped"}, {"smallest_batch": 4})],
    ids=["logit_relu", "last_batch"],
)
def test_novel_clients_train_with_the_methods_options(option, asked):
    fed, new = fed_of("dense", (12, 9, 10)), torch.tensor([2])  # batches of four, four and two
    algorithm = PFedGate(**option)
    state, _ = after(algorithm, fed, clients=torch.tensor([0, 1]))

    def alone(**options):
        trainer, rows = Trainer(Adapter.of(algorithm, fed), fed, state, 0), (state.statistics[new], state.gate[new])
        training = LocalTraining(**{"smallest_batch": 2, **options})
        return trainer.gate_pass(new, rows[0].clone(), rows[1], None, training, key=(0, "novel"))[0]

    adapted = algorithm.adapt(fed, state, new, 0).gate[new]
    assert same_bits(adapted, alone(**asked)) and not same_bits(adapted, alone())


def test_budgets():
    fed = fed_of("dense", (6,) * 10)
    mixed = Adapter.of(PFedGate(keep_ratio=(0.5, 0.1)), fed)
    assert sorted(mixed.budget.tolist()) == [0.1] * 5 + [0.5] * 5
    assert mixed.budget.tolist() != sorted(mixed.budget.tolist())
    assert mixed.min_ratio == 0.05  # half of the smallest budget, since 1/5 is above it
    each = tuple(0.1 * (i + 1) for i in range(10))
    assert tuple(Adapter.of(PFedGate(keep_ratio=each), fed).budget) == each
    assert Adapter.of(PFedGate(keep_ratio=0.5), fed).min_ratio == 0.2
    assert Adapter.of(PFedGate(keep_ratio=0.2), fed).min_ratio == 0.1
    assert Adapter.of(PFedGate(keep_ratio=0.05, min_keep_rule="authors_code"), fed).min_ratio == 0.05
    assert Adapter.of(PFedGate(blocks_per_tensor=20, min_keep_rule="authors_code"), fed).min_ratio == 0.1
    with pytest.raises(ValueError, match=r"\A[^\n]*11[^\n]*10[^\n]*\Z"):
        Adapter.of(PFedGate(keep_ratio=(0.5,) * 11), fed)


def test_an_infeasible_budget_is_noted_with_the_true_share():
    """Layout "equal" with five blocks keeps a fifth of each tensor, whatever s is."""
    fed, options = fed_of("conv"), {"block_layout": "equal", "min_keep_rule": "authors_code"}
    _, notes = after(PFedGate(keep_ratio=0.1, **options), fed)
    assert notes["infeasible"].tolist() == [1, 1, 1] and (notes["kept_ratio"] > 0.1).all()
    _, notes = after(PFedGate(keep_ratio=(0.1, 0.5, 1.0), **options), fed)
    assert notes["infeasible"].tolist() == [1, 0, 0]


def test_alternating_trains_the_gate_first_and_then_the_model():
    fed = fed_of("dense")
    joint, first = (trained(PFedGate(training=how, keep_ratio=1.0), fed) for how in ("joint", "alternating"))
    assert not same_bits(joint[2].variables, first[2].variables)
    adapter, state, out = first
    start, training = (state.statistics.clone(), state.gate, None), LocalTraining(smallest_batch=2)
    alone, _ = Trainer(adapter, fed, state, 0).gate_pass(everyone(fed), *start, training, key=0)
    assert same_bits(alone, out.variables)
    assert after(PFedGate(training="alternating"), fed)[1]["passes"] == 2


def test_client_wise_adaptation_has_one_mask_for_each_client():
    """With the mean image the mask is within the budget; the released code's mean of masked vectors can exceed it."""
    fed = fed_of("norm", (40, 40, 40), lr=0.2)
    for granularity, within in (("client", True), ("client_masked_mean", False)):
        algorithm = PFedGate(gate_granularity=granularity, lr_gate=2.0, keep_ratio=0.5)
        state, notes = after(algorithm, fed, 2)
        assert (notes["kept_ratio"] <= 0.5).all() == within
        if granularity == "client":
            assert same_bits(state.statistics, algorithm.init(fed, fed.theta0).statistics)
        assert len(algorithm.artifacts(fed, state)["test_masks"].unique()) == 2


def vectors_of(adapter, state, batches, mode="eval"):
    """M and G [n, L] of client 0's gate for each of the n batches."""
    raw = [adapter.gate(state.gate[0], state.statistics[0].clone(), x, mode) for x in batches]
    return (torch.stack(part) for part in zip(*raw, strict=True))


@pytest.mark.parametrize(
    "options",
    [{"eval_gate": "client_train_mean"}, *({"gate_granularity": g} for g in ("client", "client_masked_mean"))],
)
def test_client_wise_vectors_come_from_the_training_samples(options):
    """The mean over batches before the selection, the mean image, and the mean over batches after the selection."""
    fed = fed_of("norm", (30, 40, 20), dtype=F64, lr=0.2, batch_size=8)
    algorithm = PFedGate(lr_gate=2.0, keep_ratio=0.5, **options)
    state, _ = after(algorithm, fed, 2)
    adapter, (x, _) = Adapter.of(algorithm, fed), fed.splits["train"].client(0)
    scales, importances = vectors_of(adapter, state, x.split(8))
    if "eval_gate" in options:
        want, _ = adapter.combine(scales.mean(0), importances.mean(0), 0)
    elif options["gate_granularity"] == "client":
        (scale,), (importance,) = vectors_of(adapter, state, [x.mean(0, keepdim=True)], "client")
        want, _ = adapter.combine(scale, importance, 0)
    else:
        each = [adapter.combine(*both, 0)[0] for both in zip(scales, importances, strict=True)]
        want = torch.stack(each).mean(0)
        assert (want != 0).sum() > max((vector != 0).sum() for vector in each)
    d, images = fed.num_params, fed.splits["test"].client(0)[0]
    model = torch.cat([adapter.blocks.scale(state.shared[:d], want), state.shared[d:]])
    with torch.no_grad():
        torch.testing.assert_close(algorithm.predict(fed, state, 0, state.shared, images), fed.logits(model, images))


def test_the_last_batch_is_dropped_only_if_there_are_others():
    fed = fed_of("dense", (9, 3, 1))  # batches of four
    steps = {}
    for last in ("kept", "dropped"):
        adapter, state, _ = trained(PFedGate(last_batch=last), fed)
        steps[last] = [
            (places.tolist(), Trainer(adapter, fed, state, 0)(places, smallest).steps.tolist())
            for places, smallest in PFedGate(last_batch=last)._parts(fed, everyone(fed))
        ]
    assert steps == {"kept": [([0, 1, 2], [2, 1, 0])], "dropped": [([0], [2]), ([1, 2], [1, 0])]}
    fed = fed_of("dense", (10, 3))
    _, notes = after(PFedGate(last_batch="dropped"), fed)
    _, history = run(PFedGate(last_batch="dropped"), fed, Schedule(1))
    assert [len(history.series[m][1][0]) for m in ("correct_trained", "upload")] == [2, 2]


def test_a_client_without_a_step_sends_nothing():
    fed = fed_of("dense", (8, 1))
    state, notes = after(PFedGate(), fed)
    assert notes["upload"].tolist()[1] == 0
    alone, _ = after(PFedGate(), fed, clients=torch.tensor([1]))
    assert same_bits(alone.shared, fed.theta0)
    assert notes["kept_ratio"][1].isnan()


def test_logit_relu():
    fed = fed_of("dense", dtype=F64)
    plain, more = (after(PFedGate(logit_relu=on), fed)[0] for on in (False, True))
    assert not same_bits(plain.shared, more.shared)
    x = fed.splits["test"].client(0)[0]
    one, two = (PFedGate(logit_relu=on).predict(fed, plain, 0, plain.shared, x) for on in (False, True))
    assert same_bits(one.relu(), two)
    assert (one < 0).any()


def test_controls_with_masks_that_are_not_learned():
    """Masks that are not learned, and scales of 1."""
    fed = fed_of("norm")
    small, drawn = (Adapter.of(PFedGate(mask=mask), fed) for mask in ("small_blocks", "random"))
    assert len({small.select(small.fixed(k), k).tobytes() for k in range(3)}) == 1
    assert len({drawn.select(drawn.fixed(k), k).tobytes() for k in range(3)}) > 1
    for mask in ("small_blocks", "random"):
        adapter, state, out = trained(PFedGate(mask=mask), fed)
        assert set(np.unique(out.log.used / out.steps[:, None].numpy())) == {0.0, 1.0}
        importance = (out.variables != state.gate).split(adapter.gate.sizes, 1)[4].chunk(2, 1)[1]
        assert not importance.any()
    log = trained(PFedGate(gate_override=1.0), fed)[2].log
    assert log.scale.tolist() == log.used.tolist()


def test_artifacts_for_figures():
    fed = fed_of("norm", test=300, rounds=4)
    algorithm = PFedGate(keep_ratio=0.5)
    state, _ = after(algorithm, fed, 2)
    kept = algorithm.artifacts(fed, state)
    assert (kept["achieved_keep_ratio"] <= 0.5).all()
    assert kept["test_masks"].shape == (3, len(kept["block_sizes"]))
    share = (kept["test_masks"] * kept["block_sizes"]).sum(1) / fed.num_params
    torch.testing.assert_close(share, kept["achieved_keep_ratio"])
    assert kept["distinct_masks"] >= 1
    assert len(kept["gate_values"]) == 2 and (kept["gate_values"] > 0).any(1).all()
    torch.testing.assert_close(kept["gate_distances"][0, 1], (state.gate[0] - state.gate[1]).norm(), rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    "options",
    [
        {"keep_ratio": (0.5, 1.1)},
        {"scale_bias_init": 3.0, "sigmoid": False},
        {"execution": "sliced"},
        {"execution": "sliced", "block_layout": "output_rows", "straight_through": "kept", "training": "alternating"},
    ],
    ids=str,
)
def test_bad_settings(options):
    with pytest.raises(ValueError, match=rf"\APFedGate: [^\n]*{next(iter(options))}[^\n]*\Z"):
        PFedGate(**options)


def test_sliced_kernels_refuse_batch_norm():
    options = {"block_layout": "output_rows", "straight_through": "kept", "execution": "sliced"}
    with pytest.raises(ValueError, match=r"\APFedGate: [^\n]*bn1[^\n]*dense[^\n]*\Z"):
        after(PFedGate(**options), fed_of("norm"))


def test_probe_stores_scores_of_the_final_model():
    fed = fed_of("dense", (40, 30, 20), test=60, spread=1.0)
    plain = PFedGate(keep_ratio=0.6, lr_gate=1.0, eval_batch_size=8)
    state, _ = after(plain, fed, 2)
    kept = replace(plain, probe=True).artifacts(fed, state)
    clients = everyone(fed)

    def right(**options):
        way = replace(plain, **options)
        shared = fed.broadcast(state.shared, clients)
        scores = fed.evaluate(shared, clients, predict=lambda k, row, x: way.predict(fed, state, k, row, x))
        assert kept["test_count"].tolist() == scores.count.tolist()
        return scores.correct.tolist()

    orders = [right(eval_order=i) for i in range(5)]
    assert kept["order_correct"].tolist() == orders and orders[1:] != orders[:1] * 4
    sample, client_mean = right(eval_gate="sample"), right(eval_gate="client_train_mean")
    assert kept["sample_correct"].tolist() == sample
    assert kept["client_mean_correct"].tolist() == client_mean != sample
    ends = fed.evaluate(fed.broadcast(ungated(fed, state), clients), clients).correct
    assert kept["global_correct"].tolist() == ends.tolist()
    assert kept["sorted_correct"].tolist() == [by_label(plain, fed, state, k) for k in range(3)] != orders[0]
    assert "global_correct" not in plain.artifacts(fed, state)


def by_label(algorithm, fed, state, k):
    """Number of correct predictions with test batches sorted by label."""
    x, y = fed.splits["test"].client(k)
    batches = y.sort(stable=True).indices.split(algorithm.eval_batch_size)
    logits = [algorithm.predict(fed, state, k, state.shared, x[at]) for at in batches]
    return sum(int((out.argmax(1) == y[at]).sum()) for out, at in zip(logits, batches, strict=True))


def test_logit_relu_applies_to_sorted_batches():
    """All test samples are in one batch, so their order does not matter."""
    fed, way = fed_of("dense"), PFedGate(logit_relu=True, probe=True)
    state, _ = after(way, fed)
    low = replace(state, shared=state.shared - 0.5)  # if all logits are negative, the ReLU gives the first class
    kept, plain = (replace(way, logit_relu=on).artifacts(fed, low) for on in (True, False))
    assert kept["sorted_correct"].tolist() == kept["order_correct"][0].tolist() != plain["sorted_correct"].tolist()


def test_the_model_without_gates_is_one_more_round_of_fedavg():
    fed = fed_of("dense", (40, 30, 20))
    state, _ = after(PFedGate(keep_ratio=0.6), fed, 2)
    clients, t = everyone(fed), (fed.rounds, "ungated")
    theta = fed.sgd(fed.broadcast(state.shared, clients), clients, key=t).theta
    weight = fed.num_train / fed.num_train.sum()
    torch.testing.assert_close(ungated(fed, state), (weight[:, None] * theta).sum(0))


# ---- the released code's server, by hand ----------------------------------------------------------------------------


def drifting(aggregation, rounds, **options):
    """W [2, 2] = 1, rate 1, decay 0.1, momentum 0.5; two clients of equal data x = (1, 0), y = 0 and 1.

    s = 0.5 and B = 2 keep only W_00. The other entries get no gradient, and a client never sends them.
    """
    fed = linear_federation([([[1, 0]] * 2, [0] * 2), ([[1, 0]] * 2, [1] * 2)], weight_decay=0.1, momentum=0.5)
    method = PFedGate(keep_ratio=0.5, blocks_per_tensor=2, gate_override=0.8, aggregation=aggregation, **options)
    state = method.init(fed, torch.ones(4, dtype=F64))
    for t in range(rounds):
        state, notes = method.round(fed, state, everyone(fed), t)
    return state.shared, notes


def test_whole_models_carry_the_decay_and_momentum_of_untouched_blocks():
    """Unused entries: v = 0.1, W = 0.9; then v = 0.05 + 0.09 = 0.14, W = 0.76. Used entries are the same in both ways.

    With "dense", unused entries stay at 1.
    """
    for rounds, want in ((1, 0.9), (2, 0.76)):
        whole, sent = drifting("whole_models", rounds)
        dense, some = drifting("dense", rounds)
        torch.testing.assert_close(whole[1:], torch.full((3,), want, dtype=F64))
        torch.testing.assert_close(dense[1:], torch.ones(3, dtype=F64))
        torch.testing.assert_close(whole[:1], dense[:1])
    assert sent["upload"].tolist() == [4, 4] and sent["upload_bits"].tolist() == [0, 0]
    assert some["upload"].tolist() == [1, 1] and some["upload_bits"].tolist() == [2, 2]


def test_averaged_over_everyone_absent_clients_count_with_the_current_model():
    """Client 1 of 3 + 1 samples takes part: θ = (1 θ_1 + 3 θ_old) / 4, statistics included."""
    fed = fed_of("norm", (12, 4), dtype=F64)
    options = {"aggregation": "whole_models", "lr_gate": 1.0}
    one, everybody = PFedGate(**options), PFedGate(**options, averaged_over="everyone")
    start, clients = one.init(fed, fed.theta0), torch.tensor([1])
    alone, _ = one.round(fed, start, clients, 0)
    mixed, _ = everybody.round(fed, start, clients, 0)
    torch.testing.assert_close(mixed.shared, (alone.shared + 3 * fed.theta0) / 4)
    full, _ = one.round(fed, start, everyone(fed), 0)
    assert same_bits(full, everybody.round(fed, start, everyone(fed), 0)[0])  # no client is absent


def test_the_reading_has_the_server_of_the_released_code():
    coded = PFedGate.reading("authors_code")
    assert (coded.aggregation, coded.averaged_over) == ("whole_models", "everyone")
    assert (coded.reported, PFedGate().reported) == ("after_local_update", "after_merge")
    assert Adapter.of(coded, fed_of()).gate.num_paths == 1
    with pytest.raises(ValueError, match='averaged_over="everyone" needs'):
        PFedGate(averaged_over="everyone")


# ---- gates without sigmoid, as steep as with it ---------------------------------------------------------------------


@pytest.mark.parametrize("bias", [0.0, 3.0])
@pytest.mark.parametrize("paths", ["two", "shared"])
def test_the_tangent_has_the_value_and_slope_of_the_sigmoid_at_the_start(bias, paths):
    """M, G and the derivative of M with respect to the last bias. The identity has 1, 1 and 1."""
    fed = fed_of("dense", (500,), dtype=F64, batch_size=500)
    x = fed.splits["train"].client(0)[0]
    found = {}
    for name, options in {
        "sigmoid": {"scale_bias_init": bias},
        "tangent": {"scale_bias_init": bias, "sigmoid": False, "without_sigmoid": "tangent"},
        "identity": {"sigmoid": False},
    }.items():
        method = PFedGate(gate_paths=paths, **options)
        adapter, state = Adapter.of(method, fed), method.init(fed, fed.theta0)
        gate = state.gate[0].clone().requires_grad_()
        scale, importance = adapter.gate(gate, state.statistics[0].clone(), x, "train")
        (slope,) = torch.autograd.grad(scale.sum(), gate)
        first = slope[-adapter.gate.num_paths * adapter.gate.num_blocks]
        found[name] = torch.stack([scale.mean(), importance.mean(), first]).tolist()
    assert found["tangent"] == pytest.approx(found["sigmoid"], rel=0.05, abs=0.01)
    assert found["identity"] == pytest.approx([1, 1, 1])
    assert found["sigmoid"][2] < 0.22


def test_the_tangent_is_unbounded_and_needs_sigmoid_false():
    z = torch.tensor([[-50.0, 50.0]], dtype=F64)
    low, high = activate(z, False, (0.0,))[0].tolist()
    assert low < -5 and high > 5
    with pytest.raises(ValueError, match="needs sigmoid=False"):
        PFedGate(without_sigmoid="tangent")


# ---- masks of equal size --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("override", [None, 1.0])
def test_controls_keep_the_same_share_whatever_the_mask(override):
    """With blocks of equal size, learned, fixed and random masks keep equally many. Fixed masks are all the same."""
    fed = fed_of("conv", (12, 8, 14), dtype=F64)
    kept = {}
    for mask in ("learned", "small_blocks", "random"):
        method = PFedGate(
            mask=mask, block_layout="balanced", keep_ratio=0.6, lr_gate=5.0, scale_bias_init=1.0, gate_override=override
        )
        state, _ = after(method, fed, 2)
        kept[mask] = method.artifacts(fed, state)
    shares = torch.cat([arrays["achieved_keep_ratio"] for arrays in kept.values()])
    sizes = kept["learned"]["block_sizes"]
    assert float(shares.max() - shares.min()) * int(sizes.sum()) < len(sizes)  # a block is rounded by an entry
    assert 0.4 < float(shares.max()) <= 0.6
    assert kept["small_blocks"]["distinct_masks"] == 1 and kept["random"]["distinct_masks"] == 3


def test_batches_of_one_are_refused():
    with pytest.raises(ValueError, match="batch_size=1 trains nothing"):
        PFedGate().init(fed_of(batch_size=1), fed_of().theta0)
