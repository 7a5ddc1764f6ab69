"""Data frames from records, and labels of a run's data and setting."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

import pandas as pd

from pfl_core.data.dataset import UNOFFICIAL
from pfl_core.runs import Record, RunSpec

GENERATED = "generated here"  # how the description of data begins that the paper does not publish
REFERENCES = ("local", "fedavg", "fedavg_ft")  # methods that every comparison is read against


def data_name(record: Record) -> str:
    """The data that the run used: the data set's description if it has one, else its name."""
    return re.sub("^our generator:", f"{GENERATED}:", record.about) or record.spec.data["name"]  # older records


def in_brief(data: str) -> str:
    """A description of data without what follows GENERATED."""
    return GENERATED if data.startswith(GENERATED) else data


def published_set(record: Record) -> str:
    """``dataset``, marked if the file has other images than the published set, so that it matches no table cell."""
    return dataset(record.spec) + (f" ({UNOFFICIAL})" if UNOFFICIAL in record.about else "")


def dataset(spec: RunSpec) -> str:
    """The data set's name in the papers' tables, where corrupted data count as a separate set: "cifar10_c"."""
    return spec.data["name"] + ("_c" if spec.data.get("corrupt") else "")


def setting_label(record: Record) -> str:
    """The setting's name with the data set that was used: "digits, sampled" for "cifar10, sampled" run on digits."""
    _, comma, rest = record.spec.setting.partition(", ")
    return dataset(record.spec) + comma + rest


def method_fields(spec: RunSpec) -> dict[str, object]:
    """All fields of the method, including defaults."""
    return dataclasses.asdict(spec.build_method())


def curves(records: Iterable[Record]) -> pd.DataFrame:
    """A row per run, round and metric: accuracies after aggregation and after local training (``_trained``), shares,
    training loss, upload; means over clients.
    """
    frames = []
    for record in records:
        # a row per round, a column per metric; clients are averaged
        frame = record.curve().join(record.curve(trained=True).add_suffix("_trained"))
        for metric in ("personal_share", "movable_share", "train_loss", "upload"):
            if metric in record.series:
                frame[metric] = record.values(metric).mean(axis=1)
        spec = record.spec
        tags = {"method": spec.method["name"], **method_fields(spec), "seed": spec.seed, "setting": spec.setting}
        tags["where"] = setting_label(record)
        frames.append(_tagged(frame.reset_index().melt("round", var_name="metric"), tags))
    return pd.concat(frames, ignore_index=True)


def clients(records: Iterable[Record]) -> pd.DataFrame:
    """A row per run and client: accuracy (percent) in the last round, and where (``setting_label``)."""
    frames = []
    for record in records:
        tags = {"method": record.spec.method["name"], **method_fields(record.spec), "seed": record.spec.seed}
        tags["where"] = setting_label(record)
        frames.append(_tagged(record.final().rename("accuracy").rename_axis("client").reset_index(), tags))
    return pd.concat(frames, ignore_index=True)


def _tagged(frame: pd.DataFrame, tags: dict[str, object]) -> pd.DataFrame:
    """``frame`` with a constant column for each tag. A tuple is one value."""
    return frame.assign(**{name: [value] * len(frame) for name, value in tags.items()})


def same_end(table: pd.DataFrame, reference: str) -> list[str]:
    """The other labels whose final states are bitwise identical to those of ``reference`` for every common seed.

    Columns: label, seed, and state (hash of the final state). A label without a common seed is not listed.
    """
    states = table.pivot(index="seed", columns="label", values="state").dropna(subset=reference)
    others = states.drop(columns=reference)
    same = (others.eq(states[reference], axis=0) | others.isna()).all() & others.notna().any()
    return [label for label in dict.fromkeys(table["label"]) if same.get(label, False)]
