"""Runs that are about what all methods share: the schedule, local training, and the two ways to train clients."""

from __future__ import annotations

from tests.golden.digest import Numbers
from tests.golden.methods import ABSENT, MOVING, Config, Setting, play

FEDAVG, LOCAL, FEDPER = {"name": "fedavg"}, {"name": "local"}, {"name": "fedper"}
SPLITS = ("train", "test", "val")
CASES: dict[str, tuple[Config, Setting]] = {
    "half of the clients": (LOCAL, Setting(rounds=6, schedule={"participation": 0.5})),
    "half of the clients, drawn once": (LOCAL, Setting(schedule={"participation": 0.5, "sampling": "once"})),
    "novel clients adapt": (FEDPER, Setting(schedule={"novel": 0.5})),
    "novel clients, some absent": (FEDPER, Setting("conv", schedule=ABSENT)),
    "scored every third round": (FEDAVG, Setting(rounds=5, schedule={"eval_every": 3})),
    "validation split": (FEDAVG, Setting(splits=SPLITS)),
    "another seed": (FEDAVG, Setting(seed=1, schedule={"participation": 0.5})),
    "momentum": (FEDAVG, Setting(train={"momentum": 0.9})),
    "momentum, convolutions": (FEDAVG, Setting("conv", train={"momentum": 0.9})),
    "weight decay": (FEDAVG, Setting(train={"weight_decay": 0.01})),
    "clipped": (FEDAVG, Setting(train={"clip_norm": 0.5})),
    "clipped, convolutions": (FEDAVG, Setting("conv", train={"clip_norm": 0.5})),
    "milestones": (FEDAVG, Setting(rounds=5, train={"milestones": (0.4, 0.8), "decay": 0.3})),
    "crop and flip": (FEDAVG, Setting("conv", train={"augment": "crop_flip"})),
    "batches larger than the data": (FEDAVG, Setting(train={"batch_size": 13, "epochs": 3})),
    "chunks of clients": ({"name": "fedavg", "client_weighting": "samples"}, Setting(budget=2000)),
    "chunks of clients, clipped and moving": (
        {"name": "ditto", "keep_momentum": True},
        Setting(budget=2000, train=MOVING),
    ),
}
# Methods that use one verb or hook each, on networks that can train both ways
VERBS: tuple[Config, ...] = (
    FEDAVG,
    {"name": "ditto", "lam": 0.5},  # a hook on the gradient
    {"name": "moon"},  # a hook on the loss
    {"name": "fedmask", "lr_mask": 5.0},  # derived weights
    {"name": "fedpews", "tau": 0.5},  # gates
    {"name": "fedselect", "p": 0.2},  # entries that stand still
    {"name": "perfedavg", "order": "hessian"},  # second derivatives
)
WAYS = {
    "dense, one by one": ("dense", False),
    "convolutions, stacked": ("plain", True),
    "convolutions": ("plain", False),
}
for way, (net, stacked) in WAYS.items():
    CASES |= {f"{config['name']}, {way}": (config, Setting(net, stacked=stacked)) for config in VERBS}


def numbers(text: str) -> Numbers:
    return play(*CASES[text]).numbers()
