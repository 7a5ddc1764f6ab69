"""Star-PFL's settings have the paper's values."""

from pfl_core.papers.star_pfl.settings import SETTINGS


def test_the_paper_preset_has_the_paper_values():
    """Batch size and learning rate are the authors' code's, the number of rounds is this project's choice."""
    for name, source in (("axial", "organamnist"), ("sagital", "organsmnist")):
        frame = SETTINGS.setting("paper", name)
        assert (frame.clients, frame.participation, frame.train.epochs) == (20, 1.0, 10)
        assert (frame.train.lr, frame.train.batch_size, frame.train.momentum) == (0.01, 32, 0.0)
        assert frame.data == {"name": source} and frame.partition == {"name": "paired_dirichlet", "alpha": 0.1}
        assert frame.rounds >= 389
