"""Gates and labels of the clients: Figure 4, and the tests of what it shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from pfl_core.papers.pfedgate.results.studies import label, labels_held
from pfl_core.runs import Record
from pfl_core.study import similarity as overlap


def tree_rows(tree: Mapping[str, list], held: np.ndarray, published: pd.DataFrame) -> pd.DataFrame:
    """The rows behind ``figures.studies.label_tree``: leaves here, leaves of the paper, branches.

    Columns: part, client, labels, across, distance. Lists are text.
    """
    leaves = [("here, leaf", k, _text(np.flatnonzero(held[k]))) for k in tree["leaves"]]
    printed = zip(published["client"], published["labels"], strict=True)
    leaves += [("paper, leaf", client, _text(labels)) for client, labels in printed]
    branches = pd.DataFrame({"across": tree["icoord"], "distance": tree["dcoord"]})
    branches = branches.map(lambda corners: " ".join(map("{:.4g}".format, corners)))
    return pd.concat([pd.DataFrame(leaves, columns=["part", "client", "labels"]), branches.assign(part="here, branch")])


def _text(labels: Iterable[int]) -> str:
    return " ".join(map(str, labels))


def neighbours(records: Iterable[Record], published: pd.DataFrame) -> pd.DataFrame:
    """Share of common labels of neighbouring leaves and of all pairs, and p, see ``similarity.neighbours``.

    A row for the paper's leaves (``published``: see ``published.figure4``) and for each run's.
    """
    printed = np.zeros((len(published), 10), dtype=bool)  # [leaves, classes]
    for row, labels in zip(printed, published["labels"], strict=True):
        row[list(labels)] = True
    leaves = {"paper, Figure 4": printed}
    for record in records:
        order = overlap.ward(np.array(record.arrays["gate_distances"]))["leaves"]
        leaves[f"here, {label(record)}, seed {record.spec.seed}"] = labels_held(record)[order]
    rows = {name: overlap.neighbours(overlap.common_share(held)) for name, held in leaves.items()}
    columns = ["neighbours", "all pairs", "p"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("leaves")


def correlations(records: Iterable[Record]) -> pd.DataFrame:
    """Rank correlations over pairs of clients with p-values (Mantel test, two-sided), a row per run.

    ``gates``: distance of the gates and common labels; ``masks``: the same with the distance of the masks on test data;
    ``gates and sizes``: distance of the gates and difference in the numbers of training samples.
    """
    rows = []
    for record in records:
        distance, size = np.array(record.arrays["gate_distances"]), np.array(record.clients["train"]).sum(1)
        common, masks = overlap.common_share(labels_held(record)), np.array(record.arrays["test_masks"])
        # share of the model that one client keeps and the other does not [N, N]
        apart = np.abs(masks[:, None] - masks) @ np.array(record.arrays["block_sizes"]) / record.num_params
        uneven = np.abs(size[:, None] - size).astype(float)
        tests = [(common, distance), (common, apart), (uneven, distance)]
        (gates, p), (of_masks, p_masks), (sizes, _) = (
            overlap.mantel(*pair, ranks=True, two_sided=True) for pair in tests
        )
        tags = (label(record), record.spec.seed, record.curve()["acc_pooled"].iloc[-1])
        rows.append((*tags, gates, p, of_masks, p_masks, sizes))
    columns = ["run", "seed", "accuracy", "gates", "p", "masks", "p ", "gates and sizes"]
    return pd.DataFrame(rows, columns=columns)
