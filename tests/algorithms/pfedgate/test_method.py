"""pFedGate's rounds: by hand, against plain PyTorch, and invariants."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from pfl_core import Schedule, run
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.pfedgate.adapt import Adapter
from pfl_core.algorithms.pfedgate.gate import Blocks
from pfl_core.algorithms.pfedgate.local import Log
from pfl_core.algorithms.pfedgate.method import PFedGate, Server
from pfl_core.federation import federation as federation_module
from pfl_core.seeding import generator
from tests.algorithms.pfedgate.plain import F64, NETS, PlainGate, after, all_nets, brute_force, fed_of, trained
from tests.helpers import everyone, linear_federation, module_of, same_bits

BUDGET = 0.7  # s of the rounds in plain PyTorch

# ---- rounds by hand and in plain PyTorch ----------------------------------------------------------------------------


def test_a_round_by_hand():
    """Logits W x, W [2, 2] = 0, rate 1; s = 0.5 and B = 2 make s_min = 0.25: blocks W_00 and (W_01, W_10, W_11).

    The second does not fit in 4 s - 1 = 1 entry, so only W_00 is trained. With M = 0.8, theta' = 0.8 W and the gradient
    is 0.8 (p_0 - y_0) x_0: client 0, two samples x = (2, 1), y = 0: W_00 = 0.8 * 0.5 * 2 = 0.8; client 1, three samples
    x = (1, 3), y = 1: W_00 = -0.4. Mean by samples: (2 * 0.8 - 3 * 0.4) / 5 = 0.08.
    """
    fed = linear_federation([([[2, 1]] * 2, [0] * 2), ([[1, 3]] * 3, [1] * 3)])
    state, notes = after(PFedGate(keep_ratio=0.5, blocks_per_tensor=2, gate_override=0.8), fed)
    torch.testing.assert_close(state.shared, torch.tensor([0.08, 0, 0, 0], dtype=F64))
    assert notes["upload"].tolist() == [1, 1]
    assert notes["upload_bits"].tolist() == [2, 2]
    assert notes["upload_ratio"].tolist() == notes["kept_ratio"].tolist() == [0.25, 0.25]


@all_nets
@pytest.mark.parametrize("stacked", [True, False])
def test_rounds_against_plain_pytorch(name, stacked):
    """Two rounds of two epochs with kept momentum, weight decay and clipping; the knapsack by brute force.

    At s = BUDGET no channel of the network with batch norm loses all its weights. Such a channel would be 0 up to
    rounding after the norm, and the output of its ReLU would depend on the processor.
    """
    if stacked and name == "norm":
        pytest.skip("no batched computation of networks with batch norm")
    settings = {"momentum": 0.9, "weight_decay": 0.01, "clip_norm": 0.7, "epochs": 2, "lr": 0.1}
    fed = fed_of(name, (9, 6), dtype=F64, stacked=stacked, **settings)
    algorithm = PFedGate(keep_ratio=BUDGET, blocks_per_tensor=3, lr_gate=0.4, scale_bias_init=1.0)
    adapter, state = Adapter.of(algorithm, fed), algorithm.init(fed, fed.theta0)
    gates = [PlainGate(adapter.gate, state.gate[k]) for k in range(2)]
    shared, moving = fed.theta0, [None, None]
    for t in range(2):
        state, notes = algorithm.round(fed, state, everyone(fed), t)
        rows = []
        for k in range(2):
            theta, sent, moving[k] = plain_round(fed, NETS[name][0](), adapter, gates[k], shared, k, t, moving[k])
            rows.append((theta, sent, float(fed.num_train[k])))
        shared = plain_mean(shared, rows, fed.num_params)
        torch.testing.assert_close(state.shared, shared)
        torch.testing.assert_close(state.gate, torch.stack([g.flat() for g in gates]))
        torch.testing.assert_close(state.statistics, torch.stack([g.flat_statistics() for g in gates]))
        assert notes["upload"].tolist() == [int(sent.sum()) for _, sent, _ in rows]


def test_the_gate_can_have_another_weight_decay():
    fed = fed_of("dense", (9, 6), dtype=F64, weight_decay=0.1, lr=0.1)

    def gates(decay):
        algorithm = PFedGate(keep_ratio=BUDGET, lr_gate=0.4, scale_bias_init=1.0, gate_weight_decay=decay)
        return algorithm.round(fed, algorithm.init(fed, fed.theta0), everyone(fed), 0)[0]

    plain, same, none = gates(None), gates(0.1), gates(0.0)
    assert torch.equal(plain.gate, same.gate)
    assert none.gate.norm() > plain.gate.norm()


def plain_round(fed, model, adapter, gate, shared, k, t, moving):
    """One client with two ``torch.optim.SGD``: (theta [e], sent entries bool [d], velocities of the model)."""
    plain, config, blocks = module_of(fed, model, shared), fed.train, adapter.blocks
    common = {"momentum": config.momentum, "weight_decay": config.weight_decay}
    of_model = torch.optim.SGD(plain.parameters(), lr=config.lr, **common)
    of_gate = gate.optimizer = getattr(gate, "optimizer", None) or torch.optim.SGD(gate.parameters(), lr=0.4, **common)
    for p, v in zip(plain.parameters(), moving or [], strict=False):
        of_model.state[p]["momentum_buffer"] = v
    numbers, sent = blocks.expand(torch.arange(blocks.num_blocks)), torch.zeros(fed.num_params, dtype=torch.bool)
    for batch in fed.batches(torch.tensor([k]), t, epochs=config.epochs, smallest_batch=2):
        scale, importance = gate.train()(batch.x[0])
        importance = importance.clamp(min=adapter.min_ratio)
        kept = brute_force(importance.detach().numpy(), blocks.sizes, blocks.always, BUDGET)
        through = torch.from_numpy(kept).to(F64) - importance.detach() + importance
        wide = (through * scale)[numbers]
        adapted = fed.layout.unflatten(torch.cat([p.flatten() for p in plain.parameters()]) * wide)
        loss = cross_entropy(torch.func.functional_call(plain, adapted, batch.x[0]), batch.y[0])
        of_model.zero_grad()
        of_gate.zero_grad()
        loss.backward()
        for part in (plain, gate):
            torch.nn.utils.clip_grad_norm_(part.parameters(), config.clip_norm)
        of_model.step()
        of_gate.step()
        sent |= torch.from_numpy(kept)[numbers]
    velocities = [of_model.state[p]["momentum_buffer"] for p in plain.parameters()]
    return fed.layout.flatten(dict(plain.state_dict())), sent, velocities


def plain_mean(shared, rows, d):
    """Mean of each entry over its senders, and of statistics over all clients."""
    out = shared.clone()
    for j in range(len(shared)):
        senders = [(theta[j], n) for theta, sent, n in rows if j >= d or sent[j]]
        if senders:
            out[j] = sum(x * n for x, n in senders) / sum(n for _, n in senders)
    return out


# ---- invariants -----------------------------------------------------------------------------------------------------


@all_nets
@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize(("aggregation", "keep"), [("by_index", False), ("by_index", True), ("dense", True)])
def test_a_gate_of_ones_on_the_whole_model_is_bitwise_fedavg(name, stacked, aggregation, keep):
    if stacked and name == "norm":
        pytest.skip("no batched computation of networks with batch norm")
    settings = {"stacked": stacked, "momentum": 0.5, "weight_decay": 0.01, "epochs": 2}
    options = {"keep_ratio": 1.0, "gate_override": 1.0, "aggregation": aggregation, "keep_momentum": keep}
    schedule = Schedule(3, participation=0.7)
    state, history = run(PFedGate(**options), fed_of(name, **settings), schedule)
    plain = FedAvg(client_weighting="samples", keep_momentum=keep)
    want, of_fedavg = run(plain, fed_of(name, **settings), schedule)
    assert same_bits(state.shared, want.shared)
    assert same_bits(history.series["correct_trained"], of_fedavg.series["correct_trained"])
    assert same_bits(history.series["train_loss"], of_fedavg.series["train_loss"])
    torch.testing.assert_close(history.series["loss"][1], of_fedavg.series["loss"][1])


@all_nets
@pytest.mark.parametrize("through", ["all", "kept"])
def test_masked_blocks_are_unchanged_and_not_sent(name, through):
    """One batch of plain SGD."""
    fed = fed_of(name, batch_size=100)
    algorithm = PFedGate(keep_ratio=0.5, straight_through=through, blocks_per_tensor=3)
    adapter, _, out = trained(algorithm, fed)
    numbers = adapter.blocks.expand(torch.arange(adapter.blocks.num_blocks))
    for k in range(3):
        moved = out.theta[k, : fed.num_params] != fed.theta0[: fed.num_params]
        kept = torch.from_numpy(out.log.used[k] > 0)[numbers]
        assert not moved[~kept].any()
        assert 0 < moved.sum() <= kept.sum() < fed.num_params
    _, notes = after(algorithm, fed)
    assert notes["upload"].tolist() == [int(s) for s in (out.log.used > 0) @ adapter.blocks.sizes]


def test_the_upload_is_the_union_of_the_masks_of_all_batches(monkeypatch):
    seen, add = {}, Log.add

    def recorded(log, k, scale, kept):
        seen.setdefault(k, []).append(kept.copy())
        add(log, k, scale, kept)

    monkeypatch.setattr(Log, "add", recorded)
    fed = fed_of(sizes=(24, 12, 16), lr=0.2)
    algorithm = PFedGate(keep_ratio=0.5, lr_gate=2.0)
    blocks = Adapter.of(algorithm, fed).blocks
    _, notes = after(algorithm, fed)
    for k, masks in seen.items():
        union = np.logical_or.reduce(masks)
        share = blocks.share(np.stack(masks)).mean()
        q = float(notes["upload_ratio"][k])
        assert q == pytest.approx(blocks.share(union))
        assert float(notes["kept_ratio"][k]) == pytest.approx(share)
        assert share <= q <= min(1, len(masks) * 0.5)
    assert any(notes["upload_ratio"] > notes["kept_ratio"] + 1e-3)  # else there was only one mask
    assert notes["distinct_masks"] == len({m.tobytes() for masks in seen.values() for m in masks}) > 1


def combined(through, shared=False, s=0.5, **options):
    """(adapter, scale and importance as leaves, M', I) for the dense net; importances lie on both sides of s_min."""
    fed = fed_of("dense", dtype=F64)
    adapter = Adapter.of(PFedGate(keep_ratio=s, straight_through=through, **options), fed)
    stream = torch.Generator().manual_seed(3)
    scale = (0.05 + 0.9 * torch.rand(adapter.blocks.num_blocks, generator=stream, dtype=F64)).requires_grad_()
    importance = scale if shared else (1.05 - scale.detach())
    if not shared:
        importance[0] = 0.1  # a first block, below s_min
        importance.requires_grad_()
    return adapter, scale, importance, *adapter.combine(scale, importance, 0)


def gradients_of(adapter, values, *leaves):
    """Gradients of a loss that is linear in theta', and <g_b, theta_b>."""
    g, theta = torch.randn(2, adapter.blocks.num_params, dtype=F64, generator=torch.Generator().manual_seed(4))
    loss = (adapter.blocks.scale(theta, values) * g).sum()
    return *torch.autograd.grad(loss, leaves, allow_unused=True), adapter.blocks.sums(g * theta)


@pytest.mark.parametrize("through", ["all", "kept"])
def test_values_and_gradients_of_the_combination(through):
    """The values are exactly 0 or M; the gradients follow their formulas."""
    adapter, scale, importance, values, kept = combined(through)
    on = torch.from_numpy(kept)
    assert kept[adapter.blocks.always].all()
    assert torch.equal(values, torch.where(on, scale, 0.0))
    of_scale, of_importance, inner = gradients_of(adapter, values, scale, importance)
    torch.testing.assert_close(of_scale, torch.where(on, inner, 0.0))
    want = scale.detach() * inner * (importance >= adapter.min_ratio)
    assert ((importance < adapter.min_ratio) & on).any()
    torch.testing.assert_close(of_importance, want if through == "all" else want * on)
    assert bool((of_importance[~on] == 0).all()) == (through == "kept")


@pytest.mark.parametrize("through", ["all", "kept"])
def test_a_shared_path_has_1_plus_M_times_the_gradient(through):
    adapter, scale, _, values, kept = combined(through, shared=True)
    slope, inner = gradients_of(adapter, values, scale)
    above = (scale.detach() >= adapter.min_ratio) & torch.from_numpy(kept)
    torch.testing.assert_close(slope[above], ((1 + scale.detach()) * inner)[above])


@pytest.mark.parametrize(("s", "learns"), [(0.5, True), (1.0, False)])
def test_the_importance_path_learns_unless_s_is_1(s, learns):
    """At s = 1 the importances are not used. The scale path always learns."""
    fed = fed_of("conv")
    adapter, state, out = trained(PFedGate(keep_ratio=s, scale_bias_init=1.0), fed)
    moved = (out.variables != state.gate)[0].split(adapter.gate.sizes)
    for part in moved[4:]:
        scale, importance = part.chunk(2)
        assert scale.any() or part is moved[5]  # a bias before a batch norm has gradient 0
        assert bool(importance.any()) == learns or part is moved[5]


def toy(aggregation, touched):
    """A model with three blocks of one parameter each, and clients 0 to 3 with 1 to 4 samples."""
    blocks = Blocks(torch.ones(3, dtype=torch.int64), torch.arange(3), np.array([True] * 3), np.array([True] * 3))
    theta = torch.arange(12, dtype=F64).view(4, 3) ** 2
    share = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=F64)
    server = Server(blocks, aggregation, torch.full((3,), -1.0, dtype=F64), share)
    server.add(theta, np.array([[b in sent for b in range(3)] for sent in touched]), torch.arange(4))
    return theta, server.merged()


def test_each_index_is_averaged_over_its_senders():
    theta, merged = toy("by_index", [{0, 2}, {1, 2}, {0, 1}, {0, 1, 2}])
    n = torch.tensor([1.0, 2, 3, 4], dtype=F64)
    senders = ([0, 2, 3], [1, 2, 3], [0, 1, 3])
    want = [(n[list(k)] * theta[list(k), j]).sum() / n[list(k)].sum() for j, k in enumerate(senders)]
    torch.testing.assert_close(merged, torch.stack(want))
    _, merged = toy("by_index", [{0}, {0}, {0}, {0}])
    assert merged[1:].tolist() == [-1, -1]
    theta, merged = toy("by_index", [{0, 1, 2}] * 4)
    torch.testing.assert_close(merged, (n[:, None] * theta).sum(0) / 10)
    assert torch.equal(merged, toy("dense", [{0, 1, 2}] * 4)[1])


def test_the_dense_mean_counts_unsent_blocks_as_unchanged():
    theta, merged = toy("dense", [{0, 2}, {1, 2}, {0, 1}, {0, 1, 2}])
    want = torch.stack([0.1 * theta[0, 0] - 0.2 + 0.3 * theta[2, 0] + 0.4 * theta[3, 0]])
    torch.testing.assert_close(merged[:1], want)


@pytest.mark.parametrize("reading", ["paper", "authors_code"])
def test_gates_are_private(reading):
    fed = fed_of("conv")
    algorithm = PFedGate.reading(reading, keep_ratio=0.6)
    state, notes = after(algorithm, fed)
    start = algorithm.init(fed, fed.theta0)
    assert (start.gate == start.gate[0]).all()
    assert len({tuple(row.tolist()) for row in state.gate}) == 3
    assert len(state.shared) == fed.num_entries
    assert (notes["upload"] <= fed.num_params).all()
    strange = replace(start, gate=start.gate.clone(), statistics=start.statistics + 3)
    strange.gate[1:] = start.gate[1:].flip(1)  # the gates of other clients do not affect client 0
    first = algorithm.round(fed, start, torch.tensor([0]), 0)[0].shared
    assert same_bits(first, algorithm.round(fed, strange, torch.tensor([0]), 0)[0].shared)


@all_nets
@pytest.mark.parametrize("how", ["batch", "client_train_mean", "sample"])
def test_evaluation_changes_no_statistics_and_is_deterministic(name, how):
    fed = fed_of(name, dtype=F64)
    algorithm = PFedGate(eval_gate=how, scale_bias_init=2.0)
    state, _ = after(algorithm, fed)
    kept = state.statistics.clone()
    x, theta = fed.splits["test"].client(1)[0], state.shared
    with torch.no_grad():
        first = algorithm.predict(fed, state, 1, theta, x)
        assert same_bits(first, algorithm.predict(fed, state, 1, theta, x))
        order = torch.randperm(len(x), generator=generator(0, "order"))
        torch.testing.assert_close(algorithm.predict(fed, state, 1, theta, x[order]), first[order])
        alone = torch.cat([algorithm.predict(fed, state, 1, theta, row[None]) for row in x])
    assert torch.allclose(alone, first) == (how != "batch")  # only with "batch" do other samples of the batch matter
    assert same_bits(kept, state.statistics)


@all_nets
def test_local_weights_are_scored_with_the_gate_they_were_trained_with(name):
    """That is the gate after local training, not the gate before the round, and not another client's."""
    fed, algorithm = fed_of(name, dtype=F64, lr=0.2), PFedGate(lr_gate=5.0, keep_ratio=0.7)
    rows = []

    def score(theta, clients, predict):
        rows.append(theta.clone())
        return fed.evaluate(theta, clients, predict=predict)

    fed.score = score
    start = algorithm.init(fed, fed.theta0)
    new, notes = algorithm.round(fed, start, everyone(fed), 0)
    gates = {"new": new, "old": start, "others": replace(new, gate=new.gate.roll(1, 0))}
    losses = {
        which: fed.evaluate(
            torch.cat(rows),
            everyone(fed),
            predict=lambda k, theta_k, x, s=state: algorithm.predict(fed, s, k, theta_k, x),
        ).loss
        for which, state in gates.items()
    }
    assert same_bits(notes["trained"].loss, losses["new"])
    assert not torch.allclose(losses["new"], losses["old"]) and not torch.allclose(losses["new"], losses["others"])


def test_samples_are_scored_in_batches_of_a_random_order():
    fed = fed_of("norm", dtype=F64, test=150, spread=3.0)
    algorithm = PFedGate(eval_batch_size=64, scale_bias_init=2.0)
    state, _ = after(algorithm, fed, 2)
    adapter, x = Adapter.of(algorithm, fed), fed.splits["test"].client(2)[0]
    order = torch.randperm(150, generator=federation_module.generator(0, "evaluation", 2, 0))
    got = algorithm.predict(fed, state, 2, state.shared, x)
    for at in order.split(64):
        scale, kept = adapter(state.gate[2], state.statistics[2].clone(), x[at], 2, "eval")
        assert adapter.blocks.share(kept) <= 0.5
        theta = torch.cat([adapter.blocks.scale(state.shared[: fed.num_params], scale), state.shared[fed.num_params :]])
        torch.testing.assert_close(got[at], fed.logits(theta, x[at]))
    other = replace(algorithm, eval_order=1).predict(fed, state, 2, state.shared, x)
    assert not torch.allclose(got, other)


@pytest.mark.parametrize(("keep", "masks"), [(0.55, 1), (0.7, 2)])
@pytest.mark.parametrize("name", ["dense", "conv"])
def test_sliced_execution_equals_masked_dense_execution(name, keep, masks):
    """Three rounds with momentum, decay and clipping. At 0.7 the masks differ; one client has a single sample."""
    settings = {"momentum": 0.9, "weight_decay": 0.01, "clip_norm": 0.7, "epochs": 2, "stacked": False}
    fed = fed_of(name, (12, 8, 1), dtype=F64, **settings)
    options = {"block_layout": "output_rows", "straight_through": "kept", "keep_ratio": keep, "lr_gate": 1.0}
    one, of_one = after(PFedGate(**options), fed, 3)
    two, of_two = after(PFedGate(**options, execution="sliced"), fed, 3)
    for x, y in zip(vars(one).values(), vars(two).values(), strict=True):
        torch.testing.assert_close(x, y)
    for note in ("upload", "kept_ratio", "train_loss"):
        torch.testing.assert_close(of_one[note], of_two[note], equal_nan=True)
    assert (of_one["kept_ratio"][:2] < keep + 0.01).all()
    assert PFedGate(**options).artifacts(fed, one)["distinct_masks"] >= masks
