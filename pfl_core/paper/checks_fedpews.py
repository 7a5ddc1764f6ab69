"""Checks of FedPeWS's claims on results of ours: pure functions from a results frame to a verdict."""

from __future__ import annotations
