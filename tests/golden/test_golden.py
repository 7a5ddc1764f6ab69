"""Small runs whose numbers are kept in files: a change of results is noticed, and names the version to raise."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from torch import Tensor

from tests.golden.cases import KINDS
from tests.golden.methods import Played, build, parsed, played, table

GOLDEN = {name: kind.golden() for name, kind in KINDS.items()}


@pytest.mark.parametrize(
    ("kind", "case"), [pytest.param(kind, case, id=f"{kind}-{case}") for kind in KINDS for case in GOLDEN[kind]]
)
def test_results_are_as_they_were(kind, case):
    complaint = KINDS[kind].complaint(case, KINDS[kind].numbers(case))
    assert not complaint, complaint


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_lacks_a_case(kind):
    """Every registered method, reading, variant, partition and network, and whatever a stored record uses."""
    missing = set(KINDS[kind].wanted()) - GOLDEN[kind].keys()
    assert not missing, f"no golden numbers for {sorted(missing)}: run `make golden`"


# ---- do the cases show what they are for? ---------------------------------------------------------------------------

METHODS = {case: parsed(case)[1] for case in GOLDEN["methods"]}


def of(*names: str, **without) -> pytest.MarkDecorator:
    """The cases of these methods, but for those whose options have one of these values."""
    cases = [
        case
        for case, config in METHODS.items()
        if config["name"] in names and not any(config.get(option, ...) in values for option, values in without.items())
    ]
    return pytest.mark.parametrize("case", cases)


def test_every_choice_of_every_method_is_among_the_cases():
    """Yes or no, or one of several words. The instrument is left out: its options are Star-PFL's."""
    made = [build(config) for config in METHODS.values()]
    missing = []
    for name, cls in table().items():
        hints = get_type_hints(cls)
        for f in dataclasses.fields(cls):
            choices = (True, False) if hints[f.name] is bool else get_args(hints[f.name])
            if (hints[f.name] is bool or get_origin(hints[f.name]) is Literal) and name != "star_pfl_likeness":
                seen = {getattr(one, f.name) for one in made if type(one) is cls}
                missing += [f"{name}: {f.name}={choice!r}" for choice in choices if choice not in seen]
    refused = {f"{name}: keep_momentum=True" for name in ("fedpac", "pfedme", "scaffold")}
    assert set(missing) == refused


def masks(run: Played, name: str) -> list[Tensor]:
    """[N, ...] of each client before the first round and after each."""
    d = run.fed.num_params
    if name in ("fedselect", "fedselect_gradltn"):
        return [state.personal[:, :d] for state in run.states]
    if name == "lotteryfl":
        return [state.active[:, :d] for state in run.states]
    if name == "fedmask":
        fields = run.algorithm.masked(run.fed)
        return [torch.stack([run.algorithm.mask(fields, row) for row in state.scores]) for state in run.states]
    return [torch.stack([party.active for party in (state.server, *state.clients)]) for state in run.states]


@of("fedselect_gradltn", "lotteryfl", "fedmask")
def test_masks_move_and_are_neither_empty_nor_full(case):
    first, *_, last = masks(played(case), METHODS[case]["name"])
    assert not torch.equal(first, last)
    assert last.any() and not last.all()


@of("fedselect", alpha=(0.0,), masks=("layers", "random", "common_random"))
def test_fedselect_grows_up_to_its_limit(case):
    run = played(case)
    shares = [float(mask.float().mean()) for mask in masks(run, "fedselect")]
    assert shares[0] == 0 < shares[-1] and shares == sorted(shares)
    if run.algorithm.mask_update_every == 3:
        assert len(set(shares)) >= 3  # two growths, and a round without one between
        assert shares[-1] == shares[-2]
    elif run.algorithm.p >= 0.2 and run.algorithm.alpha < 1 and METHODS[case].get("rate_basis") is None:
        assert shares[-1] == shares[-2]


@of("star_pfl", threshold_local=(None,))
def test_star_pfl_freezes_and_thaws(case):
    run = played(case)
    trained = torch.stack([torch.stack([c.trained for c in state.clients]) for state in run.states[1:]])  # [T, N, d]
    before, after = trained[:-1], trained[1:]
    assert (before & ~after).any() and (before & after).any()
    assert (~before & after).any() == run.algorithm.thaw


@of("star_pfl", threshold_global=(None,), threshold_local=(None,), min_history=("full",))
def test_star_pfls_server_freezes_and_thaws(case):
    run = played(case)
    trained = torch.stack([state.server.trained for state in run.states[1:]])  # [T, d]
    before, after = trained[:-1], trained[1:]
    assert (before & ~after).any() and (before & after).any()
    assert (~before & after).any() == run.algorithm.thaw


@of("fedpews", "fedpews_fixed", tau=(0.0, 0.05))  # 0.05 of these few rounds is none
def test_warm_up_ends_and_its_masks_are_partial(case):
    run, warm = played(case), played(case).algorithm.warmup_rounds(played(case).fed)
    covered, selected = (run.history.series[name] for name in ("params_covered", "selected"))
    assert covered[0] == selected[0] == list(range(1, warm + 1)) and 1 <= warm < run.fed.rounds
    assert all(share < 1 for row in selected[1] for share in row if share == share)
    if METHODS[case]["name"] == "fedpews":
        assert not torch.equal(run.states[0].score, run.states[warm].score)


@of("pfedgate", keep_ratio=(1.0,), mask=("small_blocks", "random"))
def test_pfedgate_drops_blocks_and_its_masks_differ(case):
    notes = played(case).history.series
    assert all(kept < 1 for row in notes["kept_ratio"][1] for kept in row if kept == kept)
    assert max(notes["distinct_masks"][1]) > 1


def test_lotteryfl_prunes_down_to_its_target():
    run = played('dense {"name": "lotteryfl"}')
    density = torch.stack([state.density for state in run.states])  # [T, N]
    assert (density.diff(dim=0) < 0).any(1).sum() >= 3 and float(density[-1].min()) <= run.algorithm.target_density
