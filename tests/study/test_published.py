"""What the claims say of the tables of FedSelect, FedPeWS and Star-PFL is recomputed from the CSV files."""

import pytest

from pfl_core.paper import PAPERS, table
from pfl_core.study import claims
from pfl_core.study.published import parse_variant
from tests.study.recomputed import grade, grid, says

COUNTS = {"fedselect": 22, "fedpews": 16, "pfedgate": 23, "star_pfl": 12}


@pytest.mark.parametrize("paper", PAPERS)
def test_claims_are_complete_and_numbered(paper):
    found = claims(paper)
    assert [claim.number for claim in found] == list(range(1, COUNTS[paper] + 1))
    for claim in found:
        assert claim.text and claim.source and claim.published
        assert claim.supported in ("yes", "partly", "no", "no table")
        assert bool(claim.needs) != bool(claim.check), f"claim {claim.number} has neither a check nor what it needs"


class TestFedSelect:
    one, two, three = grid("fedselect", 1), grid("fedselect", 2, rows="alpha"), grid("fedselect", 3, rows="variant")
    ours, base = one.loc["FedSelect"], one.drop("FedSelect")
    lead = ours - base.max()
    sets = ["CIFAR-10", "CIFAR10-C", "Mini-ImageNet", "OfficeHome"]

    def test_1_and_2_leads(self):
        best = {name: ", ".join(self.base.index[self.base[name] == self.base[name].max()]) for name in self.sets}
        says(
            "fedselect",
            1,
            grade((self.lead > 0).all()),
            *(f"{name} {self.lead[name]:+.2f} ({best[name]})" for name in self.sets),
        )
        relative = 100 * (self.lead / self.base.max()).mean()
        over_mean = (self.ours - self.base.mean()).mean()
        parts = f"average {self.lead.mean():.2f} points ({relative:.1f} % relative)", f"would be {over_mean:.2f}"
        says("fedselect", 2, grade(self.lead.mean() > 2.4), *parts)

    def test_table_1_is_the_best_row_of_table_2(self):
        assert (self.two.max() == self.ours).all()

    def test_3_one_limit_for_all(self):
        wins = {alpha: self.two.loc[alpha] - self.base.max() for alpha in (0.3, 0.5)}
        ahead = ", ".join(self.base.index[self.base["OfficeHome"] > self.two.loc[0.5, "OfficeHome"]])
        says(
            "fedselect",
            3,
            grade((wins[0.3] > 0).all() or (wins[0.5] > 0).all()),
            f"alpha=0.30 leads on all four (least: {wins[0.3].min():+.2f} on {wins[0.3].idxmin()})",
            f"alpha=0.50 does not: it has {self.two.loc[0.5, 'OfficeHome']:.2f} on OfficeHome, below {ahead}",
        )

    def test_4_and_5_middle_limits(self):
        middle, extreme = self.two.loc[[0.3, 0.5]], self.two.loc[[0.05, 0.8]]
        both = middle.min() > extreme.max()
        cifar = (f"alpha={alpha:.2f}: {value:.2f}" for alpha, value in self.two["CIFAR-10"].items())
        says("fedselect", 4, grade(both["CIFAR-10"]), *cifar)
        best = (f"{name} alpha={self.two[name].idxmax():.2f}" for name in self.sets)
        says(
            "fedselect",
            5,
            grade(*(middle.max() > extreme.max())),
            *best,
            f"both extremes on {', '.join(both.index[both])}",
        )

    def test_7_fedavg(self):
        fedavg, others = self.base.loc["FedAvg"], self.base.drop("FedAvg")
        under = {name: ", ".join(others.index[others[name] < fedavg[name]]) for name in self.sets}
        says(
            "fedselect",
            7,
            grade(not under["CIFAR-10"], not under["CIFAR10-C"], not under["Mini-ImageNet"]),
            f"CIFAR-10 {fedavg['CIFAR-10']:.2f} (lowest of the others {others['CIFAR-10'].min():.2f})",
            f"CIFAR10-C {fedavg['CIFAR10-C']:.2f} ({others['CIFAR10-C'].min():.2f})",
            f"Mini-ImageNet {fedavg['Mini-ImageNet']:.2f}, where {under['Mini-ImageNet']} has "
            f"{others['Mini-ImageNet'].min():.2f}",
            f"OfficeHome {fedavg['OfficeHome']:.2f}, above {under['OfficeHome']}",
        )

    def test_8_fine_tuning(self):
        behind = (self.base.max() - self.base.loc["FedAvg + FT"])[self.sets[:3]]
        holds = grade(*(behind[:2] < 3), behind.iloc[2] > 3)
        says("fedselect", 8, holds, *(f"{value:.2f} ({name})" for name, value in behind.items()))

    def test_9_falls(self):
        fall, by_limit = ((frame["CIFAR-10"] - frame["CIFAR10-C"]).round(2) for frame in (self.one, self.two))
        rivals = ["FedBABU", "FedPer", "FedRep", "Ditto"]
        assert (self.base.max() < self.ours)[["CIFAR-10", "CIFAR10-C"]].all()  # first on both sets
        says(
            "fedselect",
            9,
            grade((fall["FedSelect"] < fall[rivals]).all()),
            *(f"{name} {fall[name]:.2f}" for name in rivals),
            f"FedSelect {fall['FedSelect']:.2f}",
            *(f"alpha={alpha:.2f} {by_limit[alpha]:.2f}" for alpha in (0.3, 0.5)),
        )

    @pytest.mark.parametrize(("number", "rule"), [(12, "Personalize Least"), (14, "Random")])
    def test_12_and_14_best_limit_against_an_ablation(self, number, rule):
        gain = self.ours - self.three.loc[rule]
        says("fedselect", number, grade((gain > 0).all()), *(f"{name} {gain[name]:+.2f}" for name in self.sets))

    def test_13_ablations(self):
        ablations = self.three.drop(["alpha=0.30", "alpha=0.50"])
        worse = {alpha: (ablations < self.three.loc[alpha]).sum() for alpha in ("alpha=0.30", "alpha=0.50")}
        n = len(ablations)
        says(
            "fedselect",
            13,
            grade(*((count == n).all() for count in worse.values())),
            f"alpha=0.30 is above all {n} on every set" if (worse["alpha=0.30"] == n).all() else "?",
            f"alpha=0.50 is below all {n} on OfficeHome" if worse["alpha=0.50"]["OfficeHome"] == 0 else "?",
        )

    def test_the_note_on_table_3(self):
        def odd(frame):
            return (frame * 20).round(6) % 1 != 0

        ablations = self.three.drop(["alpha=0.30", "alpha=0.50"])
        assert odd(ablations["CIFAR-10"]).all()
        assert odd(ablations["CIFAR10-C"]).sum() == 4
        for name in self.sets[:2]:
            assert not odd(self.one[name]).any() and not odd(self.two[name]).any()


class TestFedPeWS:
    medical = "{Path-OCT-Tissue}MNIST"

    @pytest.mark.parametrize(("number", "base", "claim"), [(2, "FedAvg", 1), (6, "FedProx", 4)])
    def test_1_2_and_4_with_and_without(self, number, base, claim):
        pairs = {}
        for metric in ("rounds_to_target", "final_accuracy"):
            frame = grid("fedpews", number, metric, columns="eta_g")[[1.0, 0.5, 0.25, 0.1]]
            pairs[metric] = list(zip(frame.loc[f"{base}+PeWS"], frame.loc[base], strict=True))
        rounds = [f"{a:.0f} / {'not reached' if b != b else format(b, '.0f')}" for a, b in pairs["rounds_to_target"]]
        accuracy = [f"{a:.2f} / {b:.2f}" for a, b in pairs["final_accuracy"]]
        faster = grade(*(not b <= a for a, b in pairs["rounds_to_target"]))
        if claim == 1:
            says("fedpews", 1, faster, ", ".join(rounds))
            says("fedpews", 2, grade(*(a >= b for a, b in pairs["final_accuracy"])), ", ".join(accuracy))
        else:
            three = sum(a > b for a, b in pairs["final_accuracy"]) == 3
            says("fedpews", 4, grade(faster == "yes", three), ", ".join(rounds), ", ".join(accuracy))

    def test_5_baselines(self):
        frame = grid("fedpews", 3)
        away = (frame.loc[["FedProx", "SCAFFOLD", "FedNova", "MOON"]] - frame.loc["FedAvg"]).abs().max().max()
        gains = [frame.loc[f"{base}+PeWS"] - frame.loc[base] for base in ("FedAvg", "FedProx")]
        texts = [" and ".join(f"{value:+.2f}" for value in gain) + f" over {gain_over}" for gain, gain_over in
                 zip(gains, ("FedAvg", "FedProx"), strict=True)]  # fmt: skip
        assert list(frame.columns) == ["CIFAR-MNIST", self.medical]
        helps = all((gain > away).all() for gain in gains)
        says("fedpews", 5, grade(helps), f"at most {away:.2f} points from FedAvg", *texts)

    @staticmethod
    def cells(number):
        frame = table("fedpews", number)
        fields = [parse_variant(text) for text in frame["variant"]]
        frame = frame.assign(lam=[f.get("lambda") for f in fields], tau=[f.get("tau") for f in fields])
        by_key = dict(list(frame.groupby("key")))
        return by_key["fedpews"], by_key["fedpews_fixed"]["value"], by_key["fedavg"]["value"].item()

    def test_6_sensitivity(self):
        parts, shares = [], []
        for number, field, bound in ((7, "lam", 0.3), (8, "tau", 0.45)):
            learned, fixed, fedavg = self.cells(number)
            above, low = learned["value"] > fedavg, learned[field] < bound
            count = {name: (above[part].sum(), part.sum()) for name, part in (("low", low), ("high", ~low))}
            name, low_text, high_text = {
                7: ("CIFAR-MNIST", "lambda<0.3", "lambda>=0.3"),
                8: (self.medical, "tau<=0.4", "tau>=0.5"),
            }[number]
            who = "cells above FedAvg's " if number == 7 else "above "
            parts.append(
                f"{name}: {above.sum()} of {len(above)} {who}{fedavg:.2f} "
                f"({low_text}: {count['low'][0]} of {count['low'][1]}, "
                f"{high_text}: {count['high'][0]} of {count['high'][1]}), "
                f"fixed masks {(fixed > fedavg).sum()} of {len(fixed)}"
            )
            shares.append(above.mean())
        says("fedpews", 6, grade(shares[0] > 0.75, shares[1] > 0.75), *parts)  # "little": three quarters of the cells

    def test_7_best_region(self):
        best, means, outside = [], [], []
        for number, taus in ((7, (0.4, 0.5)), (8, (0.2, 0.4))):
            learned, _, _ = self.cells(number)
            inside, value = learned["lam"].isin([2, 5, 10]) & learned["tau"].isin(taus), learned["value"]
            rank = value.rank(ascending=False)
            assert inside[value.idxmax()]
            best.append(f"{value.max():.2f}")
            means.append(f"{value[inside].mean():.2f} and {value[~inside].mean():.2f}")
            top = value[~inside & (rank <= inside.sum())].sort_values(ascending=False)
            places = " and ".join({3: "third", 4: "fourth", 5: "fifth"}[rank[i]] for i in top.index)
            outside.append(f"{' and '.join(map('{:.2f}'.format, top))} ({places})")
        texts = (f"{name} {text}" for name, text in zip(("CIFAR-MNIST", self.medical), outside, strict=True))
        says("fedpews", 7, grade(True, False), f"({', '.join(best)})", ", ".join(means), *texts)  # inside; not all six

    def test_8_without_diversity(self):
        learned, _, fedavg = self.cells(7)
        none = learned.loc[learned["lam"] == 0, "value"]
        text = f"{none.min():.2f} to {none.max():.2f} against FedAvg's {fedavg:.2f}"
        says("fedpews", 8, grade(none.max() < fedavg), text)

    def test_9_fixed_masks(self):
        pairs = [(fixed.max(), learned["value"].max()) for learned, fixed, _ in map(self.cells, (7, 8))]
        texts = (
            f"{name} {a:.2f} and {b:.2f}" for name, (a, b) in zip(("CIFAR-MNIST", self.medical), pairs, strict=True)
        )
        says("fedpews", 9, grade(*(b - a < 0.5 for a, b in pairs)), *texts)  # "as good": half a point, about one std

    def test_the_note_on_table_3(self):
        best = self.cells(7)[0]["value"].max()
        assert grid("fedpews", 3).loc["FedAvg+PeWS", "CIFAR-MNIST"] > best


class TestStarPFL:
    two = table("star_pfl", 2).pivot(index="method", columns=["dataset", "variant"], values="value")
    three = {metric: grid("star_pfl", 3, metric) for metric in table("star_pfl", 3)["metric"].unique()}
    comm, flops, rounds = three.values()

    def test_1_ranks(self):
        rank = self.two.rank(ascending=False).loc["Star-PFL"].astype(int)
        texts = (f"{name} {', '.join(map(str, rank[name]))}" for name in ("Axial", "Sagital"))
        says("star_pfl", 1, grade((rank <= 2).all()), "alpha=0.01, alpha=0.1, alpha=1", *texts)

    def test_2_mean_accuracy(self):
        ours, others = self.two.loc["Star-PFL"].mean(), self.two.drop("Star-PFL").to_numpy().mean()
        points = 100 * (ours - others)
        text = f"{ours:.4f} against {others:.4f}: {points:+.2f} points ({100 * (ours / others - 1):+.1f} % relative)"
        says("star_pfl", 2, grade(round(points, 1) == 3.1), text)

    def test_3_totals(self):
        parts, means = [], []
        for name, per_round in (("communication", self.comm.fillna(0)), ("computation", self.flops)):
            total = per_round * self.rounds
            change = 100 * (total.loc["Star-PFL"] / total.drop("Star-PFL").mean() - 1)
            means.append(round(change.mean(), 1))
            parts.append(f"{name} {change['Axial']:.1f} % and {change['Sagital']:.1f} %, mean {change.mean():.1f} %")
        says("star_pfl", 3, grade(means == [-36.3, -18.3]), *parts)

    def test_4_least_per_round(self):
        least, parts = [], []
        for name in ("Axial", "Sagital"):
            others = [frame[name].drop(["Star-PFL", "Local"]) for frame in (self.comm, self.flops)]
            ours = [frame[name]["Star-PFL"] for frame in (self.comm, self.flops)]
            least += [value < other.min() for value, other in zip(ours, others, strict=True)]
            assert {other.idxmin() for other in others} == {"LotteryFL"}
            values = (*ours, *(other.min() for other in others))
            parts.append("{} {:.3f} and {:.3f}, next LotteryFL {:.3f} and {:.3f}".format(name, *values))
        says("star_pfl", 4, grade(*least), *parts)

    def test_5_rounds(self):
        def text(name):
            return "{:.0f} and {:.0f}".format(*self.rounds.loc[name])

        ours = self.rounds.loc["Star-PFL"]
        order = [(ours < self.rounds.loc[name]).all() for name in ("FedBN", "FedAP")]
        order.append((ours > self.rounds.loc["LotteryFL"]).all())
        rest = (f"{name} {text(name)}" for name in ("FedBN", "FedAP", "LotteryFL", "FedAvg"))
        says("star_pfl", 5, grade(*order), f"Sagital: {text('Star-PFL')}", *rest)

    def test_8_alpha(self):
        def text(name, dataset):
            return ", ".join(f"{value:.4f}" for value in self.two.loc[name, dataset])

        falls = all(self.two.loc["Local", name].is_monotonic_decreasing for name in ("Axial", "Sagital"))
        rises = all(self.two.loc["FedAvg", name].is_monotonic_increasing for name in ("Axial", "Sagital"))
        says(
            "star_pfl",
            8,
            grade(falls, rises),
            "alpha=0.01, alpha=0.1, alpha=1:",
            f"Local {text('Local', 'Axial')} (Axial), {text('Local', 'Sagital')} (Sagital)",
            f"FedAvg {text('FedAvg', 'Axial')}, {text('FedAvg', 'Sagital')}",
        )
