"""Records of Star-PFL's comparison with invented accuracies and uploads."""

from pfl_core.papers.star_pfl.settings import SETTINGS
from pfl_core.runs import Record

D, MACS = 44_555, 281_724
TRAIN = [[1761] * 1 + [0] * 10] * 10 + [[1762] + [0] * 10] * 10  # mean 1761.5: Axial's, rounded
ROUNDS = [1, 2, 3]


def record(method, *, val=(0.5, 0.9, 0.8), test=(0.4, 0.6, 0.7), trained=(0.6, 0.8, 0.5), **series):
    """Twenty clients, three rounds; accuracies are the same for all clients."""
    spec = SETTINGS.spec(method, preset="paper", overrides={"rounds": 3})
    given = {name: (ROUNDS, [[100 * value] * 20 for value in values]) for name, values in
             {"correct_val": val, "correct": test, "correct_trained": trained}.items()}  # fmt: skip
    counts = {f"count{end}": (ROUNDS, [[100] * 20] * 3) for end in ("", "_val", "_trained")}
    noted = {name: (ROUNDS, value if isinstance(value, list) else [[value] * 20] * 3)
             for name, value in ({"upload": D, "loss": 1.0} | series).items()}  # fmt: skip
    return Record(
        "key", spec, given | counts | noted, clients={"train": TRAIN}, num_params=D, flops=6 * MACS - 2 * 86_400
    )
