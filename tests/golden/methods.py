"""Which methods run, on which tiny federation, and what is noted of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from pfl_core import Algorithm, Federation, Schedule, Split, State, Training, algorithm, models, run
from pfl_core.data import Dataset
from pfl_core.engine import History
from tests.golden.digest import Numbers, digest

Config = Mapping[str, Any]  # {"name": ..., its options}, as in a run's spec
RESULTS = Path(__file__).parents[2] / "data" / "results"
SIZES, TEST, CLASSES = (12, 9, 14, 10), 8, 3  # training samples of the four clients, test samples of each, classes
F64 = torch.float64


# ---- federations ----------------------------------------------------------------------------------------------------


def gauss(*shape: int, seed: int) -> Tensor:
    """In double precision: single-precision draws differ between processors."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def filled(model: nn.Sequential, seed: int = 1) -> nn.Sequential:
    """The network with Gaussian parameters in double precision, none of them alike; norms scale by about 1."""
    model = model.double()
    for i, (name, p) in enumerate(model.named_parameters()):
        scale = p[0].numel() ** -0.5 if p.dim() > 1 else 0.1
        p.data = scale * gauss(*p.shape, seed=1000 * seed + i) + (p.dim() == 1 and name.endswith("weight"))
    return model


def dense() -> nn.Sequential:
    """6 features -> 7 -> 5 -> 3 classes; clients train stacked."""
    return filled(models.dense_net((6,), CLASSES, hidden=(7, 5)))


def conv(norm: bool = True) -> nn.Sequential:
    """1 x 4 x 4 -> 3 channels -> 4 channels -> 5 -> 3 classes; clients train one by one.

    With batch norm the convolutions have no biases: their slopes would be 0 but for rounding, and methods that look at
    the direction of an update, or whether there is one, would tell processors apart.
    """
    net = models.convnet((1, 4, 4), CLASSES, channels=(3, 4), dense=(5,), kernel=3, padding=1, norm=norm)
    for layer in (net.conv1, net.conv2) if norm else ():
        layer.register_parameter("bias", None)
    return filled(net)


NETS = {"dense": (dense, (6,)), "conv": (conv, (1, 4, 4)), "plain": (lambda: conv(norm=False), (1, 4, 4))}


def samples(n: int, shape: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor]:
    """A cluster for each class: x [n, *shape] in double precision, y [n]."""
    y = torch.randint(0, CLASSES, (n,), generator=torch.Generator().manual_seed(seed))
    return gauss(CLASSES, *shape, seed=0)[y] + 0.8 * gauss(n, *shape, seed=seed), y


def pictures() -> Dataset:
    """A data set of grey images, as large as those of the clients."""
    x = torch.randint(0, 256, (20, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(20, dtype=torch.int64)
    return Dataset("pictures", x, y, y, y.bool(), num_classes=1, class_names=("0",))


@dataclass(frozen=True)
class Setting:
    """A federation and a schedule."""

    net: str = "dense"
    rounds: int = 4
    train: Mapping[str, Any] = field(default_factory=dict)
    schedule: Mapping[str, Any] = field(default_factory=dict)
    splits: tuple[str, ...] = ("train", "test", "public")
    stacked: bool | None = None
    seed: int = 0
    budget: int | None = None  # bytes of rows in a chunk of clients

    def federation(self) -> Federation:
        make, shape = NETS[self.net]
        splits = {
            name: Split.of([samples(n if name == "train" else TEST, shape, 100 * i + k) for k, n in enumerate(SIZES)])
            for i, name in enumerate(self.splits, start=1)
        }
        train = Training(**{"lr": 0.1, "epochs": 2, "batch_size": 4, **self.train})
        options = {"seed": self.seed, "rounds": self.rounds, "train": train, "batched": self.stacked}
        return Federation(make(), splits, dtype=F64, **options)


# ---- runs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Played:
    algorithm: Algorithm
    fed: Federation
    states: tuple[State, ...]  # before the first round, and after each
    history: History

    def numbers(self) -> Numbers:
        """The last state, what is kept of it for figures, and the notes of each round."""
        kept = self.algorithm.artifacts(self.fed, self.states[-1])
        return digest(self.states[-1], "state") | digest(_grouped(kept), "keep") | notes(self.history)


def _grouped(arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """ "name/tensor" of all of a model's tensors as one."""
    groups: dict[str, list[Tensor]] = {}
    for name, x in arrays.items():
        groups.setdefault(name.partition("/")[0], []).append(x)
    return {n: x[0] if len(x) == 1 else torch.cat([part.reshape(-1) for part in x]) for n, x in groups.items()}


def play(config: Config, setting: Setting) -> Played:
    made, fed, states = build(suited(config)), setting.federation(), []
    schedule = Schedule(setting.rounds, **setting.schedule)
    with patch("pfl_core.federation.federation.ROW_BUDGET", setting.budget or 2**28):
        states.append(made.init(fed, fed.theta0))
        _, history = run(made, fed, schedule, on_round=lambda snapshot, _: states.append(snapshot.state))
    return Played(made, fed, tuple(states), history)


def notes(history: History) -> Numbers:
    """A number for each round; of a value for each client the sum of k times that of the k-th, absent ones as -1.

    Of the losses before aggregation the sum over all rounds alone.
    """
    left_out = ("seconds", "count", "count_trained")  # neither times nor what never changes
    found = {n: [_number(v) for v in values] for n, (_, values) in history.series.items() if n not in left_out}
    if "loss_trained" in found:
        found["loss_trained"] = [sum(found["loss_trained"])]
    return found | {"train_loss": [float(f"{v:.9g}") for v in found["train_loss"]]}  # kept in single precision


def _number(value: float | list[float]) -> float | int:
    if isinstance(value, list):
        value = sum(k * (-1.0 if v != v else v) for k, v in enumerate(value, start=1))
    return -1 if value != value else int(value) if value.is_integer() else value


# ---- methods --------------------------------------------------------------------------------------------------------


@cache
def table() -> dict[str, type[Algorithm]]:
    """Every registered method, and the instruments."""
    return algorithm.registered()


def build(config: Config) -> Algorithm:
    options = {k: v for k, v in config.items() if k not in ("name", "reading")}
    cls = table()[config["name"]]
    return cls.reading(config.get("reading", "paper"), **algorithm.checked(cls, options, config["name"]))


def registered() -> Iterator[Config]:
    """Every method as it is, in all its readings and in its named variants."""
    entries = algorithm.methods()
    for name, cls in table().items():
        yield {"name": name}
        yield from ({"name": name, "reading": reading} for reading in cls.readings)
        yield from (
            {"name": name, **options} for options in (entries[name].variants.values() if name in entries else ())
        )


@cache
def specs() -> tuple[dict[str, Any], ...]:
    """The specs of all stored records."""
    return tuple(json.loads(path.read_bytes())["spec"] for path in sorted(RESULTS.glob("*/**/*.json")))


def stored(part: str) -> list[tuple[Config, int]]:
    """The different values of one part of them ("method", "partition", "model"), each with the number of clients."""
    found = dict.fromkeys(json.dumps([spec[part], spec["clients"]], sort_keys=True) for spec in specs())
    return [tuple(json.loads(text)) for text in found]


MORE: tuple[
    Config, ...
] = (  # choices that neither a variant nor a record makes; all with batch norm and absent clients
    {"name": "ditto", "personal_epochs": 1, "lr_server": 0.5},
    {"name": "fedap", "lam": 0.4, "pretrain_share": 0.5, "pretrain_epochs": 3},
    {"name": "fedbabu", "keep_momentum": True, "client_weighting": "samples", "buffer_policy": "local"},
    {"name": "fedbn", "keep_momentum": True},
    {"name": "fedem", "client_weighting": "uniform", "components": 2, "lr_server": 0.5},
    {"name": "fedem", "keep_momentum": True},
    {"name": "fedmask", "keep_momentum": True, "layers": 1, "lr_mask": 50.0},
    {"name": "fedmask", "client_weighting": "uniform", "cut": "threshold", "tau": 0.4, "layers": 2, "lr_mask": 5.0},
    {"name": "fedmd", "public": "train", "public_samples": 10, "digest_epochs": 2},
    {"name": "fedmd", "keep_momentum": True},
    {"name": "fednova", "keep_momentum": True, "client_weighting": "samples", "lr_server": 0.5},
    {"name": "fedpac", "client_weighting": "uniform", "buffer_policy": "average", "lr_head": 0.05, "lam": 0.5},
    {"name": "fedper", "keep_momentum": True, "client_weighting": "samples"},
    {"name": "fedpews", "tau": 0.5, "score_init": "uniform", "prob_update": "constant", "expand_rule": "row"},
    {
        "name": "fedpews",
        "tau": 0.5,
        "client_weighting": "samples",
        "prob_over": "participants",
        "draws": "one_per_step",
    },
    {"name": "fedpews", "tau": 0.5, "base": "moon", "base_options": {"mu_con": 5.0}, "lr_mask": 1.0},
    {"name": "fedpews_fixed", "tau": 0.5, "client_weighting": "samples", "probe": 3, "probe_whole": True},
    {"name": "fedpews_fixed", "tau": 0.5, "base": "scaffold"},
    {"name": "fedprox", "keep_momentum": True, "client_weighting": "samples", "mu": 0.1},
    {"name": "fedrep", "lr_head": 0.05, "buffer_policy": "average"},
    {
        "name": "fedselect",
        "p": 0.2,
        "lr_personal": 0.05,
        "lr_shared": 0.2,
        "rate_basis": "all",
        "eval_point": "after_local_update",
    },
    {"name": "fedselect", "p": 0.2, "buffer_policy": "average", "client_weighting": "samples", "limit_policy": "cap"},
    {
        "name": "fedselect",
        **{"p": 0.5, "alpha": 0.5, "selection_scope": "per_tensor", "limit_comparison": "inclusive"},
        **{"share_precision": "float32", "count_rounding": "rest_half_even"},
    },
    {
        "name": "fedselect_gradltn",
        **{"keep_rate": 0.7, "num_search_iters": 2, "search_epochs": 1, "batch_order": "reshuffle_each_pass"},
        **{"skip_empty_pass": False, "bn_mode": "eval_after_round_0", "buffer_policy": "average"},
        **{"client_weighting": "samples", "local_alt_epochs": 1},
    },
    {"name": "fedselect_gradltn", "rate_basis": "all", "num_search_iters": 2},
    {"name": "heterofl", "full_share": 0.5, "small": 0.3},
    {"name": "lg_fedavg", "buffer_policy": "average", "warm_start_rounds": 2},
    {"name": "lotteryfl", "prune_rate": 0.4, "prune_norms": False, "client_weighting": "samples", "acc_threshold": 0.0},
    {"name": "moon", "keep_momentum": True, "client_weighting": "samples", "temperature": 0.2},
    {"name": "perfedavg", "client_weighting": "uniform", "alpha": 0.05},
    {"name": "perfedavg", "keep_momentum": True},
    {"name": "pfedgate", "blocks_per_tensor": 2, "scale_bias_init": 3.0},
    {"name": "pfedgate", "selector": "greedy_groups", "keep_ratio": 0.5, "scale_bias_init": 3.0},
    {
        "name": "pfedgate",
        **{"block_layout": "equal", "min_keep_rule": "authors_code", "selector": "greedy", "gate_paths": "shared"},
        **{"last_batch": "dropped", "aggregation": "dense", "keep_ratio": 0.6, "scale_bias_init": 3.0},
    },
    {"name": "pfedgate", "aggregation": "whole_models", "averaged_over": "everyone", "lr_gate": 5.0},
    {"name": "pfedgate", "block_layout": "balanced", "mask": "random", "gate_override": 1.0, "keep_ratio": 0.6},
    {"name": "pfedgate", "sigmoid": False, "without_sigmoid": "tangent", "scale_bias_init": 3.0, "probe": True},
    {"name": "pfedgate", "training": "alternating", "eval_gate": "sample", "gate_init": "copied", "novel_epochs": 2},
    {"name": "pfedgate", "gate_granularity": "client_masked_mean", "lr_gate": 1.0},
    {
        "name": "pfedgate",
        "eval_gate": "client_train_mean",
        "keep_momentum": False,
        "min_keep_ratio": 0.1,
        "keep_ratio": 0.3,
    },
    {"name": "pfedme", "client_weighting": "uniform", "inner_steps": 2, "lr_server": 0.5},
    {"name": "scaffold", "client_weighting": "samples", "lr_server": 0.5},
    {"name": "star_pfl", "history_len_local": 8, "record_epochs": 3, "threshold_global": 0.3, "threshold_local": 0.3},
    {"name": "star_pfl", "probe": 20, "probe_epochs": True},
    {"name": "star_pfl", "stability_measure": "ema", "ema_decay": 0.8, "history_len_global": 3, "min_history": 2},
    {"name": "star_pfl_likeness", "threshold_global": 0.3, "threshold_local": 0.3, "sampled": 20},
)


def suited(config: Config) -> Config:
    """The configuration with what a tiny federation cannot have, or would not show, replaced."""
    name, given, other = config["name"], config.get, {}
    coded = given("reading") == "authors_code"
    if name == "fedap" and not given("pretrain_epochs"):
        other = {"pretrain_epochs": 10}  # many more make much of rounding
    elif name == "fedpews_fixed" and len(given("shares") or range(4)) != 4:
        other = {"shares": (0.125, 0.125, 0.25, 0.5)}  # one for each of the four clients
    elif name == "fedmd" and given("public", "train") not in ("train", "public"):
        other = {"public": "tests.golden.methods:pictures", "public_normalise": "mnist"}
    elif name == "fedselect" and given("alpha") is not None and not given("p"):
        other = {"p": 0.2}  # so that a few rounds reach the limit
    elif name == "fedselect_gradltn" and given("keep_rate") == 0.25:
        other = {"num_search_iters": 2}  # after five nothing is left of so few entries
    elif name.startswith("star_pfl"):
        if given("max_frozen_fraction"):
            other["max_frozen_fraction"] = 0.05  # else so few entries freeze that it never binds
        if given("history_len_local", 5) > 8:
            other["history_len_local"] = 8  # more than a round has epochs, and not more than a few rounds have
        if given("stability_floor_quantile") or coded:
            other["stability_floor_quantile"] = 0.25  # else it is the least of so few scores
    elif name == "pfedgate" and len(config) > 1:
        other["eval_batch_size"] = 4  # else all test samples are one batch
        if coded:
            other |= {"keep_ratio": 0.6, "lr_gate": 20.0, "scale_bias_init": 3.0}  # else its last ReLU lets nothing by
        if given("selector") == "greedy_groups":
            other["lr_gate"] = 3.0  # importances in tenths soon differ
        if given("block_layout") == "output_rows":
            other["keep_ratio"] = 0.6  # else first blocks fill the budget
        if given("blocks_per_tensor") == 2:
            other["keep_ratio"] = 0.4  # here masks differ
    return {**config, **other}


ROUNDS = {
    "fedselect": 9,
    "fedpews": 8,
    "fedpews_fixed": 8,
    "lotteryfl": 7,
    "star_pfl": 13,
    "star_pfl_likeness": 3,
    "pfedgate": 3,
}
STAR = {"epochs": 6, "lr": 0.2}  # fills a client's window in a round; large steps, so that updates cancel
MOVING = {"momentum": 0.9, "weight_decay": 5e-4, "clip_norm": 1.0}
ABSENT = {"participation": 0.75, "novel": 0.25}  # two of three clients in a round; the fourth never
OF_CONV = {  # options that are about batch norm or named layers, about networks with images, or about absent clients
    *("layers", "buffer_policy", "buffer_aggregation", "bn_mode", "eligible_params", "train_mask_scope", "prune_norms"),
    *("public", "pretrain", "prob_over"),
}


def setting(net: str, config: Config) -> Setting:
    """Which federation a configuration runs on: dense with all clients, or convolutions with some absent."""
    name = config["name"]
    train = STAR if name.startswith("star_pfl") else {}
    if name == "pfedgate" or config.get("keep_momentum"):
        train = MOVING
        if config.get("reading"):
            train = {**MOVING, "lr": 0.3}
    elif name == "fedmask":
        train = {"lr": 20.0}  # nothing but masks is trained
    rounds = ROUNDS.get(name, 4)
    if net == "dense" or name == "star_pfl_likeness":  # which needs all clients
        return Setting(net, rounds, train)
    splits = ("train", "test", "val" if name == "lotteryfl" else "public")  # dense: it holds out training samples
    return Setting(
        net, min(rounds, 9), train, ABSENT, splits
    )  # with batch norm more rounds would make much of rounding


def key(net: str, config: Config) -> str:
    return f"{net} {json.dumps(config, sort_keys=True)}"


def parsed(text: str) -> tuple[str, Config]:
    net, _, config = text.partition(" ")
    return net, json.loads(config)


@cache
def wanted() -> tuple[str, ...]:
    """The cases: each configuration once, each method as it is on both networks."""
    found = {}
    of_records = [config for config, _ in stored("method")]
    for config in (*registered(), *of_records, *MORE):
        found.setdefault(repr(build(config)), config)
    cases = []
    for config in found.values():
        conv_only = config in MORE or bool(OF_CONV & config.keys()) or config["name"] in ("fedap", "fedbn")
        conv_only |= (
            config.get("reading") is not None and config["name"] != "pfedgate"
        )  # they are about batch norm, too
        nets = ("dense", "conv") if set(config) == {"name"} else ("conv",) if conv_only else ("dense",)
        cases += [key(net, config) for net in nets]
    return tuple(sorted(cases, key=lambda text: (parsed(text)[1]["name"], text)))


@cache
def played(text: str) -> Played:
    net, config = parsed(text)
    return play(config, setting(net, config))


def numbers(text: str) -> Numbers:
    return played(text).numbers()


def single(text: str) -> bool:
    """FedPeWS draws its first scores in single precision, and takes logarithms of them."""
    return "score_init" in parsed(text)[1]


def component(text: str) -> str:
    return f"method {parsed(text)[1]['name']}"
