"""How a run's data and setting are named."""

from __future__ import annotations

import dataclasses
import re

from pfl_core.data.dataset import UNOFFICIAL
from pfl_core.runs import Record, RunSpec
from pfl_core.study.names import DATA_SETS, plain

GENERATED = "generated here"  # how the description of data begins that the paper does not publish


def data_name(record: Record) -> str:
    """The data that the run used: the data set's description if it has one, else its name."""
    return re.sub("^our generator:", f"{GENERATED}:", record.about) or record.spec.data["name"]  # older records


def short_data(setting: str, data: str) -> str:
    """The data of runs in short, from the setting's name and ``data_name``, or several of those: "CIFAR-10"."""
    base = setting.partition(", ")[0]
    names = [base] if base in DATA_SETS else re.split(r" and (?=\w+:)", data)
    short = (plain(re.split("[:(,]", name)[0].strip()).replace(GENERATED, f"data {GENERATED}") for name in names)
    return " and ".join(dict.fromkeys(short))


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
