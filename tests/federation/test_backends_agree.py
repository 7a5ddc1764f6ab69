"""Every method gives the same results whether clients train in one batched computation, one by one, or in threads."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pfl_core import Federation, Schedule, Split, Training, methods, run
from tests.algorithms.test_common import small
from tests.helpers import cnn, leaves, mlp, samples, without_times

F64 = torch.float64
NETS = {"mlp": (mlp, (6,)), "cnn": (lambda: cnn(bn=False), (1, 4, 4))}

federations = st.fixed_dictionaries(
    {
        "net": st.sampled_from(list(NETS)),
        "sizes": st.lists(st.integers(1, 13), min_size=2, max_size=4),  # at least a sample each
        "tests": st.lists(st.integers(0, 3), min_size=4, max_size=4),
        "participation": st.sampled_from([1.0, 0.6]),
        "training": st.fixed_dictionaries(
            {
                "partial_batch": st.sampled_from(["keep", "drop", "merge"]),
                "epochs": st.integers(1, 3),
                "batch_size": st.integers(2, 5),
                "momentum": st.sampled_from([0.0, 0.9]),
                "weight_decay": st.sampled_from([0.0, 0.1]),
                "clip_norm": st.sampled_from([None, 0.5]),
            }
        ),
    }
)


PLAIN = {"momentum": 0.0, "weight_decay": 0.0, "clip_norm": None}  # some methods take nothing else


def outcome(name: str, drawn: dict, **backend):
    """State, and history as tensors, after two rounds."""
    build, shape = NETS[drawn["net"]]
    splits = {
        split: Split.of([samples(n, shape, key=key + k) for k, n in enumerate(sizes)])
        for split, sizes, key in (("train", drawn["sizes"], 0), ("test", drawn["tests"][: len(drawn["sizes"])], 100))
    }
    method, schedule = small(name), Schedule(2, participation=drawn["participation"])
    fed = Federation(
        build(), splits, seed=0, rounds=2, train=Training(lr=0.1, **drawn["training"]), dtype=F64, **backend
    )
    try:
        state, history = run(method, fed, schedule)
    except ValueError as refused:
        if drawn["training"] | PLAIN == drawn["training"]:
            raise
        assert "leave" in str(refused), refused
        return outcome(name, drawn | {"training": drawn["training"] | PLAIN}, **backend)
    return state, {n: torch.tensor(values, dtype=F64) for n, (_, values) in without_times(history).items()}


@pytest.mark.parametrize("name", sorted(methods()))
@settings(
    max_examples=6, deadline=None, derandomize=True, phases=(Phase.generate,), suppress_health_check=list(HealthCheck)
)
@given(drawn=federations)
def test_batched_threads_and_loop_agree(name, drawn):
    loop = outcome(name, drawn, batched=False)
    for other in (outcome(name, drawn, batched=True), outcome(name, drawn, batched=False, threads=3)):
        for (at, expected), (_, found) in zip(leaves(loop[0]), leaves(other[0]), strict=True):
            if isinstance(expected, torch.Tensor) and expected.is_floating_point():
                torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10, equal_nan=True, msg=f"{at}")
        assert loop[1].keys() == other[1].keys()
        for metric, values in loop[1].items():  # sums of losses are in single precision
            torch.testing.assert_close(other[1][metric], values, rtol=1e-5, atol=1e-5, equal_nan=True, msg=metric)
