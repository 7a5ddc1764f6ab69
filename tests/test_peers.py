"""The comparison with other implementations, on stand-ins with their interfaces."""

import os
import sys
from dataclasses import replace
from textwrap import dedent

import pytest

from tests.benchmarks import peers

SMALL = {
    "fedavg": peers.Case("fedavg", "mlp", (8,), 2, 64),
    "ditto": peers.Case("ditto", "mlp", (8,), 2, 64, passes=2),
    "fedselect": peers.Case("fedselect", "mlp", (8,), 2, 64, passes=2),
}
PFLLIB = {
    "utils/data_utils.py": """
        import numpy as np, torch

        def read_client_data(dataset, k, is_train=True):
            data = np.load(f"../dataset/{dataset}/train/{k}.npz", allow_pickle=True)["data"].tolist()
            return list(zip(torch.tensor(data["x"]), torch.tensor(data["y"])))
    """,
    "flcore/clients/clientbase.py": """
        import copy, torch
        from utils.data_utils import read_client_data

        class Client:
            trained = []

            def __init__(self, args, id, train_samples, test_samples, **slow):
                self.args, self.id, self.model = args, id, copy.deepcopy(args.model)

            def set_parameters(self, model):
                self.model.load_state_dict(model.state_dict())

            def train(self):
                samples = read_client_data(self.args.dataset, self.id, is_train=True)
                self.trained.append(float(sum(x.sum() for x, _ in samples)))
    """,
    "flcore/clients/clientavg.py": """
        from flcore.clients.clientbase import Client

        class clientAVG(Client):
            pass
    """,
    "flcore/clients/clientditto.py": """
        from flcore.clients.clientbase import Client

        class clientDitto(Client):
            def ptrain(self):
                assert self.args.mu == 0.1 and self.args.plocal_epochs == 1 and self.args.few_shot == 0
    """,
    "flcore/servers/serverbase.py": """
        class Server:
            def send_models(self):
                [client.set_parameters(self.global_model) for client in self.clients]

            def receive_models(self):
                self.uploaded = [client.model for client in self.selected_clients]

            def aggregate_parameters(self):
                self.global_model = self.uploaded[0]
    """,
}
FL_BENCH = {
    "src/client/fedavg.py": """
        import torch

        class FedAvgClient:
            def __init__(self, *, model, optimizer_cls, args, dataset, data_indices, **commons):
                self.model, self.dataset, self.indices = model, dataset, data_indices
                self.optimizer, self.args = optimizer_cls(params=model.parameters()), args

            def train(self, package):
                self.dataset.train()
                self.model.load_state_dict(package["regular_model_params"], strict=False)
                for i in self.indices[package["client_id"]]["train"]:
                    x, y = self.dataset[i]
                    self.optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(self.model(x[None]), y[None]).backward()
                    self.optimizer.step()
                assert not self.args.common.test.client.train and self.args.ditto.pers_epoch == 1
                return {"regular_model_params": self.model.state_dict()}
    """,
    "src/client/ditto.py": """
        from src.client.fedavg import FedAvgClient

        class DittoClient(FedAvgClient):
            def train(self, package):
                return {**super().train(package), "personalized_model_params": package["personalized_model_params"]}
    """,
    "src/server/fedavg.py": """
        class FedAvgServer:
            def aggregate_client_updates(self, packages):
                self.public_model_params = packages[1]["regular_model_params"]
    """,
}
AUTHORS = {
    "lottery_ticket.py": """
        def delta_update(rate, state, before, mask, bound, invert):
            print("pruned")
            return mask
    """,
    "broadcast.py": """
        def add_masks(total, mask): return mask
        def add_server_weights(total, state, mask): return state
        def div_server_weights(total, count): return total
        def broadcast_server_to_client_initialization(total, mask, state): return state
    """,
    "pflopt/optimizers.py": """
        import torch

        class MaskLocalAltSGD(torch.optim.SGD):
            def __init__(self, params, mask, lr):
                super().__init__(params, lr=lr)

        def local_alt(model, criterion, optimizer, loader, device):
            for x, y in loader:
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                optimizer.step()
    """,
}


def checkout(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(dedent(text), encoding="utf-8")


@pytest.fixture
def checkouts(tmp_path):
    checkout(tmp_path / "pfllib" / "system", PFLLIB)
    checkout(tmp_path / "flbench", FL_BENCH)
    checkout(tmp_path / "fedselect", AUTHORS)
    return tmp_path / "pfllib", tmp_path / "flbench", tmp_path / "fedselect"


@pytest.mark.parametrize(
    ("method", "sides"),
    [
        ("ditto", ["PFLlib, samples in memory", "PFLlib as shipped", "FL-bench"]),
        ("fedselect", ["the authors' FedSelect"]),
    ],
)
def test_all_sides_are_measured_in_turn(method, sides, checkouts, tmp_path, capsys):
    rows, left_out = peers.measure(SMALL[method], *checkouts, tmp_path / "files", turns=2)
    assert [side for _, side, _, _ in rows] == [peers.BARE, peers.OURS, *sides] and not left_out
    assert all(seconds > 0 for *_, seconds, _ in rows) and rows[0][3] == 1
    assert capsys.readouterr().out == ""
    assert not {str(folder) for folder in tmp_path.rglob("*")} & set(sys.path)
    assert not {"utils", "flcore", "src", "lottery_ticket", "pflopt"} & set(sys.modules)


def test_both_ways_of_pfllib_train_on_the_same_samples(checkouts, tmp_path):
    sums = []
    for files in (None, tmp_path / "files"):
        turn = peers.pfllib(SMALL["fedavg"], checkouts[0], files)
        turn()
        clients = turn.__closure__[[*turn.__code__.co_freevars].index("clients")].cell_contents
        sums.append(type(clients[0]).trained)
    assert sums[0] == pytest.approx(sums[1]) and len(sums[0]) == 2 and sums[0][0] != sums[0][1]


def test_what_is_missing_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(peers, "CASES", tuple(SMALL.values()))
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.delenv("FEDSELECT", raising=False)
    monkeypatch.setenv("PFLLIB", str(tmp_path))
    peers.main(["--turns", "1"])
    out = capsys.readouterr().out
    assert f"left out: PFLlib: {tmp_path} has no system/flcore" in out and "left out: Flower: " in out
    assert "left out: the authors' FedSelect: no checkout given (--fedselect or FEDSELECT)" in out
    assert out.count(peers.OURS) == 4 and f"wall clock, {os.cpu_count()} cores" in out


def test_a_case_has_whole_batches():
    """PFLlib drops a last batch that is smaller."""
    assert all(case.samples % peers.BATCH == 0 for case in peers.CASES)
    assert replace(SMALL["fedavg"], clients=3).title == "fedavg, mlp, 3 x 64"
