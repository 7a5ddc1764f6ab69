"""Evidence from a GPU: ``make gpu-evidence``, or ``python -m tests.gpu OUT [--device D] [--minutes M]``.

Three steps, each with its table in the folder OUT:

1. agreement.csv: every method on the device and on the CPU. If a method differs by more than a few test images, the
   next steps are left out and the exit status is 1.
2. speed.csv: seconds of a FedAvg round with all clients in one batched computation, and one after the other, also in
   bf16.
3. The runs of the queue, in its order, until the time is up; finished ones are in OUT/records.zip. The same command
   continues. Unpacked into data/runs, ``pfl runs export --results`` takes them into the repository.
"""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pandas as pd
import torch

from pfl_core import models, papers
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.deadline import TimeUpError
from pfl_core.federation import Federation
from pfl_core.federation.types import Split
from pfl_core.files import atomic_write
from pfl_core.runs import Record, RunSpec, Store, SweepError, sweep
from pfl_core.seeding import generator
from pfl_core.training import Training

QUEUE = (  # notebook, preset, fields of the runs that are wanted; first what tells most
    ("fedselect/01_main_comparison", "paper", {"method": ("local", "fedselect", "fedavg", "fedavg_ft", "fedper")}),
    ("fedpews/02_sensitivity_heatmaps", "paper", {"setting": ("cifar_mnist",)}),
    ("fedselect/02_personalization_limit", "paper", {}),
    ("pfedgate/01_main_comparison", "paper", {"setting": ("cifar10",)}),
    ("pfedgate/02_sparsity_studies", "paper", {"setting": ("cifar10",)}),
)
TOLERANCE = 2.0  # points by which a method's mean accuracy may differ between the devices
NETWORKS = {  # with their inputs' shapes
    "resnet18": (3, 32, 32),
    "lenet_cifar": (3, 32, 32),
    "cnn_small": (3, 32, 32),
    "fc_pews": (5,),
}
WAYS = {  # of training: the federation's ``batched``, and the precision
    "batched": (True, "float32"),
    "one after the other": (False, "float32"),
    "the same, bf16": (False, "bf16"),
}
CLIENTS, SAMPLES, TURNS = 20, 500, 3  # of the speed measurement


def agreement(device: str, store: Store) -> pd.DataFrame:
    """A row per method: mean accuracy on the CPU and on the device after three rounds on digits, in percent."""
    specs = papers.specs("across/00_all_methods", "ci", [0])
    here, there = (sweep([replace(s, device=d) for s in specs], jobs=1, store=store) for d in ("cpu", device))
    rows = [
        (spec.label(), a.summary()["acc_mean"], b.summary()["acc_mean"])
        for spec, a, b in zip(specs, here, there, strict=True)
    ]
    table = pd.DataFrame(rows, columns=["run", "cpu", "device"])
    return table.assign(difference=table["device"] - table["cpu"])


def speed(device: str, networks: Mapping[str, tuple[int, ...]]) -> pd.DataFrame:
    """A row per network: seconds of a FedAvg round, the fastest of TURNS after one that is not counted."""
    rows = []
    for name, shape in networks.items():
        stream, classes = generator(0, "samples"), 4 if name == "fc_pews" else 10
        x = torch.randn(CLIENTS, SAMPLES, *shape, generator=stream)
        y = torch.randint(0, classes, (CLIENTS, SAMPLES), generator=stream)
        split, seconds = Split.of(list(zip(x, y, strict=True))), {}
        for how, (batched, precision) in WAYS.items():
            net, splits, train = models.build(name, shape, classes, 0), {"train": split, "test": split}, Training()
            train = replace(train, precision=precision)
            fed = Federation(net, splits, seed=0, rounds=TURNS + 1, train=train, device=device, batched=batched)
            seconds[how] = min(list(turns(fed))[1:])
        rows.append({"network": name, **seconds, "ratio": seconds["one after the other"] / seconds["batched"]})
    return pd.DataFrame(rows)


def turns(fed: Federation) -> Iterator[float]:
    """The seconds of each of TURNS + 1 rounds of FedAvg with all clients."""
    algorithm, clients = FedAvg(), torch.arange(fed.num_clients)
    state = algorithm.init(fed, fed.theta0)
    for t in range(TURNS + 1):
        began = time.perf_counter()
        state, _ = algorithm.round(fed, state, clients, t)
        float(state.shared.sum())  # waits for the device
        yield time.perf_counter() - began


def wanted(device: str, queue: Iterable[tuple[str, str, Mapping[str, Sequence[str]]]]) -> list[RunSpec]:
    """The queue's runs on the device, seed by seed within a notebook."""
    specs = []
    for notebook, preset, only in queue:
        chosen = [
            replace(spec, device=device)
            for spec in papers.specs(notebook, preset)
            if spec.method["name"] in only.get("method", (spec.method["name"],))
            and spec.setting in only.get("setting", (spec.setting,))
        ]
        specs += sorted(chosen, key=lambda spec: spec.seed)
    return list({spec.key(): spec for spec in specs}.values())


def work(specs: Sequence[RunSpec], store: Store, archive: Path, until: float) -> int:
    """Compute the runs one after another until the time is up. Returns how many are finished and in the archive."""
    done: list[Record] = []
    for spec in specs:
        try:
            done += sweep([spec], jobs=1, store=store, stop_at=until)
        except TimeUpError:
            break
        except SweepError as error:  # e.g. its data are not here
            print(error, flush=True)
            continue
        packed = io.BytesIO()  # written whole each time, so that a kill leaves a readable file
        with ZipFile(packed, "w", ZIP_DEFLATED) as file:
            for path in filter(Path.exists, (store.path(record.key) for record in done)):
                file.write(path, path.name)
        atomic_write(archive, packed.getvalue())
    return len(done)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for the tables and the records")
    parser.add_argument("--device", default="cuda", metavar="D")
    parser.add_argument("--minutes", type=float, default=10, metavar="M", help="time until the end (default 10)")
    args = parser.parse_args(arguments)
    try:
        torch.empty(1, device=args.device)
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch without CUDA
        parser.exit(2, f"device {args.device} does not work: {str(error).splitlines()[0]}\n")
    store, until = Store(), time.time() + 60 * args.minutes
    args.out.mkdir(parents=True, exist_ok=True)
    same = agreement(args.device, store)
    same.to_csv(args.out / "agreement.csv", index=False)
    print(same.to_string(float_format="{:.2f}".format), flush=True)
    if not (same["difference"].abs() <= TOLERANCE).all():
        print(f"the devices differ by more than {TOLERANCE:g} points; nothing else is done")
        return 1
    times = speed(args.device, NETWORKS)
    times.to_csv(args.out / "speed.csv", index=False)
    print(times.to_string(float_format="{:.3f}".format), flush=True)
    specs = wanted(args.device, QUEUE)
    print(f"{work(specs, store, args.out / 'records.zip', until)} of {len(specs)} runs of the queue are finished")
    return 0


if __name__ == "__main__":
    sys.exit(main())
