"""Star-PFL against the plain reference, for several combinations of options."""

import pytest
import torch

from pfl_core.algorithms.star_pfl.method import StarPFL
from tests.algorithms.star_pfl.plain import EAGER, SHORT, Side, fed_of, plain_round, steps
from tests.algorithms.two_nets import NETS, simplest_and_fullest

F64 = torch.float64

READINGS = {
    "paper, windows filled anew": StarPFL(**EAGER, **SHORT),
    "paper, windows carried on": StarPFL(**EAGER, history_len_local=5, history_len_global=4),
    "authors' code": StarPFL.reading("authors_code", **EAGER, **SHORT, record_epochs=3),
    "authors' code, T = 0": StarPFL.reading("authors_code", threshold_global=0, threshold_local=0, **SHORT),
    "active mean, full history": StarPFL(**EAGER, **SHORT, masked_aggregation="active_mean", min_history="full"),
    "active weighted, floor": StarPFL(
        **EAGER, **SHORT, masked_aggregation="active_weighted", interval_halving="floor", stability_floor_quantile=0.1
    ),
    "skip, carried on": StarPFL(**EAGER, **SHORT, zero_update_policy="skip", train_mask_scope="weights"),
    "after check, two records": StarPFL(**EAGER, **SHORT, upload_mask_timing="after_check", min_history=2),
}


@simplest_and_fullest
@pytest.mark.parametrize("reading", READINGS)
def test_against_plain_pytorch(name, reading):
    """Seven rounds with full or partial participation. A bias before batch norm is left out: it has gradient 0."""
    algorithm, fed, model = READINGS[reading], fed_of(name, dtype=F64, epochs=3), NETS[name][0]()
    server, sides = Side(algorithm, fed.layout, False), [Side(algorithm, fed.layout, True) for _ in range(4)]
    noisy = fed.layout.mask(lambda f: f.name == "conv1.bias" and "batch norm" in name)
    sure = ~noisy[: fed.num_params]
    shared, frozen = fed.theta0, 0
    for t, (_, state, notes, clients) in enumerate(steps(algorithm, fed)):
        shared, sent, trained = plain_round(algorithm, fed, model, shared, server, sides, clients, t)
        torch.testing.assert_close(notes["trained"][:, ~noisy], trained[:, ~noisy])
        torch.testing.assert_close(state.shared[~noisy], shared[~noisy])
        if not noisy.any():
            assert notes["upload"].tolist() == sent
        for side, entries in zip([server, *sides], [state.server, *state.clients], strict=True):
            for mine, plain in (
                (entries.active, [e.M for e in side.entries]),
                (entries.probe, [e.probing for e in side.entries]),
                (entries.interval, [e.F for e in side.entries]),
                (entries.frozen, [e.L for e in side.entries]),
            ):
                assert torch.equal(mine[sure], torch.tensor(plain)[sure].to(mine)), (t, side.local)
        frozen += sum(int((~entries.trained)[sure].sum()) for entries in (state.server, *state.clients))
    assert frozen > fed.num_params // 2
