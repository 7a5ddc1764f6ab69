"""Partitions from a CSV file, and how the file's content counts in a run's key."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pfl_core.cli import main
from pfl_core.cli.command import parser
from pfl_core.cli.specs import variations
from pfl_core.data import Dataset
from pfl_core.partition import partition
from pfl_core.runs import RunSpec
from tests.helpers import one_line


def write(folder, lines, name="clients.csv") -> str:
    (folder / name).write_text("\n".join(["index,client", *lines]) + "\n", encoding="utf-8")
    return str(folder / name)


def test_each_sample_goes_to_the_client_of_its_line(pool, tmp_path):
    data = pool([6, 6], [4, 4])
    file = write(tmp_path, [f"{i},{i % 3}" for i in reversed(range(20))])
    part = partition("csv", data, 3, 0, file=file)
    for k in range(3):
        mine = torch.arange(20)[torch.arange(20) % 3 == k]
        assert torch.equal(part.train[k], mine[~data.is_test[mine]])
        assert torch.equal(part.test[k], mine[data.is_test[mine]])
    joined = partition("csv", data, 3, 0, file=file, pool="joined", test=0.5)
    assert all(
        (torch.cat([a, b]) % 3 == k).all() for k, (a, b) in enumerate(zip(joined.train, joined.test, strict=True))
    )
    assert sum(map(len, joined.test)) == pytest.approx(10, abs=3) and joined.joined


def test_names_are_numbered_in_their_order(pool, tmp_path):
    file = write(tmp_path, [f"{i},{('west', 'east', '10')[i % 3]}" for i in range(20)])
    part = partition("csv", pool([6, 6], [4, 4]), 3, 0, file=file)
    assert [int(index[0]) % 3 for index in part.train] == [2, 1, 0]  # "10" < "east" < "west"


def test_samples_that_the_file_leaves_out_are_not_used(pool, tmp_path):
    data = pool([6, 6], [4, 4])
    file = write(tmp_path, [f"{i},{i % 2}" for i in range(20) if i not in (3, 17)])
    for options in ({}, {"pool": "joined", "test": 0.5}):
        part = partition("csv", data, 2, 0, file=file, **options)
        assert sorted(torch.cat([*part.train, *part.test]).tolist()) == [i for i in range(20) if i not in (3, 17)]


@pytest.mark.parametrize("options", [{"test_share": 0.5}, {"test": (np.zeros((4, 2)), [0, 1] * 2)}])
def test_samples_have_the_users_numbers(tmp_path, options):
    """Sample i has the features (i, 0) and belongs to client i // 10."""
    x = np.stack([np.arange(40), np.zeros(40)], axis=1)
    data = Dataset.from_arrays(x, np.arange(40) % 2, **options)
    lines = [f"{i},{i // 10}" for i in range(40)] + [f"{40 + i},{i}" for i in range(len(data.y) - 40)]
    part = partition("csv", data, 4, 0, file=write(tmp_path, lines))
    for k in range(4):
        assert {int(i) // 10 for i in data.x[part.train[k], 0]} == {k}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "has no line below its header"),
        ([f"{i},{i % 2}" for i in [*range(20), 3]], "line 22: index 3 is there twice"),
        ([f"{i},{i % 2}" for i in [*range(19), 20]], "line 21: index '20' is not a sample; the data set has 0..19"),
        ([f"{i},{i % 2}" for i in [*range(19), -1]], "line 21: index '-1' is not a sample"),
        ([*(f"{i},{i % 2}" for i in range(19)), "x,0"], "line 21: index 'x' is not a sample"),
        ([f"{i},{i % 2}" for i in [*range(19), 1.5]], "line 21: index '1.5' is not a sample"),
        ([f"{i},{i % 3}" for i in range(20)], "has 3 clients, the run 2"),
        ([f"{i},{i % 2 + 1}" for i in range(20)], "has clients up to 2; number them 0..1, or use names"),
        ([f"{i},{'' if i == 4 else i % 2}" for i in range(20)], "line 6: '4,' is not an index and a client"),
        (["1,2,3,4", "5,6"], "line 2: '1,2,3,4' is not an index and a client"),
    ],
)
def test_a_wrong_file_is_one_clear_line(pool, tmp_path, lines, message):
    file = write(tmp_path, lines)
    with one_line(f"partition csv: .*({message})"):
        partition("csv", pool([6, 6], [4, 4]), 2, 0, file=file)


def test_other_columns_and_an_empty_file_are_refused(pool, tmp_path):
    for text, message in (("sample,client\n0,0\n", "has the columns sample, client; expected"), ("", "not a CSV file")):
        (tmp_path / "x.csv").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            partition("csv", pool([6, 6], [4, 4]), 2, 0, file=str(tmp_path / "x.csv"))


def spec(file: str) -> RunSpec:
    return RunSpec(method={"name": "fedavg"}, partition={"name": "csv", "file": file}, clients=2)


def test_the_content_of_the_file_is_in_the_key_and_its_path_is_not(pool, tmp_path, monkeypatch):
    file = write(tmp_path, [f"{i},{i % 2}" for i in range(20)])
    first = spec(file)
    moved = write(tmp_path, [f"{i},{i % 2}" for i in range(20)], "moved.csv")
    assert spec(moved).key() == first.key()
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    assert spec("moved.csv").key() == first.key(), "in the data folder"
    write(tmp_path, [f"{i},{(i + 1) % 2}" for i in range(20)])
    assert spec(file).key() != first.key()
    with pytest.raises(ValueError, match="clients.csv has changed since the run was described"):
        partition("csv", pool([6, 6], [4, 4]), 2, 0, **{k: v for k, v in first.partition.items() if k != "name"})


def test_a_stored_run_is_read_without_its_file(tmp_path):
    first = spec(write(tmp_path, [f"{i},{i % 2}" for i in range(20)]))
    (tmp_path / "clients.csv").unlink()
    assert RunSpec.from_json(first.to_json()).key() == first.key()
    with pytest.raises(ValueError, match="there is no file .*clients.csv, neither here nor in"):
        spec(str(tmp_path / "clients.csv"))


def test_on_the_command_line(tmp_path):
    file = write(tmp_path, ["0,0", "1,1"], "1e5")  # a name that could be a number
    args = parser().parse_args(["run", "fedavg", "--clients", "2", "--partition", f"csv:{file}"])
    ((made,),) = (row.specs for row in variations(args, ["fedavg"]))
    assert made.partition["file"] == file and len(made.partition["sha256"]) == 64


def test_without_a_number_of_clients_those_of_the_file_are_taken(tmp_path):
    file = write(tmp_path, [f"{i},{'abc'[i % 3]}" for i in range(30)])
    args = parser().parse_args(["run", "fedavg", "--partition", f"csv:{file}"])
    ((made,),) = (row.specs for row in variations(args, ["fedavg"]))
    assert made.clients == 3


@pytest.mark.parametrize(
    ("more", "clients"), [([], 3), (["--set", "partition.order=[2,0]"], 2), (["--clients", "7"], 7)]
)
def test_without_a_number_of_clients_by_source_takes_all_sources(tmp_path, monkeypatch, more, clients):
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    sites = ["Oslo", "Bern", "Rome", "Bern"] * 10
    Dataset.from_arrays(np.zeros((40, 2, 2)), np.arange(40) % 2, test_share=0.5, source=sites).save("mine")
    args = parser().parse_args(["run", "fedavg", "--data", "mine", "--partition", "by_source", *more])
    ((made,),) = (row.specs for row in variations(args, ["fedavg"]))
    assert made.clients == clients


def test_by_source_of_data_without_sources_is_refused(capsys):
    assert main(["run", "fedavg", "--partition", "by_source"]) == 2
    assert "by_source: digits has one source; choose another partition" in capsys.readouterr().err


def test_without_a_file_the_option_is_named():
    with pytest.raises(ValueError, match="csv.*file"):
        RunSpec(method={"name": "fedavg"}, partition={"name": "csv"})
