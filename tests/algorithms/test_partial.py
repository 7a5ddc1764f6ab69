"""FedPer, FedRep, FedBABU and LG-FedAvg: in plain PyTorch, and where they equal other methods bitwise."""

from dataclasses import replace

import pytest
import torch

from pfl_core import LocalTraining, Schedule, run
from pfl_core.algorithms.fedavg import FedAvg, client_weight
from pfl_core.algorithms.fedselect.method import FedSelect
from pfl_core.algorithms.partial import FedBABU, FedPer, FedRep, LGFedAvg, select_entries, top_layers
from pfl_core.engine import rounds
from tests.algorithms.two_nets import F64, both_nets, fed_of, head_of, net_of
from tests.helpers import everyone, one_line, plain_sgd, same_bits

ALL = [FedPer(), FedRep(), FedBABU(finetune_epochs=1), LGFedAvg()]
every_method = pytest.mark.parametrize("algorithm", ALL, ids=lambda a: type(a).__name__)


def models_of(algorithm, fed, num=3, **schedule):
    """The models [N, e] with which clients are scored, after each round."""
    start = algorithm.init(fed, fed.theta0)
    after = rounds(algorithm, fed, Schedule(num, **schedule), start)
    return [algorithm.evaluation_models(fed, s.state, everyone(fed), s.t) for s in after]


# ---- plain PyTorch --------------------------------------------------------------------------------------------------


def parts_of(fed):
    """Names of the parameters: the head's, and all others."""
    names = [f.name for f in fed.layout.params]
    return [{n for n in names if n.startswith("head") == of_head} for of_head in (True, False)]


def plain_local(algorithm, fed, model, theta_k, k, t):
    """One client's round with ``torch.optim.SGD``: the model, and the losses of all samples of the last pass."""
    head, body = parts_of(fed)
    if isinstance(algorithm, FedRep):
        theta_k, _ = plain_sgd(fed, model, theta_k, k, t, lr=0.3, epochs=2, only=head)
        return plain_sgd(fed, model, theta_k, k, t, lr=0.1, epochs=1, only=body)
    only = body if isinstance(algorithm, FedBABU) else None
    return plain_sgd(fed, model, theta_k, k, t, lr=0.1, epochs=2, only=only)


@both_nets
@pytest.mark.parametrize("policy", ["local", "average"])
@pytest.mark.parametrize("method", [FedPer, FedRep, FedBABU, LGFedAvg])
def test_rounds_against_plain_modules(method, net, policy):
    """Two rounds, the second without client 1, weights by samples; statistics local or averaged."""
    fed, model = fed_of(net, sizes=(12, 8, 20), dtype=F64), net_of(net)
    rate = {"lr_head": 0.3} if method is FedRep else {}
    algorithm = method("samples", policy, **rate)
    own = ~head_of(fed) if method is LGFedAvg else head_of(fed)
    own[fed.num_params :] = policy == "local"
    theta, state = fed.theta0.repeat(3, 1), algorithm.init(fed, fed.theta0)
    for t, chosen in enumerate(([0, 1, 2], [2, 0])):
        state, notes = algorithm.round(fed, state, torch.tensor(chosen), t)
        for s, k in enumerate(chosen):
            theta[k], losses = plain_local(algorithm, fed, model, theta[k], k, t)
            assert float(notes["train_loss"][s]) == pytest.approx(sum(losses) / len(losses))
        weight = torch.tensor([12.0, 8, 20], dtype=F64)[chosen]
        mean = (weight / weight.sum()) @ theta[chosen]
        theta[:, ~own] = mean[~own]
        torch.testing.assert_close(algorithm.client_models(fed, state, everyone(fed)), theta)
        sent = int((~own)[: fed.num_params].sum())
        assert notes["upload"].tolist() == [sent] * len(chosen)
        assert notes["personal_share"] == pytest.approx(1 - sent / fed.num_params)
        assert notes["passes"] == (3 if method is FedRep else 2)


@both_nets
@pytest.mark.parametrize("part", ["all", "head", "body"])
def test_fedbabus_fine_tuning_against_plain_modules(net, part):
    fed, model, algorithm = fed_of(net, dtype=F64), net_of(net), FedBABU(finetune_epochs=3, finetune_part=part)
    state, _ = algorithm.round(fed, algorithm.init(fed, fed.theta0), everyone(fed), 0)
    head, body = parts_of(fed)
    only = {"all": head | body, "head": head, "body": body}[part]
    want = [plain_sgd(fed, model, state.shared, k, (0, "finetune"), lr=0.1, epochs=3, only=only)[0] for k in (2, 0)]
    torch.testing.assert_close(algorithm.evaluation_models(fed, state, torch.tensor([2, 0]), 0), torch.stack(want))


# ---- where they are other methods, bit for bit ----------------------------------------------------------------------


@both_nets
@pytest.mark.parametrize("options", [{}, {"buffer_policy": "average"}, {"client_weighting": "samples"}], ids=str)
@pytest.mark.parametrize("training", [{}, {"momentum": 0.9, "weight_decay": 0.01}], ids=str)
def test_fedrep_is_fedselect_with_the_head_as_fixed_mask(net, options, training):
    """One epoch for each part, on the same batches; also with absent clients."""
    fed = fed_of(net, epochs=1, **training)
    select, rep = FedSelect(p=0.0, lr_personal=0.3, **options), FedRep(head_epochs=1, lr_head=0.3, **options)
    start, state = select.init(fed, fed.theta0), rep.init(fed, fed.theta0)
    fixed = replace(start, personal=start.personal | head_of(fed))
    for t, chosen in enumerate(([0, 1, 2, 3], [3, 1, 0], [2])):
        fixed, want = select.round(fed, fixed, torch.tensor(chosen), t)
        state, notes = rep.round(fed, state, torch.tensor(chosen), t)
        assert torch.equal(rep.evaluation_models(fed, state, everyone(fed), t), fixed.local)
        assert torch.equal(state.shared, fixed.shared)
        for metric in ("train_loss", "upload"):
            assert torch.equal(notes[metric], want[metric]), metric
        assert (want["passes"] == notes["passes"]).all()
    twice = FedRep(head_epochs=2, lr_head=0.3, **options)
    other, _ = twice.round(fed, twice.init(fed, fed.theta0), everyone(fed), 0)
    assert not torch.equal(other.own[0], rep.round(fed, rep.init(fed, fed.theta0), everyone(fed), 0)[0].own[0])


@both_nets
def test_a_warm_start_is_fedavg_whose_model_every_client_takes(net):
    """Also a client that did not take part in those rounds."""
    fed, warm = fed_of(net), LGFedAvg("samples", warm_start_rounds=2)
    assert warm.inner_algorithms == (FedAvg(),) and LGFedAvg().inner_algorithms == ()
    chosen = torch.tensor([0, 2, 3])
    state, of_fedavg = warm.init(fed, fed.theta0), FedAvg("samples")
    want = of_fedavg.init(fed, fed.theta0)
    for t in range(2):
        state, notes = warm.round(fed, state, chosen, t)
        want, _ = of_fedavg.round(fed, want, chosen, t)
        assert torch.equal(state.shared, want.shared)
        assert torch.equal(warm.evaluation_models(fed, state, everyone(fed), t), want.shared.expand(4, -1))
        assert notes["upload"].tolist() == [fed.num_params] * 3
        assert notes["personal_share"] == 0
        assert same_bits(warm.adapt(fed, state, torch.tensor([1]), t), state)
    later, notes = warm.round(fed, state, chosen, 2)
    theta = fed.sgd(fed.broadcast(want.shared, chosen), chosen, key=2).theta
    assert torch.equal(torch.stack(later.own)[[0, 2, 3]], theta[:, ~head_of(fed)])
    assert torch.equal(later.own[1], want.shared[~head_of(fed)])
    mean = client_weight(fed, chosen, "samples") @ theta / fed.num_train[chosen].sum()
    torch.testing.assert_close(later.shared[head_of(fed)], mean[head_of(fed)])
    assert notes["upload"].tolist() == [18 if net == "mlp" else 15] * 3


# ---- what stays and what moves --------------------------------------------------------------------------------------


@every_method
@both_nets
def test_absent_clients_keep_their_part_and_the_shared_model_never_contains_it(algorithm, net):
    fed = fed_of(net)
    before, _ = algorithm.round(fed, algorithm.init(fed, fed.theta0), everyone(fed), 0)
    now, _ = algorithm.round(fed, before, torch.tensor([2, 0]), 1)
    personal = algorithm.personal_mask(fed)
    assert torch.equal(now.own[1], before.own[1]) and torch.equal(now.own[3], before.own[3])
    frozen = isinstance(algorithm, FedBABU)
    assert torch.equal(now.own[0], before.own[0]) == torch.equal(before.own[0], before.own[2]) == frozen
    assert torch.equal(now.shared[personal], fed.theta0[personal])
    assert not torch.equal(now.shared[~personal], before.shared[~personal])
    models = algorithm.client_models(fed, now, everyone(fed))
    assert torch.equal(models[:, ~personal], now.shared[~personal].expand(4, -1))
    assert torch.equal(models[:, personal], torch.stack(now.own))


@both_nets
@pytest.mark.parametrize("training", [{}, {"momentum": 0.9, "weight_decay": 0.1, "clip_norm": 1.0}], ids=str)
def test_fedbabus_head_is_bitwise_unchanged(net, training):
    """With three clients a plain mean of equal heads would be off by rounding."""
    fed = fed_of(net, sizes=(12, 9, 14), **training)
    algorithm = FedBABU(finetune_epochs=0)
    head = head_of(fed)
    for models in models_of(algorithm, fed):
        assert torch.equal(models[:, head], fed.theta0[head].expand(3, -1))
        assert torch.equal(models, models[:1].expand(3, -1))  # one body for all, statistics included
        assert not torch.equal(models[0, ~head], fed.theta0[~head])


def test_the_state_holds_only_the_personal_entries_of_a_client():
    """Ten heads of a large network must not cost ten networks, in memory or in a checkpoint."""
    fed = fed_of("cnn")
    for algorithm, size in ((FedPer(), 15 + 6), (FedBABU(), 15), (LGFedAvg(), fed.num_entries - 15)):
        state, _ = run(algorithm, fed, Schedule(1))
        assert [len(row) for row in state.own] == [size] * 4
        assert all(row.untyped_storage().nbytes() == 4 * size for row in state.own)


# ---- clients that never took part -----------------------------------------------------------------------------------


@both_nets
@pytest.mark.parametrize("algorithm", [FedPer(), FedRep(lr_head=0.3, head_epochs=3), LGFedAvg()], ids=repr)
def test_a_novel_client_trains_its_personal_part(algorithm, net):
    fed, novel = fed_of(net), torch.tensor([3, 1])
    state, _ = algorithm.round(fed, algorithm.init(fed, fed.theta0), torch.tensor([0, 2]), 0)
    personal = algorithm.personal_mask(fed)
    adapted = algorithm.adapt(fed, state, novel, 0)
    settings = {"epochs": 3, "lr": 0.3} if isinstance(algorithm, FedRep) else {}
    start = torch.where(personal, fed.theta0, state.shared).expand(2, -1)
    want = fed.sgd(start, novel, LocalTraining(trainable=personal, **settings), key=(0, "adapt")).theta
    assert torch.equal(torch.stack([adapted.own[3], adapted.own[1]]), want[:, personal])
    assert torch.equal(adapted.shared, state.shared)
    assert same_bits((adapted.own[0], adapted.own[2]), (state.own[0], state.own[2]))
    assert torch.equal(algorithm.evaluation_models(fed, adapted, novel, 0)[:, ~personal], start[:, ~personal])


def test_methods_without_adaptation():
    fed = fed_of("mlp")
    for algorithm in (FedBABU(), FedPer(personal_layers=0)):
        state = algorithm.init(fed, fed.theta0)
        assert algorithm.adapt(fed, state, torch.tensor([1]), 0) is state


# ---- layers and settings --------------------------------------------------------------------------------------------


@every_method
@both_nets
@pytest.mark.parametrize("policy", ["local", "average"])
def test_personal_slices_agree_with_the_personal_mask(algorithm, net, policy):
    fed, algorithm = fed_of(net), replace(algorithm, buffer_policy=policy)
    personal, row = algorithm.personal_mask(fed), torch.arange(float(fed_of(net).num_entries))
    assert torch.equal(select_entries(row, algorithm.personal_slices(fed.layout)), row[personal])


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_top_layers_include_their_norm_layers(count):
    layout = fed_of("cnn").layout
    assert top_layers(layout, count) == [set(), {"head"}, {"fc1", "head"}, {"conv1", "bn1", "fc1", "head"}][count]
    fed = fed_of("cnn")
    own, rest = FedPer(buffer_policy="average", personal_layers=count), LGFedAvg(shared_layers=count)
    assert torch.equal(own.personal_mask(fed)[: fed.num_params], ~rest.personal_mask(fed)[: fed.num_params])
    if count == 1:
        assert torch.equal(own.personal_mask(fed), head_of(fed))


def test_more_layers_than_the_network_has_are_refused():
    with one_line("last 4 layers.*has 3"):
        FedPer(personal_layers=4).init(fed_of("cnn"), fed_of("cnn").theta0)
