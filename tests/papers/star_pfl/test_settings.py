"""Star-PFL's settings say what its paper says."""

from pfl_core.papers.star_pfl.settings import SETTINGS


def test_star_pfl_has_the_stated_values_of_its_paper():
    """star_pfl.md section 9; batch and rate of the authors' code, the number of rounds ours."""
    for name, source in (("axial", "organamnist"), ("sagital", "organsmnist")):
        frame = SETTINGS.setting("paper", name)
        assert (frame.clients, frame.participation, frame.train.epochs) == (20, 1.0, 10)
        assert (frame.train.lr, frame.train.batch_size, frame.train.momentum) == (0.01, 32, 0.0)
        assert frame.data == {"name": source} and frame.partition == {"name": "paired_dirichlet", "alpha": 0.1}
        assert frame.rounds >= 389
