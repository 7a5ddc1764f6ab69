"""One run: continued after a kill or from a shared prefix, its results are identical to an undisturbed run."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import io
import json
import math
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pfl_core import State, engine, methods
from pfl_core import algorithm as algorithm_module
from pfl_core.algorithms.momentum import MovingState
from pfl_core.data import Dataset
from pfl_core.deadline import TimeUpError
from pfl_core.partition import Partition
from pfl_core.runs import Record, RunSpec, Store, build, execute, read_record
from pfl_core.runs.execute import save_checkpoint, state_hash
from pfl_core.runs.prefix import path_of
from pfl_core.runs.task import Prefix
from pfl_core.study.labels import published_set
from pfl_core.training import Training
from tests.helpers import one_line
from tests.runs.conftest import bits
from tests.runs.outside import HERE, write_npz

execute_module = sys.modules[execute.__module__]
ROOT = Path(__file__).parents[2]


class Interrupted(Exception):
    """Stands for whatever ends a process in the middle of a run."""


@pytest.fixture
def always_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint after every round."""
    monkeypatch.setattr(execute_module, "CHECKPOINT_SECONDS", 0.0)


def interrupt_at(rounds: int) -> Callable[[int], None]:
    def on_round(done: int) -> None:
        if done == rounds:
            raise Interrupted

    return on_round


def alone(spec: RunSpec, store: Store) -> Record:
    """The undisturbed run, in a store of its own."""
    return execute(spec, Store(store.root.parent / "alone", store.results))


# ---- a run ----------------------------------------------------------------------------------------------------------


def test_a_run_leaves_its_record_and_nothing_else(spec, store, always_saving):
    made = spec("fedselect", p=0.25, data={"name": f"{HERE}:blobs", "about": "four clouds"})
    record = execute(made, store)
    assert [path.name for path in store.root.iterdir()] == [f"{made.key()}.json"]
    read = read_record(store.path(made.key()))
    assert (read.key, read.spec, read.state) == (made.key(), made, record.state)
    assert record.about == "four clouds"
    assert record.seconds > 0 and not read.stale
    assert {"python", "torch", "commit"} <= read.provenance.keys()


def test_a_record_says_that_its_data_are_not_the_published_ones(spec, store, tmp_path, monkeypatch):
    """`pfl compare` then shows it in no cell of the paper's table."""
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    write_npz(tmp_path, "mnist", 51)
    made = spec(data={"name": "mnist"}, partition={"name": "iid"}, clients=2, rounds=1)
    record = execute(made, store)
    assert record.about.startswith("mnist, not the official file: ")
    assert published_set(record) == "mnist (not the official file)"


def test_a_record_has_class_counts_and_model_size(spec, store):
    """Two of four classes a client: 12 + 12 images to train on, 4 + 4 to test on; 16 x 6 + 6 + 6 x 4 + 4 parameters."""
    record = execute(spec(), store)
    for name, each in (("train", 12), ("test", 4)):
        counts = torch.tensor(record.clients[name])
        assert counts.shape == (4, 4)
        assert sorted(counts.flatten().tolist()) == [0] * 8 + [each] * 8
        assert ((counts > 0).sum(0) == 2).all() and ((counts > 0).sum(1) == 2).all()
    assert torch.tensor(record.clients["val"]).sum() == 0
    assert torch.equal(torch.tensor(record.clients["train"]) > 0, torch.tensor(record.clients["test"]) > 0)
    assert record.num_params == 16 * 6 + 6 + 6 * 4 + 4


def test_a_record_has_the_engines_results(spec, store):
    made = spec("fedselect", p=0.25)
    record = execute(made, store)
    algorithm, fed, _ = build(made)
    state, history = engine.run(algorithm, fed, made.schedule)
    assert record.state == state_hash(state)
    assert record.series.keys() == history.series.keys()
    assert all(record.series[name] == pair for name, pair in history.series.items() if name != "seconds")
    assert record.curve().index.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("method", "changes", "texts"),
    [
        ("fedavg", {}, []),
        ("fedavg", {"train": Training(batch_size=1)}, []),
        (
            "fedavg",
            {"train": Training(batch_size=1), "model": {"name": "lenet_small"}},
            ["batch norm: 4 of 4"],
        ),
        ("fedavg", {"train": Training(epochs=0)}, ["training: epochs=0"]),
        ("fedavg", {"train": Training(lr=0, clip_norm=0)}, ["training: lr=0,", "training: clip_norm=0,"]),
        ("fedavg", {"participation": 0.5}, []),
        ("fedavg", {"participation": 0.3}, ["participation=0.3: 1 of 4"]),
        ("fedavg", {"novel": 0.2}, ["novel=0.2: none of 4 clients"]),
        ("pfedgate", {"keep_ratio": 0.5}, []),
        (
            "pfedgate",
            {"keep_ratio": 0.05, "block_layout": "equal"},
            [r"pFedGate: keep_ratio=0\.05 .* 4 of 4 "],
        ),
    ],
)
def test_settings_without_effect_are_warned_of(spec, store, method, changes, texts):
    warned = []
    execute(spec(method, rounds=1, **changes), store, warn=warned.append)
    assert len(warned) == len(texts)
    for text, expected in zip(warned, texts, strict=True):
        assert re.match(expected, text) and "\n" not in text


def test_on_round_is_called_after_each_round(spec, store):
    rounds_done = []
    execute(spec(rounds=3), store, on_round=rounds_done.append)
    assert rounds_done == [1, 2, 3]


def two_clients(dataset: Dataset, num_clients: int, seed: int) -> Partition:
    """A partition of one's own that gave up three clients."""
    train, test = (torch.where(mark)[0].split(16)[:2] for mark in (~dataset.is_test, dataset.is_test))
    return Partition(train=train, val=(train[0][:0],) * 2, test=test, dropped=3)


def test_dropped_clients_are_recorded(spec, store):
    record = execute(spec(partition={"name": f"{__name__}:two_clients"}, clients=5, rounds=1), store)
    assert record.provenance["dropped_clients"] == "3"


# ---- killed and continued -------------------------------------------------------------------------------------------

PLAIN_SGD = ("fedpews", "fedpews_fixed")  # whose warm-up has no momentum
HARD = Training(lr=0.1, epochs=2, batch_size=5, momentum=0.9, milestones=(0.5,))


@pytest.mark.parametrize("name", sorted(methods()))
def test_every_method_continues_with_the_same_bits(name, spec, store, always_saving):
    made = spec(
        name,
        **methods()[name].ci,
        train=dataclasses.replace(HARD, momentum=0.0) if name in PLAIN_SGD else HARD,
        participation=0.5,
        eval_every=2,
        rounds=4,
    )
    with pytest.raises(Interrupted):
        execute(made, store, on_round=interrupt_at(3))
    assert store.checkpoint(made.key()).exists() and store.get(made.key()) is None
    rounds_done = []
    continued = execute(made, store, on_round=rounds_done.append)
    assert rounds_done == [3, 4], "rounds 1 and 2 are not made again"
    assert bits(continued) == bits(alone(made, store))


@pytest.mark.parametrize("options", [{"reading": "authors_code"}, {"p": 0.25, "alpha": 1.0}], ids=str)
def test_more_state_continues_too(options, spec, store, always_saving):
    made = spec("fedselect", **options, rounds=6)
    for stop in (2, 5):
        with pytest.raises(Interrupted):
            execute(made, store, on_round=interrupt_at(stop))
    assert bits(execute(made, store)) == bits(alone(made, store))


def test_a_state_that_grows_comes_back_as_it_was(spec, store, always_saving):
    made = spec(f"{HERE}:Nested", rounds=4)
    for stop in (2, 3):
        with pytest.raises(Interrupted):
            execute(made, store, on_round=interrupt_at(stop))
    assert bits(execute(made, store)) == bits(alone(made, store))


def test_a_state_that_no_checkpoint_can_hold_is_refused_in_the_first_round(spec, store):
    rounds_done: list[int] = []
    with pytest.raises(ValueError, match="the state has a dict; use tensors"):
        execute(spec(f"{HERE}:KeepsADict", strength=1.0), store, on_round=rounds_done.append)
    assert rounds_done == []


def test_a_state_of_a_class_that_is_gone_is_set_aside(spec, store, always_saving, monkeypatch):
    made = spec(f"{HERE}:Nested", rounds=3)
    with pytest.raises(Interrupted):
        execute(made, store, on_round=interrupt_at(2))
    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="NestedState"):
        patch.delattr(f"{HERE}.NestedState")
        with pytest.raises(NameError):  # the method cannot do without it, either
            execute(made, store)
    assert bits(execute(made, store)) == bits(alone(made, store))


REUSED = """
import json, resource, sys, torch
from pathlib import Path
from pfl_core.runs import RunSpec, Store, execute
execute(RunSpec.from_json(json.loads(sys.argv[2])), Store(Path(sys.argv[1])))
for step in range(6):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(6 * 2**20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives memory back at once")
def test_a_run_keeps_the_memory_that_it_frees(spec, store):
    """24 MiB in pages of 4 KiB would be 6,144 faults; also where Dask's nanny asks to give memory back."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, "-c", REUSED, str(store.root), json.dumps(spec("fedavg", rounds=1).to_json())]
    printed = subprocess.run(command, capture_output=True, check=True, text=True, env=env)
    assert int(printed.stdout) < 1000


KILLED = """
import os, signal, sys
from pathlib import Path
from pfl_core.runs import RunSpec, Store, execute
import json
module = sys.modules[execute.__module__]
module.CHECKPOINT_SECONDS = 0.0
store = Store(Path(sys.argv[1]), Path(sys.argv[2]))
def on_round(done):
    if done == 4:
        os.kill(os.getpid(), signal.SIGKILL)
execute(RunSpec.from_json(json.loads(sys.argv[3])), store, on_round=on_round)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_killed_run_continues_with_identical_results(spec, store):
    made = spec("fedselect", p=0.25, train=HARD, participation=0.5, model={"name": "cnn_small"}, rounds=6)
    command = [sys.executable, "-c", KILLED, str(store.root), str(store.results), json.dumps(made.to_json())]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, encoding="utf-8", env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert store.get(made.key()) is None
    rounds_done = []
    continued = execute(made, store, on_round=rounds_done.append)
    assert rounds_done == [4, 5, 6]
    assert bits(continued) == bits(alone(made, store))
    assert [path.name for path in store.root.iterdir()] == [f"{made.key()}.json"]


def test_seconds_of_all_attempts_are_counted(spec, store, always_saving):
    made = spec(rounds=3)
    algorithm, fed, _ = build(made)
    state, history = engine.run(algorithm, fed, made.schedule, until=2)
    save_checkpoint(store.checkpoint(made.key()), state, history, 2, 1000.0, made.checksums())
    assert 1000 < execute(made, store).seconds < 1100


def test_checkpoints_are_for_long_runs(spec, store):
    """Below a minute there is none, so that short runs cost no disk."""
    made = spec(rounds=3)
    with pytest.raises(Interrupted):
        execute(made, store, on_round=interrupt_at(3))
    assert not store.checkpoint(made.key()).exists()


# ---- damaged checkpoints --------------------------------------------------------------------------------------------


def pack(content: object) -> bytes:
    """A checkpoint with a correct checksum, as only other code could write it."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return signed(buffer.getvalue())


def signed(serialized: bytes) -> bytes:
    return hashlib.sha256(serialized).digest() + serialized


def unpack(content: bytes) -> dict:
    return torch.load(io.BytesIO(content[32:]), weights_only=True)


def flip_a_weight(content: bytes) -> bytes:
    at = content.index(unpack(content)["state"]["shared"].numpy().tobytes()[:64]) + 3
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


DAMAGE = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "no checkpoint": lambda content: b"these are no tensors at all",
    "zeros": lambda content: bytes(len(content)),
    "one bit of one weight": flip_a_weight,
    "no checksum": lambda content: content[32:],
}
NO_PICKLES = {repr(serialized): serialized for serialized in (b"\x80\x02.", b"0", b"\x80\x02h\x05.", b"text", b"")}
FORGED = {  # fields that are replaced, or all of the content
    "more rounds than its series": {"done": 3},
    "fewer rounds than its series": {"done": 1},
    "rounds as text": {"done": "2"},
    "more rounds than the run": {"done": 9, "series": {"seconds": (list(range(1, 10)), [0.1] * 9)}},
    "no series": {"series": None},
    "empty series": {"series": {}},
    "series as a list": {"series": [1]},
    "no seconds": {"seconds": None},
    "seconds as text": {"seconds": "1"},
    "seconds that are no number": {"seconds": float("nan")},
    "no state": {"state": None},
    "a state that is a number": {"state": 3},
    "a state of the wrong class": {"state": {"class": "NestedState"}},
    "an empty module name": {"state": {"class": ":Path"}},
    "a function": {"state": {"class": "os:mkdir", "path": "made"}},
    "a class of a library": {"state": {"class": "torch.utils.data:Dataset"}},
    "a class of a module that is not imported": {"state": {"class": "forged_module:Part", "total": torch.ones(1)}},
    "the name of another run": {"name": "0" * 16 + ".ckpt"},
    "other data": {"data": {"mine": "another file"}},
    "a tensor": torch.ones(3),
    "a pickled object": Path("a pickled object"),
    "a list": [],
    "a name alone": {"name": 3},
}
BROKEN = {
    **DAMAGE,
    **{f"no pickle {name}": lambda content, text=text: signed(text) for name, text in NO_PICKLES.items()},
    **{
        name: lambda content, change=change: pack({**unpack(content), **change} if isinstance(change, dict) else change)
        for name, change in FORGED.items()
    },
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_checkpoint_is_set_aside_and_the_run_starts_anew(kind, spec, store, tmp_path, monkeypatch):
    """Nothing is imported or called for it, even if its checksum is right."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    text = "import pathlib\npathlib.Path('made').touch()\nfrom tests.runs.outside import Part\n"
    (tmp_path / "forged_module.py").write_text(text, encoding="utf-8")
    made = spec(rounds=4)
    execute(made, store, until=2, keep_state=True)
    store.path(made.key()).unlink()
    path = store.checkpoint(made.key())
    broken = BROKEN[kind](path.read_bytes())
    path.write_bytes(broken)
    rounds_done: list[int] = []
    with pytest.warns(UserWarning, match=rf"{path.name} is not usable .* renamed"):
        record = execute(made, store, on_round=rounds_done.append)
    assert bits(record) == bits(alone(made, store)) and rounds_done == [1, 2, 3, 4]
    (aside,) = store.root.glob("*damaged*")
    assert aside.read_bytes() == broken and not path.exists() and not (tmp_path / "made").exists()


def prefix_file(store: Store, spec: RunSpec, rounds: int) -> Path:
    return path_of(store, Prefix(spec.key(), rounds))


@pytest.mark.parametrize("kind", ["prefix of another run", "prefix of another round", "prefix as a checkpoint"])
def test_a_checkpoint_under_another_name_is_refused(kind, spec, store):
    """A copy is never used silently, whatever it is renamed to."""
    one, other = spec(seed=1), spec(seed=2)
    execute(one, store, saves=(2,), until=2, record=False)
    target = {
        "prefix of another run": prefix_file(store, other, 2),
        "prefix of another round": prefix_file(store, one, 1),
        "prefix as a checkpoint": store.checkpoint(other.key()),
    }[kind]
    prefix_file(store, one, 2).rename(target)
    made = one if kind == "prefix of another round" else other
    with pytest.warns(UserWarning, match=f"written as {prefix_file(store, one, 2).name}"):
        record = execute(made, store, prefix=Prefix(target.name.split(".")[0], 3))
    assert bits(record) == bits(alone(made, store))
    assert target.with_name(target.name + ".damaged").exists()


@pytest.mark.parametrize("done", [3, -1, 2.0, "2", None])
def test_a_prefix_with_other_rounds_than_its_name_is_refused(done, spec, store):
    one, other = spec(seed=1), spec(seed=2)
    execute(one, store, saves=(2,), until=2, record=False)
    path = prefix_file(store, one, 2)
    path.write_bytes(pack({**unpack(path.read_bytes()), "done": done}))
    with pytest.warns(UserWarning, match=f"{done!r} rounds"):
        record = execute(other, store, prefix=Prefix(one.key(), 3))
    assert bits(record) == bits(alone(other, store))


@pytest.mark.parametrize("left", [{"until": 2, "keep_state": True}, {"saves": (2,), "until": 2, "record": False}])
def test_a_checkpoint_made_with_other_data_is_refused(left, spec, store, tmp_path, monkeypatch):
    """The data are no part of the key while no record has it: the file was replaced meanwhile."""
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path / "data"))
    made = spec(data={"name": "mine"}, partition={"name": "iid"}, clients=2)
    write_npz(tmp_path / "data", "mine", 10)
    execute(made, store, **left)
    store.path(made.key()).unlink(missing_ok=True)
    write_npz(tmp_path / "data", "mine", 200)
    with pytest.warns(UserWarning, match="other data"):
        record = execute(made, store)
    assert bits(record) == bits(alone(made, store)) and record.data == made.checksums()


@pytest.mark.parametrize("method", ["fedavg", "fedselect", f"{HERE}:Nested"])
@pytest.mark.parametrize("where", ["in a round", "while a round is noted", "between rounds"])
def test_ctrl_c_saves_the_last_complete_round(where, method, spec, store, monkeypatch):
    """As `--stop-after` does; the run then ends with the same bits."""
    made = spec(method, rounds=5)
    cls, add = type(made.build_method()), engine.History.add
    whole = cls.round

    def in_a_round(self, fed, state, clients, t):
        if t == 2:
            raise KeyboardInterrupt
        return whole(self, fed, state, clients, t)

    def half_noted(history, snapshot):
        if snapshot.t == 2:
            history.series["seconds"][0].append(3)
            raise KeyboardInterrupt
        add(history, snapshot)

    def between(done):
        if done == 2 and where == "between rounds":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        if where == "in a round":
            patch.setattr(cls, "round", in_a_round)
        elif where == "while a round is noted":
            patch.setattr(engine.History, "add", half_noted)
        execute(made, store, on_round=between)
    computed: list[int] = []
    record = execute(made, store, on_round=computed.append)
    assert computed == [3, 4, 5] and bits(record) == bits(alone(made, store))
    assert not store.checkpoint(made.key()).exists()


def test_a_checkpoint_does_not_know_where_a_class_lies(spec, store, always_saving, monkeypatch):
    """A class of this package goes by its name, so that modules may move; a user's by its module."""
    made = spec("fedselect", rounds=3)
    with pytest.raises(Interrupted):
        execute(made, store, on_round=interrupt_at(2))
    content = store.checkpoint(made.key()).read_bytes()
    assert b"SelectState" in content and b"pfl_core" not in content
    monkeypatch.setattr(algorithm_module.IN_CHECKPOINTS["SelectState"], "__module__", "pfl_core.moved.elsewhere")
    assert bits(execute(made, store)) == bits(alone(made, store))


def test_a_shorter_record_never_takes_the_place_of_a_longer_one(spec, store):
    made = spec(rounds=4)
    whole = execute(made, store)
    execute(made, store, until=2)
    assert store.get(made.key()).rounds == 4 and store.get(made.key()).state == whole.state


def test_stopping_earlier_keeps_a_state_that_is_further(spec, store, always_saving):
    made = spec(rounds=5)
    with pytest.raises(Interrupted):
        execute(made, store, on_round=interrupt_at(4))
    execute(made, store, until=2)
    assert store.get(made.key()).length == "3 of 5"
    rounds_done = []
    execute(made, store, on_round=rounds_done.append)
    assert rounds_done == [4, 5]


@pytest.mark.parametrize("until", [0, -1])
def test_a_run_needs_a_round(until, spec, store):
    with pytest.raises(ValueError, match=f"until={until}"):
        execute(spec(), store, until=until)


def test_two_classes_of_one_name_are_refused():
    cls = type("SelectState", (), {"__module__": "pfl_core.algorithms.another"})
    with pytest.raises(TypeError, match="SelectState"):
        algorithm_module.in_checkpoints(cls)


# ---- shared prefixes ------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(spec, store) -> RunSpec:
    """A run of which the prefixes of 1 and 3 rounds are saved."""
    made = spec("fedselect", p=0.25)
    assert execute(made, store, saves=(1, 3), until=3, record=False) is None
    assert {path.name for path in store.root.iterdir()} == {prefix_file(store, made, n).name for n in (1, 3)}
    return made


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_run_continues_from_its_prefix_with_the_same_bits(rounds, saved, store):
    prefix_file(store, saved, 3).unlink() if rounds == 1 else None
    rounds_done: list[int] = []
    record = execute(saved, store, prefix=Prefix(saved.key(), rounds), on_round=rounds_done.append)
    assert rounds_done == list(range(rounds + 1, 5))
    assert bits(record) == bits(alone(saved, store))


def test_the_runs_own_checkpoint_is_preferred(saved, store, always_saving):
    with pytest.raises(Interrupted):
        execute(saved, store, on_round=interrupt_at(4))
    rounds_done: list[int] = []
    execute(saved, store, prefix=Prefix(saved.key(), 1), on_round=rounds_done.append)
    assert rounds_done == [4]


def test_a_missing_or_damaged_prefix_is_a_start_from_the_beginning(spec, store):
    made, prefix = spec(rounds=2), Prefix("other", 1)
    assert bits(execute(made, store, prefix=prefix)) == bits(alone(made, store))
    store.path(made.key()).unlink()
    path_of(store, prefix).write_bytes(b"nonsense")
    with pytest.warns(UserWarning, match="checksum.*renamed"):
        record = execute(made, store, prefix=prefix)
    assert bits(record) == bits(alone(made, store))


def test_a_run_that_is_already_further_is_not_made_for_its_prefix(spec, store, always_saving):
    """Killed after round 4, now wanted up to round 2 only: nothing to do, nothing to complain about."""
    made = spec(rounds=5)
    with pytest.raises(Interrupted):
        execute(made, store, on_round=interrupt_at(5))
    assert execute(made, store, saves=(2,), until=2, record=False) is None


@pytest.mark.parametrize(("there", "expected"), [((1, 3), []), ((1,), [2, 3]), ((3,), [1]), ((), [1, 2, 3])])
@pytest.mark.parametrize("damaged", [False, True])
def test_prefixes_that_exist_are_not_made_again(damaged, there, expected, saved, store):
    content = {rounds: prefix_file(store, saved, rounds).read_bytes() for rounds in (1, 3)}
    for rounds in {1, 3} - set(there):
        prefix_file(store, saved, rounds).write_bytes(b"nonsense")
        if not damaged:
            prefix_file(store, saved, rounds).unlink()
    rounds_done: list[int] = []
    with pytest.warns(UserWarning, match="not usable") if damaged and expected else contextlib.nullcontext():
        execute(saved, store, saves=(1, 3), until=3, record=False, on_round=rounds_done.append)
    assert rounds_done == expected
    assert all(content[rounds] == prefix_file(store, saved, rounds).read_bytes() for rounds in there)


def test_a_stopped_start_leaves_no_checkpoint_when_it_is_complete(spec, store, always_saving):
    made = spec("fedselect", p=0.25)
    with pytest.raises(Interrupted):
        execute(made, store, saves=(3,), until=3, record=False, on_round=interrupt_at(3))
    rounds_done: list[int] = []
    execute(made, store, saves=(3,), until=3, record=False, on_round=rounds_done.append)
    assert rounds_done == [3]
    assert [path.name for path in store.root.iterdir()] == [prefix_file(store, made, 3).name]


# ---- a full disk ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_run_is_worth_more_than_its_checkpoints_and_caches(number, spec, store, tmp_path, always_saving, monkeypatch):
    """Checkpoints and the count of FLOPs cannot be written; the record can."""
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path / "data"))
    made, write = spec(rounds=3), Path.write_bytes
    execute_module.sample_flops.cache_clear()

    def refuse(path: Path, content: bytes) -> int:
        if ".ckpt" in path.name or "flops" in path.name:
            raise OSError(number, os.strerror(number), str(path))
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.warns(UserWarning, match=rf"{made.key()}\.ckpt"):
        record = execute(made, store)
    assert store.get(made.key()).state == record.state


def test_a_record_that_cannot_be_written_is_one_line_with_its_path(spec, store, monkeypatch):
    made, write = spec(rounds=1), Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if made.key() in path.name and ".json" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with one_line(rf"{made.key()}\.json .*No space", OSError):
        execute(made, store)


# ---- the count of FLOPs ---------------------------------------------------------------------------------------------


def test_the_count_of_flops_is_kept_without_pickles(spec, tmp_path, monkeypatch):
    """A changed byte is noticed, and a folder of pickles from an earlier version is not read."""
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    arguments, counted = (json.dumps({"name": "mlp", "hidden": [6]}), (1, 4, 4), 4), []
    monkeypatch.setattr(execute_module, "step_flops", lambda net, shape: counted.append(1) or (0, 1234))

    def count() -> int:
        execute_module.sample_flops.cache_clear()
        return execute_module.sample_flops(*arguments)

    assert (count(), count(), len(counted)) == (1234, 1234, 1)
    (path,) = (tmp_path / "runs").rglob("*.*")
    path.write_bytes(path.read_bytes().replace(b"1234", b"1244"))
    assert (count(), len(counted)) == (1234, 2)
    execute_module.sample_flops.cache_clear()


# ---- when the time is up --------------------------------------------------------------------------------------------


def test_a_run_stops_at_a_checkpoint_when_the_time_is_up(spec, store, monkeypatch):
    made = spec("fedselect", p=0.25)
    monkeypatch.setattr("pfl_core.deadline.now", iter([0.0, 5.0, 11.0]).__next__)
    with pytest.raises(TimeUpError, match="ended 0, at a checkpoint 1, not started 0"):
        execute(made, store, stop_at=10.0)
    monkeypatch.undo()
    assert [path.name for path in store.root.iterdir()] == [store.checkpoint(made.key()).name]
    with pytest.raises(TimeUpError, match="not started 1"):
        execute(made, store, stop_at=10.0)
    rounds_done: list[int] = []
    record = execute(made, store, stop_at=time.time() + 60, on_round=rounds_done.append)
    assert rounds_done == [3, 4]
    assert bits(record) == bits(alone(made, store))


def test_a_run_that_has_ended_when_the_time_is_up_is_stored(spec, store, monkeypatch):
    monkeypatch.setattr("pfl_core.deadline.now", iter([0.0, 11.0]).__next__)
    assert not execute(spec(rounds=1), store, stop_at=10.0).partial


# ---- the hash of a state --------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Nested:
    a: torch.Tensor
    rows: tuple[torch.Tensor, ...] = ()
    more: dict | None = None
    number: float = 0.0


def test_the_hash_sees_every_bit_shape_and_type():
    base = Nested(torch.zeros(4), (torch.ones(2), torch.ones(3)), {"x": torch.zeros(1)})
    same = Nested(torch.zeros(4), (torch.ones(2), torch.ones(3)), {"x": torch.zeros(1)})
    others = [
        dataclasses.replace(base, a=torch.tensor([0.0, 0.0, 0.0, 1e-45])),
        dataclasses.replace(base, a=torch.tensor([0.0, 0.0, 0.0, -0.0])),
        dataclasses.replace(base, a=torch.zeros(2, 2)),
        dataclasses.replace(base, a=torch.zeros(4, dtype=torch.int32)),
        dataclasses.replace(base, rows=(torch.ones(3), torch.ones(2))),
        dataclasses.replace(base, more={"y": torch.zeros(1)}),
        dataclasses.replace(base, number=1.0),
        dataclasses.replace(base, more=None),
    ]
    hashes = [state_hash(state) for state in (base, *others)]
    assert state_hash(same) == hashes[0]
    assert len(set(hashes)) == len(hashes)
    assert all(len(h) == 16 and not math.isnan(int(h, 16)) for h in hashes)


def test_the_hash_does_not_depend_on_how_a_tensor_lies_in_memory():
    block = torch.arange(12.0).view(3, 4)
    assert state_hash(Nested(block.T)) == state_hash(Nested(block.T.contiguous()))


def test_a_field_that_a_state_got_later_does_not_count_while_it_is_none():
    x = torch.arange(3.0)
    assert state_hash(MovingState(shared=x)) == state_hash(State(shared=x))
    assert state_hash(MovingState(shared=x, velocity=(x,))) != state_hash(State(shared=x))
