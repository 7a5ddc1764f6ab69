"""Shared figures show the given data: dots, lines, bands, titles, colours, captions."""

import io

import numpy as np
import pandas as pd
import PIL.Image
import pytest

from pfl_core.study import plots
from tests.plots import data, drawn, named, texts


def test_who_got_what_has_a_dot_for_each_class_of_a_client():
    """Area as samples: 80 for the most, 4."""
    fig = drawn(plots.who_got_what(np.array([[4, 0], [2, 1], [0, 3]]), "title"))
    (ax,) = fig.axes
    (dots,) = ax.collections
    assert dots.get_offsets().tolist() == [[0, 0], [1, 0], [1, 1], [2, 1]]
    assert dots.get_sizes().tolist() == [80, 40, 20, 60]
    assert ax.get_title() == "title"
    assert (texts(ax.get_xticklabels()), texts(ax.get_yticklabels())) == (["0", "1", "2"], ["0", "1"])


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
    assert [ax.get_title() for ax in fig.axes] == ["CIFAR-10", "CIFAR10-C"] and left.get_xlim() == right.get_xlim()
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
    assert "hollow: under 3 seeds" in fig.get_label() and "the paper" in fig.get_label()
    both = drawn(plots.intervals(table.assign(paper=[1.0, *[70.0] * 5, 2.0]), "acc", paper="paper"))
    assert {text.strip(" ◂") for text in texts(both.axes[0].texts)} == {"(1.0)", "5.0 (2.0)"}
    assert "black ◇, or number in brackets: the paper" in both.get_label() and "bracket" not in whole.get_label()


def test_intervals_of_one_label_have_room_above_their_caption_and_all_of_its_bar():
    one = RUNS[(RUNS["label"] == "Local") & (RUNS["where"] == "cifar10")]
    fig = drawn(plots.captioned(plots.intervals(one, "acc"), "a caption of several words " * 6))
    left, right = fig.axes[0].get_xlim()
    assert fig.axes[0].get_window_extent().height > 0.3 * fig.dpi and left < 70 and right > 74


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


def test_points_of_few_seeds_are_hollow_and_the_note_counts_seeds_by_point():
    of = [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1)]  # seed and round: the second round has two seeds
    by_round = pd.DataFrame(of, columns=["seed", "round"]).assign(label="Local", value=1.0)
    fig = drawn(plots.curves(by_round))
    (hollow,) = (line for line in fig.axes[0].lines if line.get_markerfacecolor() == "w")
    assert list(hollow.get_xdata()) == [2] and "mean over 2 to 3 seeds; hollow: under 3" in fig.get_label()
    many = pd.concat([by_round.assign(label=str(k), where="many") for k in range(6)])
    assert "no bands" in plots.curves(many).get_label()
    both = plots.curves(pd.concat([many, by_round.assign(where="few")]), col="where")
    assert "bands in panels with few lines" in drawn(both).get_label()


def test_closer_curves_have_the_scale_of_the_second_half():
    rows = [("p", "Local", 0, t, 10.0 * t) for t in range(1, 11)]
    by_round = pd.DataFrame(rows, columns=["where", "label", "seed", "round", "value"])
    assert drawn(plots.curves(by_round, closer=True)).axes[0].get_ylim() == (59.0, 101.0)
    assert drawn(plots.curves(by_round)).axes[0].get_ylim()[0] < 20
    printed = by_round.assign(paper=by_round["value"].where(by_round["round"] == 1) - 5)
    assert drawn(plots.curves(printed, paper="paper", closer=True)).axes[0].get_ylim() == (4.0, 101.0)


def test_matrices_name_the_clients_once_if_they_are_the_same():
    part = pd.DataFrame(np.eye(2), ["0,1", "2"], ["0,1", "2"])
    fig = drawn(plots.matrices({"α = 0.3": part, "α = 0.5": part}, label="overlap"))
    assert texts(fig.axes[0].get_yticklabels()) == ["0,1", "2"] and texts(fig.axes[1].get_yticklabels()) == []


FRAME = pd.DataFrame(
    {"preset": "real", "dataset": "cifar10", "data": "cifar10", "clients": 10, "rounds": [40, 100], "seed": [0, 0],
     "setting": ["a", "b"], "device": "cpu"}
)  # fmt: skip


def test_a_caption_has_what_the_runs_have_in_common_and_the_span_of_the_rest():
    assert plots.caption(FRAME) == "preset real: CIFAR-10; 10 clients, 40 to 100 rounds, one seed: 0"
    more = pd.concat([FRAME, FRAME.assign(seed=1).head(1)])
    assert plots.caption(more).endswith("1 to 2 seeds a data set")
    assert plots.caption(pd.concat([FRAME, FRAME.assign(seed=1)])).endswith("seeds 0, 1")
    assert plots.caption(FRAME.assign(preset="")).startswith("CIFAR-10; 10 clients, 40 to")
    assert plots.caption(FRAME.assign(device="cuda")).endswith("one seed: 0, on cuda")
    assert plots.caption(FRAME.assign(overrides="")) == plots.caption(FRAME)
    assert plots.caption(FRAME.assign(overrides="lr = 0.3")).endswith("one seed: 0; changed: lr = 0.3")


@pytest.mark.parametrize(
    ("dataset", "data", "shown"),
    [
        ("mnist", "mnist", "MNIST"),
        ("cifar_mnist", "cifar10: CIFAR-10 (JPEG copy)", "CIFAR-MNIST (JPEG copy)"),
        ("cifar10", "CIFAR-10 (JPEG copy), 60 of 200 rounds", "CIFAR-10 (JPEG copy); 10 clients, 60 of 200 rounds"),
        ("synthetic_32k", "generated here: the paper does not publish it", "Synthetic-32K (generated here)"),
        ("mnist (unofficial images)", "mnist (unofficial images)", "MNIST (unofficial images)"),
    ],
)
def test_a_caption_names_the_data_and_what_is_special_about_its_copy(dataset, data, shown):
    assert plots.caption(FRAME.assign(dataset=dataset, data=data)).startswith(f"preset real: {shown}")


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


def test_an_opened_notebook_leaves_the_committed_figures_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("PFL_FIGURES_DIR", raising=False)
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plots, "display", lambda image: None)
    assert plots.figures_dir() == plots.ROOT / "figures"  # where `pfl figures` writes
    plots.save(plots.intervals(RUNS, "acc"), RUNS, "paper/name", FRAME)
    printed = capsys.readouterr().out
    assert (tmp_path / "figures/real/paper/name.csv").exists() and "figures/real/paper/name.png" in printed
    assert str(tmp_path) not in printed  # a relative path: executed notebooks are passed on
    monkeypatch.setenv("PFL_FIGURES_DIR", str(tmp_path))
    plots.save(plots.intervals(RUNS, "acc"), RUNS, "paper/name", FRAME)
    assert capsys.readouterr().out == ""


def test_small_pictures_keep_the_colours_of_few_pixels():
    """A dot in each method's colour, among all greys."""
    image = PIL.Image.fromarray(np.tile(np.arange(256, dtype=np.uint8)[:, None, None], (1, 300, 3)))
    dots = {10 * i: tuple(bytes.fromhex(color[1:])) for i, color in enumerate(set(plots.COLORS.values()))}
    for x, color in dots.items():
        image.paste(color, (x, 20, x + 3, 23))

    def worst(small: bool) -> int:
        shown = PIL.Image.open(io.BytesIO(plots.packed(image, small=small))).convert("RGB")
        return max(np.abs(np.subtract(shown.getpixel((x + 1, 21)), color)).max() for x, color in dots.items())

    assert worst(small=True) <= 16 < worst(small=False)


def test_rows_without_a_label_are_an_error_and_not_left_out():
    with pytest.raises(ValueError, match="1 of .* rows have no 'label'"):
        plots.intervals(RUNS.assign(label=RUNS["label"].where(RUNS.index > 0)), "acc")
