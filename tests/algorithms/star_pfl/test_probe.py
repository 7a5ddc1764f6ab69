"""Star-PFL's probe: it changes no result, and its records agree with the states."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from pfl_core.algorithms.star_pfl.method import StarPFL
from pfl_core.algorithms.star_pfl.probe import ACTIVE, BINS, FROZEN, PROBING, layers, sampled
from tests.algorithms.star_pfl.plain import EAGER, PARTS, SHORT, fed_of, masks_of, steps
from tests.helpers import same_bits


@pytest.fixture(scope="module")
def course():
    fed, algorithm = fed_of(), StarPFL(**EAGER, **SHORT, probe=40)
    return fed, algorithm, steps(algorithm, fed)


def test_a_probe_changes_no_result(course):
    fed, algorithm, seen = course
    without = steps(replace(algorithm, probe=0), fed)
    for (_, plain, notes, _), (_, probed, probed_notes, _) in zip(without, seen, strict=True):
        assert plain.trace is None and same_bits(plain, replace(probed, trace=None))
        assert set(probed_notes) - set(notes) == {"size_correlation", "size_correlation_global"}
        assert all(same_bits(notes[name], probed_notes[name]) for name in notes)
    assert replace(algorithm, probe=0).artifacts(fed, plain) == {}


def test_values_after_each_local_epoch_are_those_of_shorter_rounds():
    """After e epochs the values are those of a round of e epochs; after the last epoch, those of the trace."""
    options = {**EAGER, **SHORT, "probe": 20}
    plain, watched = (StarPFL(**options, probe_epochs=on) for on in (False, True))
    fed = fed_of(epochs=4)
    without, seen = steps(plain, fed), steps(watched, fed)
    for (_, one, notes, _), (_, other, other_notes, _) in zip(without, seen, strict=True):
        assert same_bits(one, replace(other, course=None))
        assert notes["train_loss"].tolist() == pytest.approx(other_notes["train_loss"].tolist())
        assert all(same_bits(notes[name], other_notes[name]) for name in notes if name != "train_loss")
    where, noted = sampled(fed, 20), watched.artifacts(fed, seen[-1][1])["course"]
    assert noted.shape == (len(PARTS), 5, 20)
    for t, (before, after, _, clients) in enumerate(seen):
        torch.testing.assert_close(noted[t, 0], before.shared[where].double(), rtol=0, atol=1e-5)
        assert bool(noted[t, 1:].isnan().all()) == (0 not in clients)
        last = after.trace.value[t, 1].double()
        torch.testing.assert_close(noted[t, -1], last, rtol=0, atol=1e-5, equal_nan=True)
    for epochs in (1, 2, 3):
        (_, _, notes, _), *_ = steps(plain, fed_of(epochs=epochs), PARTS[:1])
        torch.testing.assert_close(noted[0, epochs], notes["trained"][0][where].double(), rtol=0, atol=1e-5)
    assert "course" not in plain.artifacts(fed, without[-1][1])
    with pytest.raises(ValueError, match="probe_epochs=True without probe"):
        StarPFL(probe_epochs=True)


def test_a_few_entries_of_every_layer(course):
    fed, _, _ = course
    parts = layers(fed.layout)
    assert [part.start for part in parts.values()] == [0, *[part.stop for part in parts.values()][:-1]]
    where = sampled(fed, 40)
    held = [int(((where >= part.start) & (where < part.stop)).sum()) for part in parts.values()]
    sizes = [part.stop - part.start for part in parts.values()]
    assert len(where.unique()) == sum(held) == 40 and min(held) >= min(*sizes, 40 // len(parts))
    assert torch.equal(sampled(fed, 10**6), torch.arange(fed.num_params))


def test_values_scores_and_states_are_those_of_the_round(course):
    fed, algorithm, seen = course
    trace, where = seen[-1][1].trace, sampled(fed, 40)
    states = set()
    for t, (before, after, notes, clients) in enumerate(seen):
        server, client = masks_of(algorithm, fed, before)
        assert torch.equal(trace.value[t, 0], after.shared[where])
        assert torch.equal(trace.score[t, 0], after.server.score[where])
        assert torch.equal(trace.state[t, 0] != FROZEN, server[where])
        assert torch.equal(trace.state[t, 0] == PROBING, before.server.probe[where])
        if 0 in clients:
            assert torch.equal(trace.value[t, 1], notes["trained"][clients.index(0)][where])
            assert torch.equal(trace.state[t, 1] != FROZEN, client[0][where])
        else:
            assert trace.value[t, 1].isnan().all()
        for place, part in enumerate(layers(fed.layout).values()):
            frozen = trace.frozen[t, :, place]
            assert int(frozen[0]) == int((~server[part]).sum())
            assert [int(frozen[1 + k]) for k in clients] == [int((~client[k, part]).sum()) for k in clients]
        states |= set(trace.state[t].flatten().tolist())
    assert states == {ACTIVE, FROZEN, PROBING}, "the example shows all of them"


def test_unmoved_entries_are_those_with_windows_of_zeros():
    """Windows longer than a round are kept, so the test can read them: frozen, with records, and all records 0."""
    fed, algorithm = fed_of(), StarPFL(**EAGER, **SHORT | {"history_len_local": 3}, probe=40)
    seen = steps(algorithm, fed)
    trace = seen[-1][1].trace
    for t, (_, after, _, _) in enumerate(seen):
        parties = zip([after.server, *after.clients], [after.window, *after.windows], strict=True)
        dead = [~e.trained & (w.count > 0) & (w.values == 0).all(0) for e, w in parties]
        assert trace.unmoved[t].tolist() == [int(one.sum()) for one in dead]
    frozen = trace.frozen.sum(2)
    for counts in (trace.unmoved, frozen - trace.unmoved):
        assert counts[:, 0].any() and counts[:, 1:].any(), "the example has both, on the server and on clients"


def test_waits_and_scores_are_counts(course):
    fed, _, seen = course
    for t, (_, after, _, _) in enumerate(seen):
        trace = seen[-1][1].trace
        assert trace.waits[t].sum(1).tolist() == [fed.num_params, fed.num_clients * fed.num_params]
        assert int(trace.waits[t, 0, 0]) == int((after.server.interval == 1).sum())
        judged = [(e.trained & (e.count >= 2) & (e.score > 0)) for e in after.clients]
        assert int(trace.scores[t, 1].sum()) == sum(int(one.sum()) for one in judged)
        above = sum(int((e.score[on] >= 0.5).sum()) for e, on in zip(after.clients, judged, strict=True))
        assert int(trace.scores[t, 1, BINS // 2 :].sum()) == above


def test_the_rank_correlation_equals_that_of_scipy(course):
    fed, _, seen = course
    for _, after, notes, clients in seen:
        for place, k in enumerate(clients):
            entries = after.clients[k]
            on = entries.trained & (entries.count >= 2) & (entries.score > 0)
            size = notes["trained"][place][: fed.num_params][on].abs()
            expected = spearmanr(size, entries.score[on]).statistic
            assert float(notes["size_correlation"][place]) == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_the_stored_arrays_are_complete(course):
    fed, algorithm, seen = course
    kept = algorithm.artifacts(fed, seen[-1][1])
    assert kept["value"].shape == kept["state"].shape == (len(PARTS), 2, 40) and len(kept["entries"]) == 40
    assert sum(int(kept[name]) for name in kept if name.startswith("layer/")) == fed.num_params
    assert np.allclose(kept["score"], seen[-1][1].trace.score, atol=1e-5)
