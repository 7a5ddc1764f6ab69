"""Which runs a notebook needs: one function for each experiment section, from a preset to specs.

Notebooks, ``pfl figures --dry-run`` and evidence made on another machine ask for the same runs here, and so share them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pfl_core.experiments import fedpews, fedselect, pfedgate, star_pfl
from pfl_core.presets import check_preset
from pfl_core.runs import Record, RunSpec, Store, sweep

Experiment = Callable[[str, Sequence[int], Mapping[str, Any]], list[RunSpec]]

SHOWN = 10  # missing runs that are listed by name
TWO = {"quick": (0, 1)}  # of notebooks that ask for many small runs: a paper's notebooks have five minutes together
SEEDS: dict[str, dict[str, tuple[int, ...]]] = {  # notebook, else paper, else "" -> seeds at each preset
    "": {"ci": (0, 1), "quick": (0, 1, 2), "real": (0, 1, 2), "paper": (0, 1, 2, 3, 4)},
    "fedselect/03_ablations": TWO,
    "fedselect/04_training_size": TWO,
    "fedselect/06_workshop_gradltn": TWO,
    "fedselect/07_paper_vs_code": TWO,
    "fedpews": {"ci": (0,), "quick": (0, 1), "real": (0,), "paper": (0, 1, 2)},
    "fedpews/01_synthetic": {"paper": (0, 1, 2, 3, 4)},
    "star_pfl": {"ci": (0,), "quick": (0, 1), "real": (0,), "paper": (0, 1, 2)},
    "star_pfl/01_stability_traces": {"paper": (0,)},
    "pfedgate": {"ci": (0,), "quick": (0, 1), "real": (0,), "paper": (0, 1, 2)},  # three in the paper
    "pfedgate/06_personalization_structure": {"quick": (0, 1, 2)},
}


def specs(
    notebook: str, preset: str, seeds: Sequence[int] | None = None, overrides: Mapping[str, Any] | None = None
) -> list[RunSpec]:
    """The runs of a notebook; ``seeds`` None: the preset's own. Raises ValueError for an unknown preset or setting.

    Runs that ``overrides`` (fields of the run or its training) make other ones than the preset's are marked so.
    """
    check_preset(preset)
    if seeds is None:
        names = (notebook, notebook.partition("/")[0], "")
        seeds = next(SEEDS[name][preset] for name in names if preset in SEEDS.get(name, {}))
    wanted = EXPERIMENTS[notebook](preset, seeds, overrides or {})
    if not overrides:
        return wanted
    own = {_numbers(one) for one in EXPERIMENTS[notebook](preset, seeds, {})}
    return [replace(one, changed=_numbers(one) not in own) for one in wanted]


def _numbers(one: RunSpec) -> str:
    """What decides a run's numbers; not where it is computed."""
    return str(replace(one, device="cpu").identity())


def available(wanted: Sequence[RunSpec], store: Store | None = None) -> list[RunSpec]:
    """Those of the runs that are stored, or whose data are on this machine; a line is printed for the others.

    Raises FileNotFoundError if none is left.
    """
    store, here, absent = store or Store(), [], {}
    for one in wanted:
        try:
            if store.drawn(one) is None:
                one.checksums()
            here.append(one)
        except (FileNotFoundError, ValueError) as error:  # not here, or a file of one's own that is gone
            absent.setdefault(str(error), []).append(one)
    if not here:
        raise FileNotFoundError(next(iter(absent), "no runs were asked for"))
    for why, left_out in absent.items():
        print(f"left out, {len(left_out)} runs: {why}")
    return here


def records(wanted: Sequence[RunSpec], train: bool = False, store: Store | None = None) -> list[Record]:
    """What a notebook draws: the stored records of these runs, and at presets ci and quick the missing ones as well.

    At real and paper a notebook computes nothing unasked: what is missing is listed, and made only with ``train``, or
    where the environment has PFL_TRAIN=1, as under ``pfl figures``. Records that were made with other data than those
    here are drawn if they are committed, see ``Store.drawn``; runs that were stopped early go on if training is asked
    for. Raises FileNotFoundError if there is nothing to draw.
    """
    store, slow = store or Store(), any(one.preset in ("real", "paper") for one in wanted)
    train = train or os.environ.get("PFL_TRAIN") == "1" or not slow
    stored = [store.drawn(one) for one in wanted]
    lacking = [i for i, record in enumerate(stored) if record is None or record.partial and train]
    if train:
        jobs = 1 if all(one.preset == "ci" for one in wanted) else None
        for i, record in zip(lacking, sweep([wanted[i] for i in lacking], jobs=jobs, store=store), strict=True):
            stored[i] = record
    elif lacking:
        print(_listed([wanted[i] for i in lacking], len(wanted)))
    found = [record for record in stored if record is not None]
    if not found:
        raise FileNotFoundError(
            f"none of these {len(wanted)} runs is stored; `pfl figures` makes them, or this notebook with TRAIN = True"
        )
    return found


def _listed(missing: Sequence[RunSpec], total: int) -> str:
    """What a figure is drawn without."""
    lines = [f"not stored, so not drawn: {len(missing)} of {total} runs (`pfl figures` or TRAIN = True makes them)"]
    lines += [f"   {one.label()}" for one in missing[:SHOWN]]
    return "\n".join(lines + [f"   and {len(missing) - SHOWN} more"] * (len(missing) > SHOWN))


EXPERIMENTS: dict[str, Experiment] = {
    "fedselect/01_main_comparison": fedselect.main_comparison,
    "fedselect/02_personalization_limit": fedselect.personalization_limit,
    "fedselect/03_ablations": fedselect.ablations,
    "fedselect/04_training_size": fedselect.training_size,
    "fedselect/05_mask_overlap": fedselect.mask_overlap,
    "fedselect/06_workshop_gradltn": fedselect.workshop,
    "fedselect/07_paper_vs_code": fedselect.paper_vs_code,
    "fedpews/01_synthetic": fedpews.synthetic,
    "fedpews/02_sensitivity_heatmaps": fedpews.sensitivity,
    "fedpews/03_baselines": fedpews.baselines,
    "fedpews/04_heterogeneity_and_scale": fedpews.heterogeneity,
    "fedpews/05_masks_and_activations": fedpews.masks,
    "star_pfl/01_stability_traces": star_pfl.stability_traces,
    "star_pfl/02_mask_similarity": star_pfl.mask_similarity,
    "star_pfl/04_accuracy": star_pfl.accuracy,
    "star_pfl/05_costs": star_pfl.costs,
    "star_pfl/06_ablations": star_pfl.ablations,
    "pfedgate/01_main_comparison": pfedgate.main_comparison,
    "pfedgate/02_sparsity_studies": pfedgate.sparsity_studies,
    "pfedgate/03_efficiency": pfedgate.efficiency,
    "pfedgate/04_gate_ablation": pfedgate.gate_ablation,
    "pfedgate/05_participation_and_novel": pfedgate.participation,
    "pfedgate/06_personalization_structure": pfedgate.structure,
}
