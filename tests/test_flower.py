"""The example of docs/flower.md computes what the engine computes, without Flower and inside it."""

import re
import runpy
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from pfl_core import run

PAGE = (Path(__file__).parents[1] / "docs" / "flower.md").read_text(encoding="utf-8")
PARTS, APP = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def parts() -> ModuleType:
    """The page's first file."""
    module = ModuleType("parts")
    exec(PARTS, module.__dict__)
    return module


@pytest.fixture(scope="module")
def expected(parts):
    """The engine's state and correct predictions after each round."""
    algorithm, fed, _ = parts.setup()
    snapshots = []
    run(algorithm, fed, parts.SPEC.schedule, on_round=lambda snapshot, _: snapshots.append(snapshot))
    return [snapshot.state for snapshot in snapshots], [snapshot.notes["correct"] for snapshot in snapshots]


def test_the_parts_make_the_rounds_of_the_engine(parts, expected):
    """Bitwise, with half of the clients in a round: the server's model, the clients' models and masks, the scores."""
    spec, (_, fed, start) = parts.SPEC, parts.setup()
    shared, clients = fed.theta0.numpy(), range(spec.clients)
    model, mask = ([row.numpy() for row in rows] for rows in (start.local, start.personal))
    for t, (state, correct) in enumerate(zip(*expected, strict=True)):
        receives_with, uploads = list(mask), []  # an absent client receives with its current mask
        for k in spec.schedule.clients(spec.clients, spec.seed, t).tolist():
            model[k], mask[k] = parts.fit(k, t, shared, model[k], mask[k])
            uploads.append((model[k], receives_with[k]))
        shared = parts.aggregate(shared, uploads)
        model = [np.where(receives_with[k], model[k], shared) for k in clients]
        assert np.array_equal(shared, state.shared.numpy())
        assert np.array_equal(model, state.local.numpy()) and np.array_equal(mask, state.personal.numpy())
        assert [parts.evaluate(k, model[k])[1] for k in clients] == correct
    assert 0 < np.mean(mask) < 1


def test_the_app_makes_the_rounds_of_the_engine(parts, expected, tmp_path, monkeypatch):
    """Flower's server, strategy, messages and client state; the clients are in this process, one after the other."""
    pytest.importorskip("flwr", reason="flwr is not installed")
    from flwr.app import Context, RecordDict
    from flwr.common import parameters_to_ndarrays
    from flwr.server import Server, SimpleClientManager
    from flwr.server.client_proxy import ClientProxy

    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    monkeypatch.setitem(sys.modules, "parts", parts)
    app = runpy.run_path(str(tmp_path / "app.py"))

    class InProcess(ClientProxy):
        """Makes a new client object for each message, as Flower does."""

        def __init__(self, k: int) -> None:
            super().__init__(f"node {k}")
            self.context = Context(
                run_id=0, node_id=k, node_config={"partition-id": k}, state=RecordDict(), run_config={}
            )

        def answer(self, verb: str):
            return getattr(app["Client"](self.context).to_client(), verb)

        def get_properties(self, ins, timeout, group_id):
            return self.answer("get_properties")(ins)

        def get_parameters(self, ins, timeout, group_id):
            return self.answer("get_parameters")(ins)

        def fit(self, ins, timeout, group_id):
            return self.answer("fit")(ins)

        def evaluate(self, ins, timeout, group_id):
            return self.answer("evaluate")(ins)

        def reconnect(self, ins, timeout, group_id):
            raise NotImplementedError

    manager = SimpleClientManager()
    for k in range(parts.SPEC.clients):
        manager.register(InProcess(k))
    server = Server(client_manager=manager, strategy=app["server"](None).strategy)
    server.set_max_workers(1)  # all clients share one federation, which computes one client at a time
    history, _ = server.fit(parts.SPEC.rounds, None)
    states, correct = expected
    scores = history.metrics_distributed
    assert [[scores[f"correct_{k}"][t][1] for k in range(parts.SPEC.clients)] for t in range(len(states))] == correct
    assert np.array_equal(parameters_to_ndarrays(server.parameters)[0], states[-1].shared.numpy())
