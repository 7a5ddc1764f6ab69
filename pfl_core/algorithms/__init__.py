"""One file per method; importing this package registers them all."""

from pfl_core.algorithms import fedavg, fednova, fedpews, fedprox, fedselect, local, moon, scaffold

__all__ = ["fedavg", "fednova", "fedpews", "fedprox", "fedselect", "local", "moon", "scaffold"]
