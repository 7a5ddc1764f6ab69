"""HeteroFL: masked sub-networks against physically smaller ones, the server's mean, and equality with FedAvg."""

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pfl_core.algorithms.heterofl import HeteroFL, nested, width_for
from pfl_core.layout import Layout
from pfl_core.models import build
from tests.algorithms.fedpews.plain import deep
from tests.algorithms.two_nets import F64, SOME, NoChain, both_nets, fed_of, net_of
from tests.helpers import after, cnn, everyone, federation, mlp, module_of

# ---- widths ---------------------------------------------------------------------------------------------------------


def test_a_sub_network_by_hand():
    """6 -> 5 -> 4 -> 3 at r = 0.4: 2 and 2 neurons; kept 2 * 6 + 2, 2 * 2 + 2 and 3 * 2 + 3."""
    named = Layout.of(deep()).unflatten(nested(Layout.of(deep()), 0.4))
    assert [int(named[n].sum()) for n in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")] == [12, 2, 4, 2]
    assert named["fc1.weight"][:2].all() and named["fc2.weight"][:2, :2].all()
    assert named["head.weight"][:, :2].all() and not named["head.weight"][:, 2:].any() and named["head.bias"].all()


@pytest.mark.parametrize("n", [3, 7, 10, 64])
def test_counts_are_rounded_up(n):
    layout = Layout.of(nn.Sequential(OrderedDict(fc1=nn.Linear(2, n), relu1=nn.ReLU(), head=nn.Linear(n, 2))))
    for j in range(1, n + 1):
        for r, count in ((j / n, j), ((j - 0.5) / n, j)):
            assert int(layout.unflatten(nested(layout, r))["fc1.bias"].sum()) == count


@pytest.mark.parametrize("model", [mlp, cnn, deep], ids=["mlp", "cnn", "deep"])
def test_the_width_for_a_share_of_the_parameters_is_the_nearest(model):
    layout = Layout.of(model())
    d, steps = layout.num_params, sorted({j / n for n in layout.chain.sizes for j in range(1, n + 1)})
    kept = [int(nested(layout, r)[:d].sum()) for r in steps]
    for share in (0.05, 0.3, 0.5, 0.77, 1.0):
        off = [abs(num - share * d) for num in kept]
        assert width_for(layout, share) == steps[off.index(min(off))], share


def test_half_of_the_papers_networks():
    """Half of the parameters, or half of the width, which keeps about a quarter of the parameters."""
    layout = Layout.of(build("lenet_cifar", (3, 32, 32), 10, 0))
    kept = [int(nested(layout, r)[: layout.num_params].sum()) / 256830 for r in (width_for(layout, 0.5), 0.5)]
    assert kept == pytest.approx([0.498, 0.253], abs=1e-3)


def test_a_tenth_of_the_clients_has_the_whole_network():
    fed = federation(mlp(), sizes=(4,) * 30)
    widths = HeteroFL().init(fed, fed.theta0).widths
    assert (widths == 1).sum() == 3
    assert set(widths.tolist()) == {1.0, width_for(fed.layout, 0.5)}
    assert (HeteroFL(full_share=0.01).widths(fed) == 1).sum() == 1
    assert (HeteroFL(full_share=0.0, half="width").widths(fed) == 0.5).all()
    assert not torch.equal(HeteroFL().widths(federation(mlp(), sizes=(4,) * 30, seed=1)), widths)


# ---- against physically smaller networks -----------------------------------------------------------------------------


def smaller(fed, model, theta, mask):
    """A plain module with only the entries of the mask, and the function that puts them back into [e]."""
    plain, on = module_of(fed, model, theta), fed.layout.unflatten(mask)
    tensors = dict(plain.state_dict(keep_vars=True))
    for name, m in on.items():
        shape = [int(m.movedim(i, 0).flatten(1).any(1).sum()) if m.dim() > 1 else int(m.sum()) for i in range(m.dim())]
        owner, _, short = name.rpartition(".")
        part = tensors[name].detach()[m].view(shape)
        module = plain.get_submodule(owner)
        setattr(module, short, nn.Parameter(part) if short in module._parameters else part)

    def back():
        out = torch.zeros_like(theta)
        for name, m in on.items():
            fed.layout.unflatten(out)[name][m] = plain.state_dict()[name].flatten()
        return out

    return plain, back


def plain_client(algorithm, fed, model, theta, k, t, r):
    mask = nested(fed.layout, r)
    plain, back = smaller(fed, model, theta, mask)
    if algorithm.scaler:
        for name in ("conv1", "fc1"):
            if hasattr(plain, name):
                getattr(plain, name).register_forward_hook(lambda module, inputs, output: output / r)
    absent = torch.tensor([c not in fed.labels(k) for c in range(3)])
    optimizer = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9, weight_decay=0.01)
    for batch in fed.batches(torch.tensor([k]), t):
        logits = plain(batch.x[0])
        logits = torch.where(absent, 0.0, logits) if algorithm.absent_labels == "zero" else logits
        optimizer.zero_grad()
        cross_entropy(logits, batch.y[0]).backward()
        optimizer.step()
    counted = fed.layout.unflatten(mask.clone())
    if algorithm.absent_labels == "zero":
        counted["head.weight"][absent] = False
        counted["head.bias"][absent] = False
    return back(), torch.cat([m.flatten() for m in counted.values()])


@both_nets
@pytest.mark.parametrize(
    "options",
    [{}, {"half": "width", "client_weighting": "uniform"}, {"scaler": True}, {"absent_labels": "zero"}],
    ids=str,
)
def test_rounds_against_smaller_modules(net, options):
    """All, two, then three of four clients; an entry that no participant holds is unchanged."""
    sizes = (3, 9, 2, 10)
    fed, model = fed_of(net, sizes=sizes, dtype=F64, momentum=0.9, weight_decay=0.01), net_of(net)
    algorithm = HeteroFL(full_share=0.25, **options)
    assert algorithm.absent_labels == "keep" or any(algorithm.absent(fed, k).any() for k in range(4))
    widths, theta = algorithm.widths(fed).tolist(), fed.theta0
    assert len(set(widths)) == 2
    for t, (state, notes) in enumerate(after(algorithm, fed, SOME)):
        top, bottom = torch.zeros_like(theta), torch.zeros_like(theta)
        for k in SOME[t]:
            row, counted = plain_client(algorithm, fed, model, theta, k, t, widths[k])
            w = sizes[k] if algorithm.client_weighting == "samples" else 1.0
            top, bottom = top + w * counted * row, bottom + w * counted
        theta = torch.where(bottom > 0, top / bottom.clamp(min=1e-9), theta)
        torch.testing.assert_close(state.shared, theta, rtol=1e-6, atol=1e-8)
        assert notes["upload"].tolist() == [int(nested(fed.layout, widths[k])[: fed.num_params].sum()) for k in SOME[t]]


# ---- scores, chunks, settings ---------------------------------------------------------------------------------------


@both_nets
def test_a_client_is_scored_with_its_sub_network(net):
    fed, model, algorithm = fed_of(net, dtype=F64), net_of(net), HeteroFL()
    state = after(algorithm, fed, 2)[-1][0]
    x = fed.splits["test"].client(0)[0]
    for k, row in enumerate(algorithm.evaluation_models(fed, state, everyone(fed), 1)):
        plain, _ = smaller(fed, model, state.shared, nested(fed.layout, float(state.widths[k])))
        torch.testing.assert_close(fed.logits(row, x), plain.eval()(x).detach())


def test_a_network_that_is_no_plain_chain_is_refused():
    fed = federation(NoChain())
    with pytest.raises(ValueError, match="plain chain"):
        HeteroFL().init(fed, fed.theta0)
