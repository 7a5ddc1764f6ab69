"""Shared figures show the given data: dots, lines, bands, titles, colours, captions."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from pfl_core import methods
from pfl_core.papers import PAPERS
from pfl_core.study import plots
from pfl_core.study import plots as common
from tests.plots import data, drawn, named, texts


def test_every_method_has_a_name_and_in_each_paper_a_colour_of_its_own():
    assert set(plots.NAMES) == set(plots.COLORS) == set(methods())
    for paper in PAPERS:
        colors = [plots.COLORS[name] for name, entry in methods().items() if paper in entry.papers]
        assert len(set(colors)) == len(colors)


def test_curves_of_one_seed_are_hollow_and_have_no_band():
    rows = [("p", label, "b", 0, t, 10.0 * t) for label in ("FedAvg", "Local") for t in (1, 2, 3)]
    runs = pd.DataFrame(rows, columns=["panel", "label", "color", "seed", "round", "value"])
    fig = drawn(plots.curve_panels(runs, "caption"))
    assert not fig.axes[0].collections and "one seed" in fig.get_supxlabel() and "band" not in fig.get_supxlabel()
    assert {line.get_markerfacecolor() for line in named(fig.axes[0]).values()} == {"w"}
    several = drawn(plots.curve_panels(pd.concat([runs, runs.assign(seed=1)]), "caption"))
    assert "bands: lowest to highest seed" in several.get_supxlabel()
    assert {line.get_markerfacecolor() for line in named(several.axes[0]).values()} == {"b"}


def test_many_lines_have_no_bands():
    rows = [("p", f"m{i}", "b", s, t, i + s) for i in range(plots.MANY + 1) for s in (0, 1) for t in (1, 2)]
    runs = pd.DataFrame(rows, columns=["panel", "label", "color", "seed", "round", "value"])
    fig = drawn(plots.curve_panels(runs, "caption"))
    assert not fig.axes[0].collections and "no bands: many lines" in fig.get_supxlabel()


def test_dots_of_one_seed_are_hollow_and_the_note_says_so():
    table = pd.DataFrame({"dataset": "", "panel": "p", "label": ["a", "b"], "color": "b", "value": [1.0, 2.0]})
    fig = drawn(plots.mean_dots(table.assign(std=[np.nan, 0.5], paper=[1.5, np.nan]), "caption"))
    _, one, several = (bar.lines[0] for bar in fig.axes[0].containers)
    assert (one.get_markerfacecolor(), several.get_markerfacecolor()) == ("w", "b")
    caption = " ".join(fig.get_supxlabel().split())
    assert plots.ONE_SEED in caption and "standard deviation over seeds" in caption and "black ◇: the paper" in caption
    plain = drawn(plots.mean_dots(table.assign(std=np.nan), "caption")).get_supxlabel()
    assert "deviation" not in plain and "paper" not in plain


def test_panels_have_letters_and_display_names():
    rows = [(panel, "FedAvg", "b", 0, 1, 10.0) for panel in ("cifar10", "cifar10_c")]
    runs = pd.DataFrame(rows, columns=["panel", "label", "color", "seed", "round", "value"])
    fig = drawn(plots.curve_panels(runs))
    assert [ax.get_title(loc="left") for ax in fig.axes] == ["a", "b"]
    assert [ax.get_title() for ax in fig.axes] == ["CIFAR-10", "CIFAR-10-C"]


def test_who_got_what_has_a_dot_for_each_class_of_a_client():
    """Area as samples: 80 for the most, 4."""
    fig = drawn(plots.who_got_what(np.array([[4, 0], [2, 1], [0, 3]]), "title"))
    (ax,) = fig.axes
    (dots,) = ax.collections
    assert dots.get_offsets().tolist() == [[0, 0], [1, 0], [1, 1], [2, 1]]
    assert dots.get_sizes().tolist() == [80, 40, 20, 60]
    assert ax.get_title() == "title"
    assert (texts(ax.get_xticklabels()), texts(ax.get_yticklabels())) == (["0", "1", "2"], ["0", "1"])


def test_curves_are_means_over_seeds_and_bands_their_span():
    """Seeds 2 below and 2 above 10, 20, 30 (FedAvg) and 50, 60, 70 (Local)."""
    rows = [
        (panel, label, color, seed, t, start + 10.0 * t + 4 * seed - 2)
        for panel in ("left", "right")
        for label, color, start in (("FedAvg", "b", 0), ("Local", "g", 40))
        for seed in (0, 1)
        for t in (1, 2, 3)
    ]
    runs = pd.DataFrame(rows, columns=["panel", "label", "color", "seed", "round", "value"])
    fig = drawn(plots.curve_panels(runs, "caption", "accuracy"))
    assert [ax.get_title() for ax in fig.axes] == ["left", "right"] and fig.axes[0].get_ylabel() == "accuracy"
    for ax in fig.axes:
        assert {name: (line.get_color(), *data(line)) for name, line in named(ax).items()} == {
            "FedAvg": ("b", [1, 2, 3], [10, 20, 30]),
            "Local": ("g", [1, 2, 3], [50, 60, 70]),
        }
        spans = [band.get_paths()[0].vertices[:, 1] for band in ax.collections]
        assert [(y.min(), y.max()) for y in spans] == [(8, 32), (48, 72)]
    assert texts(fig.legends[0].get_texts()) == ["FedAvg", "Local"]
    (alone,) = plots.curve_panels(runs[runs["panel"] == "left"]).axes
    assert alone.get_title() == ""


def test_the_legend_names_what_any_panel_draws():
    """FedAvg on the left, Local on the right."""
    rows = [("left", "FedAvg", "b", 0, 1, 10.0), ("right", "Local", "g", 0, 1, 20.0)]
    fig = drawn(plots.curve_panels(pd.DataFrame(rows, columns=["panel", "label", "color", "seed", "round", "value"])))
    assert texts(fig.legends[0].get_texts()) == ["FedAvg", "Local"]


def test_closer_curves_leave_the_start_and_far_outliers_out():
    """Eight methods end between 91 and 98, FedAvg at 30; all start at 10."""
    ends = {"FedAvg": 30.0, "FedSelect": 98.0, **{f"m{i}": 91.0 + i for i in range(7)}}
    rows = [("p", name, "b", 0, t, 10.0 if t == 0 else end) for name, end in ends.items() for t in range(5)]
    runs = pd.DataFrame(rows, columns=["panel", "label", "color", "seed", "round", "value"])
    whole, near = drawn(plots.curve_panels(runs, closer=True, front="FedS")).axes
    assert (whole.get_xlabel(), near.get_xlabel()) == ("", "communication round")
    assert whole.get_ylim()[0] < 10 and near.get_ylim() == (90, 99)
    above = {name: (line.get_linewidth(), line.get_zorder()) for name, line in named(near).items()}
    assert all((width, order) < above["FedSelect"] for name, (width, order) in above.items() if name != "FedSelect")


def test_mean_dots_draws_a_line_for_each_label():
    rows = [("digits", "mean", "FedAvg", "b", 80.0, 2.0), ("digits", "mean", "Local", "g", 70.0, np.nan)]
    rows += [("digits", "worst", "Local", "g", 50.0, 1.0), ("mnist", "mean", "Local", "g", 90.0, 1.0)]
    table = pd.DataFrame(rows, columns=["dataset", "panel", "label", "color", "value", "std"])
    fig = drawn(plots.mean_dots(table, "caption"))
    first, second, third, empty = fig.axes
    titles = ["Digits: mean", "Digits: worst", "MNIST: mean"]
    assert [ax.get_title() for ax in (first, second, third)] == titles and not empty.axison
    assert "dashed: FedAvg" in fig.get_supxlabel()
    assert [(data(bar.lines[0]), bar.lines[0].get_color()) for bar in first.containers] == [
        (([80], [0]), "b"), (([70], [-1]), "g"),
    ]  # fmt: skip
    assert [bar.has_xerr for bar in first.containers] == [True, False]
    assert first.containers[0].lines[2][0].get_segments()[0][:, 0].tolist() == [78, 82]
    assert data(third.containers[0].lines[0]) == ([90], [0])  # a row holds the labels of its data set alone
    assert texts(first.get_yticklabels()) == ["FedAvg", "Local"] and texts(third.get_yticklabels()) == ["Local"]
    assert [ax.lines[-1].get_linestyle() == "--" for ax in (first, second, third)] == [True, False, False]
    assert first.lines[-1].get_xdata()[0] == 80
    local = plots.mean_dots(table, "caption", dashed="Local").axes
    assert [ax.lines[-1].get_xdata()[0] for ax in local[:3]] == [70, 50, 90]
    assert "dashed: FedAvg (not on MNIST)" in fig.get_supxlabel().replace("\n", " ")
    assert "dashed" not in drawn(plots.mean_dots(table, dashed="Ditto")).get_supxlabel()


def test_leads_over_nothing_are_refused():
    with pytest.raises(ValueError, match="no run of another method"):
        plots.lead_dots(pd.DataFrame(columns=["dataset", "label", "color", "lead", "low", "high", "seeds"]), "FedAvg")


def test_a_far_outlier_is_a_number_at_the_edge():
    """20 beside 80, 81, ..., 88: drawn to scale it would take nine tenths of the panel."""
    values = [20.0, *range(80, 89)]
    table = pd.DataFrame({"dataset": "", "panel": "mean", "label": list("abcdefghij"), "color": "b", "value": values})
    (ax,) = drawn(plots.mean_dots(table.assign(std=np.nan))).axes
    assert len(ax.containers) == 9 and ax.get_xlim()[0] > 70
    assert [text.get_text().strip() for text in ax.texts] == ["◂ 20.0"]


def test_many_equal_values_make_no_outlier_of_one_a_little_lower():
    values = [93.7] * 7 + [93.6, 93.8]
    table = pd.DataFrame({"dataset": "", "panel": "mean", "label": list("abcdefghi"), "color": "b", "value": values})
    (ax,) = drawn(plots.mean_dots(table.assign(std=np.nan))).axes
    assert len(ax.containers) == 9 and not ax.texts


def test_a_score_that_is_missing_leaves_its_row_blank():
    table = pd.DataFrame({"dataset": "", "panel": "mean", "label": list("abc"), "color": "b", "std": np.nan})
    (ax,) = drawn(plots.mean_dots(table.assign(value=[80.0, np.nan, 82.0]))).axes
    assert len(ax.containers) == 2 and not ax.texts
    assert texts(ax.get_yticklabels()) == ["a", "b", "c"]


@pytest.mark.parametrize("width", [3.0, 8.0])
def test_a_caption_is_broken_into_lines_that_fit(width):
    said = "preset quick, Digits, seeds 0 to 2, " * 8
    fig = common.captioned(plt.figure(figsize=(width, 2)), f"{said}\nsecond")
    *first, second = fig.get_supxlabel().splitlines()
    assert " ".join(first) == said.strip() and second == "second"
    longest = max(map(len, first))
    assert width * common.CAPTION_PER_INCH - 12 < longest <= width * common.CAPTION_PER_INCH
    assert common.captioned(plt.figure(), "").get_supxlabel() == ""


def test_leads_have_intervals_and_far_ones_are_numbers_at_the_edge():
    """FedSelect leads Local by 2 [1, 3], FedAvg + FT by -1 in one seed, FedAvg by 40; the paper says 8 over Local."""
    rows = [
        ("d", "Local", 2.0, 1.0, 3.0, 4, 8.0),
        ("d", "FedAvg", 40.0, 39.0, 41.0, 4, np.nan),
        ("d", "FedAvg + FT", -1.0, np.nan, np.nan, 1, np.nan),
        ("d", "Ditto", 0.5, 0.0, 1.0, 4, np.nan),
    ]
    table = pd.DataFrame(rows, columns=["dataset", "label", "lead", "low", "high", "seeds", "paper"])
    fig = drawn(plots.lead_dots(table.assign(color="b"), "FedSelect", "caption"))
    (ax,) = fig.axes
    assert ax.lines[0].get_xdata()[0] == 0 and ax.get_xlim()[1] < 20
    assert texts(ax.get_yticklabels()) == ["Local", "FedAvg", "FedAvg + FT", "Ditto"]
    marks = [bar.lines[0] for bar in ax.containers]
    assert list(map(data, marks)) == [([8], [0]), ([2], [0]), ([-1], [-2]), ([0.5], [-3])]
    assert ax.containers[1].lines[2][0].get_segments()[0][:, 0].tolist() == [1, 3]
    assert [line.get_markerfacecolor() for line in marks] == ["w", "b", "w", "b"]
    assert [text.get_text().strip() for text in ax.texts] == ["40.0 ▸"]
    caption = " ".join(fig.get_supxlabel().split())
    notes = ("the lead of FedSelect, over each method", "paired over 4 seeds", "hollow: no interval", "◇: the paper")
    assert all(note in caption for note in notes)
    whole = plots.lead_dots(table[table["seeds"] == 4].assign(color="b", paper=np.nan), "FedSelect", "caption")
    assert "hollow" not in whole.get_supxlabel() and "paper" not in whole.get_supxlabel()


def test_leads_over_one_method_have_labels_and_a_scale_for_each_data_set():
    rows = [("a", "FedAvg", 1.0), ("a", "Ditto", 2.0), ("a", "FedMD", -40.0), ("a", "MOON", 1.5), ("b", "Ditto", -40.0)]
    table = pd.DataFrame(rows, columns=["dataset", "label", "lead"]).assign(low=np.nan, high=np.nan, seeds=1, color="b")
    fig = drawn(plots.lead_dots(table, "Local", "caption", over=True))
    first, second = fig.axes
    assert texts(first.get_yticklabels()) == ["FedAvg", "Ditto", "FedMD", "MOON"]
    assert texts(second.get_yticklabels()) == ["Ditto"]
    assert [text.get_text().strip() for text in first.texts if "40" in text.get_text()] == ["◂ -40.0"]
    assert first.get_xlim()[0] > -10 and second.get_xlim()[0] < -20
    assert "the lead of each method over Local" in " ".join(fig.get_supxlabel().split())


# ---- the plots of the notebooks: a frame in, columns by name, a figure out ------------------------------------------

RUNS = pd.DataFrame(
    [(where, label, seed, base + seed + 3 * (where == "cifar10_c")) for where in ("cifar10", "cifar10_c")
     for label, base in (("FedSelect, α = 0.3", 70.0), ("Local", 71.0), ("FedAvg", 30.0)) for seed in range(3)],
    columns=["where", "label", "seed", "acc"],
)  # fmt: skip


def marks(ax):
    """Height -> (place, face) of the marks of a panel of ``intervals``, without the dots of the seeds."""
    found = [line for line in ax.lines if line.get_marker() not in (".", "None", None)]
    return {line.get_ydata()[0]: (line.get_xdata()[0], line.get_markerfacecolor()) for line in found}


def test_intervals_have_means_bars_and_seeds_and_one_scale_a_row():
    fig = drawn(plots.intervals(RUNS, "acc", col="where", line="Local"))
    left, right = fig.axes
    assert [ax.get_title() for ax in fig.axes] == ["CIFAR-10", "CIFAR-10-C"] and left.get_xlim() == right.get_xlim()
    assert texts(left.get_yticklabels()) == ["FedSelect, α = 0.3", "Local", "FedAvg"]
    assert marks(left)[0] == (71.0, plots.COLORS["fedselect"]) and marks(right)[-1][0] == 75.0
    bars = [line for line in left.lines if len(set(line.get_xdata())) == 2 and line.get_ydata()[0] == 0]
    half = 4.302653 / np.sqrt(3)  # t quantile with 2 degrees of freedom, standard deviation 1
    assert sorted(bars[0].get_xdata()) == pytest.approx([71 - half, 71 + half], abs=1e-3)
    assert any(list(line.get_xdata()) == [72.0, 72.0] for line in left.lines)  # the mean of Local, dashed
    assert "over 3 seeds" in fig.get_label() and "dashed: Local" in fig.get_label()


def test_intervals_far_from_the_others_are_numbers_at_the_edge():
    table = pd.DataFrame({"label": list("abcdefg"), "acc": [70.0, 70.5, 71.0, 71.5, 70.2, 70.8, 5.0], "paper": 60.0})
    fig = drawn(plots.intervals(table, "acc", paper="paper"))
    assert any("5.0" in text for text in texts(fig.axes[0].texts)) and fig.axes[0].get_xlim()[0] > 50
    whole = drawn(plots.intervals(table, "acc", paper="paper", cut=False))
    assert not whole.axes[0].texts and whole.axes[0].get_xlim()[0] < 5
    assert "hollow: no interval" in fig.get_label() and "the paper" in fig.get_label()


def test_given_intervals_are_drawn_as_they_are():
    ahead = pd.DataFrame({"label": ["Local"], "lead": 1.0, "low": -2.0, "high": 4.0, "seeds": 5, "paper": 3.0})
    fig = drawn(plots.intervals(ahead, "lead", low="low", high="high", paper="paper", line=0))
    (bar,) = (line for line in fig.axes[0].lines if list(line.get_xdata()) == [-2.0, 4.0])
    assert bar.get_color() == plots.COLORS["local"] and "over 5 seeds" in fig.get_label()


def test_curves_take_any_columns_and_mark_the_papers_values():
    rows = RUNS.rename(columns={"seed": "x"}).assign(seed=0, paper=[*range(18)])
    fig = drawn(plots.curves(rows, "x", "acc", col="where", paper="paper", xlabel="images"))
    line = named(fig.axes[0])["Local"]
    assert data(line) == ([0, 1, 2], [71.0, 72.0, 73.0]) and line.get_color() == plots.COLORS["local"]
    assert fig.axes[1].get_xlabel() == "images" and "◇: the paper" in fig.get_label()
    assert sum(line.get_marker() == "D" and line.get_markerfacecolor() == "none" for line in fig.axes[0].lines) == 3


def test_closer_curves_have_the_scale_of_the_second_half():
    rows = [("p", "Local", 0, t, 10.0 * t) for t in range(1, 11)]
    by_round = pd.DataFrame(rows, columns=["where", "label", "seed", "round", "value"])
    assert drawn(plots.curves(by_round, closer=True)).axes[0].get_ylim() == (59.0, 101.0)
    assert drawn(plots.curves(by_round)).axes[0].get_ylim()[0] < 20


def test_heat_has_the_means_as_text_and_one_scale():
    table = pd.DataFrame(
        {"x": [1, 1, 2, 2], "y": ["a", "a", "a", "b"], "v": [1.0, 3.0, 5.0, 7.0], "p": ["q", "q", "r", "r"]}
    )
    fig = drawn(plots.heat(table, "x", "y", "v", col="p"))
    assert texts(fig.axes[0].texts) == ["2.0"] and texts(fig.axes[1].texts) == ["5.0", "7.0"]
    assert {ax.collections[0].get_clim() for ax in fig.axes[:2]} == {(2.0, 7.0)}


def test_matrices_name_the_clients_once_if_they_are_the_same():
    part = pd.DataFrame(np.eye(2), ["0,1", "2"], ["0,1", "2"])
    fig = drawn(plots.matrices({"α = 0.3": part, "α = 0.5": part}, label="overlap"))
    assert texts(fig.axes[0].get_yticklabels()) == ["0,1", "2"] and texts(fig.axes[1].get_yticklabels()) == []


def test_labels_look_like_their_methods_and_differ():
    found = plots.label_looks(["FedSelect, α = 0.3", "FedSelect, α = 0.5", "a rule", "another"], {"another": "red"})
    assert found["FedSelect, α = 0.3"].color == plots.COLORS["fedselect"] and found["another"].color == "red"
    assert len({(look.color, look.dash) for look in found.values()}) == 4


FRAME = pd.DataFrame(
    {"preset": "real", "data": "cifar10", "clients": 10, "model_name": "resnet18", "rounds": [40, 100],
     "train_epochs": 3, "train_lr": [0.05, 0.01], "seed": [0, 0], "setting": ["a", "b"], "by_hand": False}
)  # fmt: skip


def test_a_caption_has_what_the_runs_have_in_common_and_the_span_of_the_rest():
    assert plots.caption(FRAME) == (
        "preset real: CIFAR-10; 10 clients, ResNet18, 40 to 100 rounds, 3 local epochs, rate 0.01 to 0.05; one seed: 0"
    )
    more = pd.concat([FRAME, FRAME.assign(seed=1).head(1)])
    assert plots.caption(more).endswith("1 to 2 seeds a data set")
    assert plots.caption(pd.concat([FRAME, FRAME.assign(seed=1)])).endswith("seeds 0, 1")
    assert plots.caption(FRAME.assign(preset="", train_epochs=1)).startswith("CIFAR-10; 10 clients, ResNet18, 40 to")
    assert "one local epoch," in plots.caption(FRAME.assign(train_epochs=1))


def test_a_figure_is_saved_with_its_numbers_and_the_same_bytes_each_time(tmp_path, monkeypatch):
    monkeypatch.setenv("PFL_FIGURES_DIR", str(tmp_path))
    monkeypatch.setenv("PFL_FIGURE_FORMATS", "pdf,svg")
    shown, written = [], []
    monkeypatch.setattr(plots, "display", shown.append)
    for _ in range(2):
        plots.save(plots.intervals(RUNS, "acc"), RUNS, "paper/name", FRAME, "a note")
        written.append({path.name: path.read_bytes() for path in (tmp_path / "real/paper").iterdir()})
    assert written[0] == written[1] and set(written[0]) == {f"name.{kind}" for kind in ("png", "pdf", "svg", "csv")}
    assert written[0]["name.csv"].startswith(b"where,label,seed,acc\ncifar10,")
    _, metadata = shown[0]._repr_mimebundle_()
    assert "Caption: preset real" in str(metadata) and "a note" in str(metadata)
    assert len(shown[0].data) < len(written[0]["name.png"])  # notebooks show half the resolution


def test_runs_chosen_by_hand_leave_the_committed_figures_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("PFL_FIGURES_DIR", raising=False)
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(plots, "display", lambda image: None)
    assert plots.figures_dir(FRAME) == plots.ROOT / "figures"
    plots.save(plots.intervals(RUNS, "acc"), RUNS, "paper/name", FRAME.assign(by_hand=True))
    assert (tmp_path / "figures/real/paper/name.csv").exists() and str(tmp_path) in capsys.readouterr().out
