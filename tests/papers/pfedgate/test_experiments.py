"""Which runs pFedGate's notebooks ask for."""

from pfl_core.papers.pfedgate.paper import PAPER


def test_what_is_asked_for_twice_keeps_its_first_setting():
    """pFedGate 01 tries rates, its own among them: that run is the main one, not one of those that are tried."""
    made = PAPER.specs("01_main_comparison", "real", [0])
    settings = {(one.method["name"], one.train.lr): one.setting for one in made if one.method["name"] == "fedrep"}
    assert settings["fedrep", 0.1] == "fashion_mnist" and settings["fedrep", 0.3] == "fashion_mnist, lr=0.3"
    assert len({str(one.identity()) for one in made}) == len(made)
