"""Star-PFL's options for the ambiguities A2 to A16 of the method page (notebooks/star_pfl/README.md), and settings."""

from dataclasses import replace

import torch

from pfl_core import methods
from pfl_core.algorithm import build
from pfl_core.algorithms.star_pfl.masks import measure
from pfl_core.algorithms.star_pfl.method import StarPFL
from tests.algorithms.star_pfl.plain import EAGER, PARTS, SHORT, fed_of, masks_of, steps
from tests.helpers import federation, mlp

F64 = torch.float64


def test_a2_dead_units_freeze_on_both_sides():
    """The updates of a neuron that is never active are exactly 0."""
    model = mlp()
    model.fc1.bias.data[0] = -1e6
    fed = federation(model, rounds=9, epochs=2)
    dead = fed.layout.unflatten(torch.zeros(fed.num_entries))
    dead["fc1.weight"][0] = dead["fc1.bias"][0] = 1
    dead["head.weight"][:, 0] = 1
    dead = fed.layout.flatten(dead).bool()
    algorithm = StarPFL(threshold_global=0.0, threshold_local=0.0)
    first, second = [after for _, after, _, _ in steps(algorithm, fed, PARTS[:1] * 2)]
    for mask in (masks_of(algorithm, fed, first)[0], masks_of(algorithm, fed, first)[1][2]):
        assert not mask[dead].any() and mask[~dead].sum() > (~dead).sum() // 2
    assert (second.server.probe[dead] & second.clients[0].probe[dead]).all()


def test_a16_no_more_than_a_share_is_frozen():
    fed = fed_of("mlp")
    free, capped = StarPFL(**EAGER, **SHORT), StarPFL(**EAGER, **SHORT, max_frozen_fraction=0.1)
    frozen = {
        a: [int((~e.trained).sum()) for _, s, _, _ in steps(a, fed) for e in (s.server, *s.clients)]
        for a in (free, capped)
    }
    assert max(frozen[capped]) == capped.most_frozen(fed) < max(frozen[free])


def test_moving_averages_follow_the_servers_updates():
    """E and A of the server without freezing, from the shared models."""
    fed, algorithm = fed_of("mlp", dtype=F64), StarPFL(threshold_global=None, stability_measure="ema", ema_decay=0.75)
    net = path = torch.zeros(fed.num_params, dtype=F64)
    for before, after, _, _ in steps(algorithm, fed):
        update = after.shared - before.shared
        net, path = 0.75 * net + 0.25 * update, 0.75 * path + 0.25 * update.abs()
        torch.testing.assert_close(after.server.score, net.abs() / path.where(path > 0, 1), rtol=1e-6, atol=1e-6)


def test_the_control_gives_a_rounds_scores_to_other_entries():
    """From the same state both train alike: the same scores change places, so as many freeze, but not the same ones."""
    fed = fed_of("mlp", dtype=F64)
    control, drawn = StarPFL(**EAGER, **SHORT, freeze="random"), set()
    plain, (server, client) = replace(control, freeze="stable"), control.rules(fed)
    for t, (before, after, _, clients) in enumerate(steps(control, fed)):
        wanted, _ = plain.round(fed, before, torch.tensor(clients), t)
        assert torch.equal(wanted.shared, after.shared)
        pairs = [(before.server, wanted.server, after.server, server)]
        pairs += [(before.clients[k], wanted.clients[k], after.clients[k], client) for k in clients]
        for old, paper, mine, rule in pairs:
            active = measure(old, rule)
            assert torch.equal(old.score[~active], mine.score[~active])
            for group in (active & old.probe, active & ~old.probe):
                assert torch.equal(paper.score[group].sort().values, mine.score[group].sort().values)
            now = [(~measure(entries, rule) & active) for entries in (paper, mine)]
            assert now[0].sum() == now[1].sum()
            drawn.add(tuple(now[1].tolist()))
            assert not 20 < now[0].sum() < active.sum() - 20 or not torch.equal(*now)
    assert len(drawn) > 20, "a draw for each round and each client"


def test_default_settings_and_readings():
    paper, code = StarPFL(), StarPFL.reading("authors_code")
    assert (paper.history_len_global, paper.history_len_local) == (10, 5)
    assert (paper.threshold_global, paper.threshold_local, paper.thaw, paper.min_history) == (0.1, 0.1, True, 1)
    assert build("star_pfl", {}, "authors_code") == code
    assert build("star_pfl", {"min_history": "full", "threshold_local": "0.2"}).threshold_local == 0.2
    assert build("star_pfl", {"min_history": "3"}).min_history == 3
    assert methods()["star_pfl"].papers == ("star_pfl",)


def test_a7_cleared_every_round_one_epoch_never_freezes_by_cancellation():
    fed = fed_of("mlp", epochs=1, dtype=F64)
    cleared = StarPFL(threshold_global=None, threshold_local=0.99, history_scope="round")
    for _, after, _, _ in steps(cleared, fed):
        for entries in after.clients:
            assert set(entries.score[~entries.trained].tolist()) <= {0.0}  # dead units only
    rolling = [after for _, after, _, _ in steps(replace(cleared, history_scope="rolling"), fed)]
    assert any(((e.score > 0) & ~e.trained).any() for e in rolling[-1].clients)
