"""One file per method; importing this package registers them all."""

from pfl_core.algorithms import fedavg, fedselect, local

__all__ = ["fedavg", "fedselect", "local"]
