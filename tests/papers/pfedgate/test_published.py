"""Recomputes the numbers of pFedGate's claims from the CSV files of its tables."""

import pandas as pd
import pytest

from pfl_core.papers.pfedgate.paper import PAPER
from pfl_core.study.published import parse_variant
from tests.study.recomputed import grade, says

SETS = ["EMNIST", "FEMNIST", "CIFAR10", "CIFAR100"]


def cells(number: int) -> pd.DataFrame:
    """A table with a column for each field of the variant; `row` is the method, with s for pFedGate."""
    frame = PAPER.table(number)
    fields = pd.DataFrame([parse_variant(text) for text in frame["variant"]], index=frame.index)
    frame = pd.concat([frame, fields], axis=1)
    row = frame["method"].where(frame["method"] != "pFedGate", "s=" + frame.get("s", frame["value"]).astype(str))
    return frame.assign(row=row.str.removesuffix(".0"))


def wide(number: int, metric: str, index="row", columns="dataset", **where) -> pd.DataFrame:
    frame = cells(number).query(f"metric == '{metric}'")
    for name, value in where.items():
        frame = frame[frame[name] == value]
    return frame.pivot(index=index, columns=columns, values="value")


PFEDGATE = ["s=1", "s=0.5", "s=0.3"]


def says_of(number, holds, *parts):
    says(PAPER, number, holds, *parts)


def listed(values, spec=".2f", sep=", "):
    return sep.join(format(value, spec) for value in values)


@pytest.mark.parametrize(("claim", "metric"), [(1, "acc_mean"), (2, "acc_bottom_decile")])
def test_1_and_2_every_baseline(claim, metric):
    frame = wide(1, metric)
    base = frame.drop(PFEDGATE)
    lead = (frame.loc[PFEDGATE, SETS] - base[SETS].max()).stack()
    (row, name), best, average = lead.idxmin(), base["Average"].idxmax(), base["Average"].max()
    says_of(
        claim,
        grade((lead > 0).all()),
        f"averages {listed(frame.loc[PFEDGATE, 'Average'])} against {average:.2f} ({best}, the best baseline)",
        f"{lead.min():+.2f} ({name}, {row})",
    )


def test_3_achieved_sparsity():
    share = wide(1, "sparsity_achieved")["Average"]
    holds = grade(share["s=0.5"] <= 0.5, share["s=0.3"] <= 0.3)
    says_of(3, holds, f"{share['s=0.5']:.2f} at s=0.5 and {share['s=0.3']:.2f} at s=0.3")


def tenth() -> dict[str, float]:
    """Mean accuracy at s = 0.1, where some table has it."""
    local = cells(10).query("metric == 'acc_mean' and model == 'local' and s == 0.1")["value"].item()
    return {"EMNIST": local, "CIFAR10": wide(12, "acc_mean", "s", "alpha").loc[0.1, 0.4]}


def test_4_and_5_smaller_budgets():
    frame = wide(1, "acc_mean")
    cost = (frame.loc["s=1"] - frame.loc["s=0.3"])[SETS]
    small, full, fedavg = tenth(), frame.loc["s=1"], frame.loc["FedAvg"]
    says_of(
        4,
        grade(all(full[name] - small[name] > cost.max() for name in small)),
        f"s=0.3 costs at most {cost.max():.2f} points ({cost.idxmax()})",
        f"s=0.1 has {small['EMNIST']:.2f} against {full['EMNIST']:.2f} at s=1 (EMNIST), "
        f"{small['CIFAR10']:.2f} against {full['CIFAR10']:.2f} (CIFAR10)",
    )
    texts = (f"{small[name]:.2f} against {fedavg[name]:.2f} ({name})" for name in small)
    says_of(5, grade(all(small[name] > fedavg[name] for name in small)), *texts)


def test_7_and_8_time_and_memory():
    time, memory = (wide(2, metric, columns="batch") for metric in ("time_ms", "peak_mem_mb"))
    faster, smaller = (frame.loc["s=0.3"] / frame.loc["FedAvg"] for frame in (time, memory))
    text = f"at batch 128, {faster[128]:.2f} of the time and {smaller[128]:.2f} of the memory"
    says_of(7, grade((faster < 1).all(), (smaller < 1).all()), text)
    times = time.loc["FedEM"] / time.loc["FedAvg"]
    says_of(8, grade((times.round() == 3).all()), f"{listed(times)} times at batch 32, 128, 512")


def test_10_and_11_gate_ablation():
    accuracy, rounds = (wide(4, m, "gate")[["EMNIST", "CIFAR100"]] for m in ("acc_mean", "rounds_to_80pct_relative"))
    lost = accuracy.loc["full"] - accuracy
    parts = ["no_sigmoid", "no_pre_norm", "no_post_norm"]
    names = ("without sigmoid", "norm before", "norm after")
    costs = (f"{name} {listed(lost.loc[part], sep=' and ')}" for name, part in zip(names, parts, strict=True))
    slower = ", ".join(listed(rounds.loc[part], sep=" and ") for part in parts)
    ordered = [frame[name][parts].is_monotonic_decreasing for frame in (lost, rounds) for name in frame]
    assert ordered == [True, True, True, False]  # all but the rounds on CIFAR100
    says_of(10, grade(*ordered), "EMNIST and CIFAR100", *costs, f"80 % of the best {slower}", "rounds on CIFAR100")
    once = "client_wise"
    says_of(
        11,
        grade((rounds.loc[once] < 1).all(), (lost.loc[once] > 0).all()),
        f"80 % of the best {listed(rounds.loc[once], sep=' and ')}",
        f"accuracy lost {listed(lost.loc[once], sep=' and ')} (EMNIST, CIFAR100)",
    )


def test_12_participation():
    metrics, names = ["acc_mean", "acc_bottom_decile"], ["FEMNIST", "CIFAR10"]
    printed = [wide(3, f"{metric}_drop")["Average"] for metric in metrics]
    drops = [(wide(1, metric) - wide(3, metric))[names].dropna().mean(axis=1) for metric in metrics]

    def text(kind, digits):
        most = listed((drop[PFEDGATE].max() for drop in kind), f".{digits}f", " and ")
        return listed((drop["FedAvg"] for drop in kind), f".{digits}f", " and "), f"at most {most}"

    for pair in zip(printed, drops, strict=True):
        off = (pair[0] - pair[1]).abs()
        assert off.max() < 0.011 or set(off.index[off > 0.011]) == {"FedAvg", "s=1", "s=0.5"}  # as the note says
    less = [drop[PFEDGATE].max() < drop["FedAvg"] for drop in (*printed, *drops)]
    says_of(12, grade(*less), *text(printed, 2), *text([drop.round(4) for drop in drops], 3))


def test_the_note_on_table_3():
    drop = (wide(1, "acc_mean") - wide(3, "acc_mean"))[["FEMNIST", "CIFAR10"]].mean(axis=1)
    note = PAPER.table(3).query("metric == 'acc_mean_drop'")["note"].iloc[0]
    texts = f"{drop['FedAvg']:.2f} (FedAvg)", f"{drop['FedEM']:.3f} (FedEM)", listed(drop[PFEDGATE].round(4), ".3f")
    assert all(text in note for text in texts)


def test_13_novel_clients():
    gap = wide(8, "gap")
    recomputed = wide(8, "acc_mean_participating") - wide(8, "acc_mean_novel")
    assert (gap - recomputed).abs().max().max() < 1e-9
    pfedgate, others = gap.loc[PFEDGATE], gap.loc[["FedAvg", "FedEM"]]
    values = {name: (listed(pfedgate[name]), *others[name]) for name in ("FEMNIST", "CIFAR10")}
    says_of(
        13,
        grade((pfedgate < 1).all().all(), (pfedgate.max() < others.min()).all()),
        "s=1, s=0.5, s=0.3",
        "FEMNIST {} against {:.2f} (FedAvg) and {:.2f} (FedEM)".format(*values["FEMNIST"]),
        "CIFAR10 {} against {:.2f} and {:.2f}".format(*values["CIFAR10"]),
    )


def test_14_rounds():
    rounds = wide(9, "rounds_to_90pct")
    order = ["s=1", "s=0.5", "FedAvg", "s=0.3"]
    rising = [rounds.loc[order, name].is_monotonic_increasing for name in SETS]
    texts = (f"{name} {listed(rounds.loc[[*order, 'FedEM'], name], '.1f')}" for name in SETS)
    says_of(14, grade(*rising), "s=1, s=0.5, FedAvg, s=0.3, FedEM", *texts)


def test_15_local_and_global():
    gaps = []
    for metric in ("acc_mean", "acc_bottom_decile"):
        both = wide(10, metric, "s", "model")
        gap = (both["local"] - both["global"]).sort_index(ascending=False)
        printed = wide(10, f"{metric}_local_global_gap", "s")["EMNIST"]
        assert (gap - printed).abs().max() < 1e-9
        gaps.append(gap)
    text = f"{listed(gaps[0])} (mean) and {listed(gaps[1])} (bottom decile)"
    says_of(15, grade(*((gap > 5).all() for gap in gaps)), "s=1, s=0.5, s=0.3, s=0.1", text)


def test_16_local_epochs():
    few, eight = [], []
    for metric in ("acc_mean", "acc_bottom_decile"):
        change = (lambda frame: frame.sub(frame[1.0], axis=0))(wide(11, metric, "s", "step"))
        few.append(change[[2.0, 4.0]].stack())
        eight.append(-change[8.0])
    says_of(
        16,
        grade(*(part.abs().max() < 1 for part in few), *(part.round().isin([2, 3]).all() for part in eight)),
        f"2 or 4 epochs change the mean by {few[0].min():.2f} to {few[0].max():+.2f}",
        f"bottom decile by {few[1].min():.2f} to {few[1].max():+.2f}",
        f"8 epochs cost {eight[0].min():.2f} to {eight[0].max():.2f} and {eight[1].min():.2f} to {eight[1].max():.2f}",
    )


def test_17_skew():
    falls, texts = [], []
    for metric in ("acc_mean", "acc_bottom_decile"):
        frame = wide(12, metric, "s", "alpha").sort_index(ascending=False)[[0.01, 0.1, 0.2, 0.4]]
        falls += [frame.loc[s].is_monotonic_increasing for s in frame.index]
        texts.append(listed(frame[0.4] - frame[0.01]))
    parts = f"mean {texts[0]}", f"bottom decile {texts[1]}"
    says_of(17, grade(*falls), "Dirichlet 0.4 to 0.01", "s=1, s=0.5, s=0.3, s=0.1", *parts)


def test_18_blocks():
    gate = cells(13).query("method == 'pFedGate' and metric == 'acc_mean'")
    frame = gate.pivot(index=["s", "dataset"], columns="B", values="value")
    costs = {b: frame[5.0] - frame[b] for b in (2.0, 10.0)}
    changes, metrics = {}, ("acc_mean", "acc_bottom_decile")
    for name, rows in (("B=5", "B == 5"), ("FedMask", "method == 'FedMask'")):
        part = cells(13).query(rows)
        values = pd.concat([part[part["metric"] == metric] for metric in metrics])
        values = values.pivot(index=["metric", "dataset"], columns="s", values="value")
        printed = part.loc[part["metric"].str.contains("change"), "value"].mean()
        changes[name] = round(printed, 4), round((values[0.3] - values[0.5]).mean(), 4)
    assert changes["B=5"][0] == changes["B=5"][1]
    says_of(
        18,
        grade(all((cost > 0).all() for cost in costs.values()), changes["B=5"][1] > changes["FedMask"][1]),
        f"B=2 costs {costs[2.0].min():.2f} to {costs[2.0].max():.2f} points of the mean",
        f"B=10 {costs[10.0].min():.2f} to {costs[10.0].max():.2f}",
        f"from s=0.5 to s=0.3, B=5 changes by {changes['B=5'][0]:+.2f} on average",
        "FedMask by {:.2f} as printed, {:.2f} from its accuracies".format(*changes["FedMask"]),
    )


def test_the_notes_on_fedmask():
    for metric, instead in (("acc_mean", 70.54), ("acc_bottom_decile", 61.37)):
        first, last = wide(1, metric)["CIFAR10"], cells(13).query(f"method == 'FedMask' and metric == '{metric}'")
        assert first["FedMask"] == first["FedEM"]
        assert last.query("dataset == 'CIFAR10' and s == 0.5")["value"].item() == instead
    worst = cells(13).query("method == 'FedMask' and metric == 'acc_bottom_decile' and dataset == 'CIFAR10'")
    assert round(worst.set_index("s")["value"][0.3] - worst.set_index("s")["value"][0.5], 2) == -2.32
