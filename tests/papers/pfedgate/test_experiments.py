"""Which runs pFedGate's notebooks ask for."""

from pfl_core.papers.pfedgate.paper import PAPER


def test_no_run_is_asked_for_twice():
    for notebook in PAPER.experiments:
        for preset in ("ci", "quick", "real"):
            made = PAPER.specs(notebook, preset, [0])
            assert len({str(one.identity()) for one in made}) == len(made), (notebook, preset)


def test_a_search_chooses_among_the_runs_that_the_comparison_makes():
    """So that the chosen run is not made again."""
    for (preset, setting), searches in PAPER.searches.items():
        asked = [one for one in PAPER.specs("01_main_comparison", preset, [0]) if one.setting == setting]
        for search in searches:
            values = {name: grid[0] for name, grid in search.grid.items()}
            tried = search.spec(PAPER.settings, preset, setting, values).method
            same = {k: v for k, v in tried.items() if k not in search.grid}
            found = [{k: v for k, v in one.method.items() if k not in search.grid} for one in asked]
            assert same in found, search.method
