"""What a run is called after: its data, and its setting under their name."""

from __future__ import annotations

from pfl_core.runs import Record, RunSpec


def data_name(record: Record) -> str:
    """What the run was really made on: the set's own text if it has one, else its name."""
    return record.about or record.spec.data["name"]


def dataset(spec: RunSpec) -> str:
    """The data set as the papers' tables name it: corrupted CIFAR-10 is a set of its own."""
    return spec.data["name"] + ("_c" if spec.data.get("corrupt") else "")


def where(record: Record) -> str:
    """The setting under the name of the data that were really used: "digits, sampled", where it was made for CIFAR-10.

    A rate that is tried (", lr=") is no setting of its own.
    """
    _, comma, rest = record.spec.setting.partition(", lr=")[0].partition(", ")
    return dataset(record.spec) + comma + rest
