"""What Star-PFL's probe recorded, as frames; the pair of Figure 1."""

import numpy as np
import pandas as pd
import pytest

from pfl_core.papers.star_pfl import traces
from pfl_core.papers.star_pfl.paper import PAPER
from pfl_core.runs import Record
from pfl_core.runs.execute import execute
from pfl_core.runs.store import Store

NAME = "01_stability_traces"
SETTINGS = {"rounds": 4, "history_len_global": 3, "history_len_local": 2, "threshold_local": 0.3}


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> list[Record]:
    store = Store(tmp_path_factory.mktemp("runs"))
    return [store.get(execute(spec, store).key) for spec in PAPER.specs(NAME, "ci", [0], SETTINGS)[:3]]


def test_traces_match_the_arrays_of_the_record(records):
    table = traces.sampled(records[0])
    one = table[(table["party"] == "client 0") & (table["round"] == 4)]
    assert one["value"].tolist() == np.array(records[0].arrays["value"])[3, 1].tolist()
    sizes = traces.layer_sizes(records[0])
    first = list(sizes)[0]
    assert (table.loc[table["entry"] < sizes[first], "layer"] == first).all() and sum(sizes.values()) == 1746


def example_lines():
    """Twenty entries at times 0, 1, 2, 3: two large ones, medium ones that drift or swing, small ones."""
    course = {0: (9, 9.3, 8.9, 9.2), 1: (8.5, 8.6, 8.5, 8.6), 2: (9, 9, 9, 9)}  # the last never moves
    course |= {k: (2, 2 + 0.1 * (-1) ** k, 2, 2 + 0.01 * k) for k in range(3, 13)}
    course |= {7: (2, 1.9, 1.8, 1.7), 8: (2, 1.7, 1.4, 1.1), 9: (2, 0.1, 3.9, 2.1)}
    course |= {k: (0.1, 0.2, 0.1, 0.2) for k in range(13, 20)}
    return pd.DataFrame(
        [{"entry": k, "layer": "fc1", "time": t, "value": x} for k, xs in course.items() for t, x in enumerate(xs)]
    )


def test_the_pair_is_a_large_steady_and_a_smaller_moving_entry():
    shapes = traces.line_shapes(example_lines())
    assert 2 not in shapes.index, "entries that never moved are left out"
    assert shapes.loc[8].tolist() == pytest.approx([1.55, 0.9, -0.9, 1.0])
    assert shapes.loc[0, "one_way"] == pytest.approx(0.2 / 1.0)
    assert traces.select_pair(shapes) == {"large, steady": 1, "smaller, moving": 8}
    norms = example_lines().assign(layer=lambda t: t["layer"].where(t["entry"] != 1, "bn1"))
    assert 1 not in traces.line_shapes(norms).index, "batch norm is left out"
    large, medium = traces.candidates(shapes)
    assert {0, 1} <= set(large.index) and medium["size"].max() <= large["size"].min()


def test_client_values_have_a_point_for_each_local_epoch(records):
    table, epochs = traces.epoch_by_epoch(records[2]), records[2].spec.train.epochs
    one = table[table["entry"] == records[2].arrays["entries"][7]]
    assert one["time"].tolist() == pytest.approx([t + e / epochs for t in range(4) for e in range(epochs + 1)])
    assert one["value"].tolist() == [row[7] for t in records[2].arrays["course"] for row in t]
    after = traces.sampled(records[1]).query("party == 'client 0'")
    same = after[after["entry"] == one["entry"].iloc[0]]["value"]
    assert one["value"].iloc[epochs :: epochs + 1].tolist() == same.tolist(), (
        "the same values as without recording epochs"
    )


def test_frozen_shares_by_reason_add_up(records):
    shares = traces.frozen(records[0])
    by_reason = shares[shares["part"].isin(["never moved", "cancelled out"])]
    of_all = by_reason.groupby(["client", "round"])["percent"].sum().unstack("client")  # [rounds, 1 + clients]
    assert np.allclose(of_all[0], 100 * (1 - records[0].array("active_share_global").ravel()), atol=1e-5)  # float32
    assert (
        np.allclose(of_all.drop(columns=0), 100 * (1 - records[0].array("active_share")))
        and of_all.to_numpy().max() > 0
    )
    sizes = traces.layer_sizes(records[0])
    layers = shares[shares["part"].isin(sizes)]
    entries = (layers["percent"] * layers["part"].map(sizes)).groupby([layers["client"], layers["round"]]).sum()
    assert np.allclose(entries / sum(sizes.values()), of_all.unstack())
    assert (shares["party"] == "server").equals(shares["client"] == 0) and (shares["percent"] >= 0).all()
