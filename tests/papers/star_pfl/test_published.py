"""Recomputes the numbers of Star-PFL's claims from the CSV files of its tables."""

from pfl_core.papers.star_pfl.paper import PAPER
from tests.study.recomputed import grade, grid, says


class TestStarPFL:
    two = PAPER.table(2).pivot(index="method", columns=["dataset", "variant"], values="value")
    three = {metric: grid(PAPER, 3, metric) for metric in PAPER.table(3)["metric"].unique()}
    comm, flops, rounds = three.values()

    def test_1_ranks(self):
        rank = self.two.rank(ascending=False).loc["Star-PFL"].astype(int)
        texts = (f"{name} {', '.join(map(str, rank[name]))}" for name in ("Axial", "Sagital"))
        says(PAPER, 1, grade((rank <= 2).all()), "alpha=0.01, alpha=0.1, alpha=1", *texts)

    def test_2_mean_accuracy(self):
        star, others = self.two.loc["Star-PFL"].mean(), self.two.drop("Star-PFL").to_numpy().mean()
        points = 100 * (star - others)
        text = f"{star:.4f} against {others:.4f}: {points:+.2f} points ({100 * (star / others - 1):+.1f} % relative)"
        says(PAPER, 2, grade(round(points, 1) == 3.1), text)

    def test_3_totals(self):
        parts, means = [], []
        for name, per_round in (("communication", self.comm.fillna(0)), ("computation", self.flops)):
            total = per_round * self.rounds
            change = 100 * (total.loc["Star-PFL"] / total.drop("Star-PFL").mean() - 1)
            means.append(round(change.mean(), 1))
            parts.append(f"{name} {change['Axial']:.1f} % and {change['Sagital']:.1f} %, mean {change.mean():.1f} %")
        says(PAPER, 3, grade(means == [-36.3, -18.3]), *parts)

    def test_4_least_per_round(self):
        least, parts = [], []
        for name in ("Axial", "Sagital"):
            others = [frame[name].drop(["Star-PFL", "Local"]) for frame in (self.comm, self.flops)]
            star = [frame[name]["Star-PFL"] for frame in (self.comm, self.flops)]
            least += [value < other.min() for value, other in zip(star, others, strict=True)]
            assert {other.idxmin() for other in others} == {"LotteryFL"}
            values = (*star, *(other.min() for other in others))
            parts.append("{} {:.3f} and {:.3f}, next LotteryFL {:.3f} and {:.3f}".format(name, *values))
        says(PAPER, 4, grade(*least), *parts)

    def test_5_rounds(self):
        def text(name):
            return "{:.0f} and {:.0f}".format(*self.rounds.loc[name])

        star = self.rounds.loc["Star-PFL"]
        order = [(star < self.rounds.loc[name]).all() for name in ("FedBN", "FedAP")]
        order.append((star > self.rounds.loc["LotteryFL"]).all())
        rest = (f"{name} {text(name)}" for name in ("FedBN", "FedAP", "LotteryFL", "FedAvg"))
        says(PAPER, 5, grade(*order), f"Sagital: {text('Star-PFL')}", *rest)

    def test_8_alpha(self):
        def text(name, dataset):
            return ", ".join(f"{value:.4f}" for value in self.two.loc[name, dataset])

        falls = all(self.two.loc["Local", name].is_monotonic_decreasing for name in ("Axial", "Sagital"))
        rises = all(self.two.loc["FedAvg", name].is_monotonic_increasing for name in ("Axial", "Sagital"))
        says(
            PAPER,
            8,
            grade(falls, rises),
            "alpha=0.01, alpha=0.1, alpha=1:",
            f"Local {text('Local', 'Axial')} (Axial), {text('Local', 'Sagital')} (Sagital)",
            f"FedAvg {text('FedAvg', 'Axial')}, {text('FedAvg', 'Sagital')}",
        )
