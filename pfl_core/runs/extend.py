"""Continues a stored run to more rounds, from its kept final state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pfl_core.runs.record import Record
from pfl_core.runs.spec import RunSpec
from pfl_core.runs.store import Store


def horizon_dependence(spec: RunSpec) -> str:
    """Why rounds of this run depend on the planned number of rounds, as one clause; "" if they do not.

    If they do, a run with more rounds differs from round 0 on and cannot continue this one.
    """
    method = spec.build_method()
    reasons = [algorithm.horizon_dependence() for algorithm in (method, *method.inner_algorithms)]
    if spec.train.milestones:
        reasons.append(f"the learning rate changes at fractions of the planned rounds ({spec.train.milestones})")
    return next((reason for reason in reasons if reason), "")


def shorter_runs(spec: RunSpec, store: Store, checksums: Mapping[str, str]) -> list[Record]:
    """The stored runs with a checkpoint that differ from this one only in the number of rounds and completed fewer.

    Those with most rounds come first. Stale runs are left out, and runs with other data than ``checksums``.
    """
    records = [store.get(path.stem) for path in store.own("*.ckpt")]
    shorter = [
        record
        for record in records
        if record is not None
        and record.rounds < spec.rounds != record.spec.rounds
        and record.data == checksums
        and not record.stale
        and replace(record.spec, rounds=spec.rounds).key() == spec.key()
    ]
    return sorted(shorter, key=lambda record: record.rounds, reverse=True)
