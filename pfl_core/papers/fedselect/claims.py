"""FedSelect's claims as inequalities; the workshop version's from 18 on. Criteria: data/paper/criteria.md.

Not in the paper: the bounds FAR (for "far less accurate") and STRONG_FALL (for "lose much").
"""

from __future__ import annotations

from collections.abc import Iterator

from pfl_core.papers.fedselect.experiments import DATASETS as TABLES
from pfl_core.papers.fedselect.experiments import KEEP_RATES, LIMITS, MAIN, WORKSHOP
from pfl_core.papers.fedselect.settings import BASELINES, WORKSHOP_BASELINES
from pfl_core.study.claims import Claims, Effect, Pick, Values, best, mean, slope, within

claim = Claims()

CIFAR = TABLES[:2]
EXTREMES = (0.05, 0.80)
FAR = 10.0  # points
STRONG_FALL = 5.0  # points
TWO, FOUR = WORKSHOP


def best_limit(r: Pick, limits: tuple[float, ...] = LIMITS) -> Values:
    return best([r(alpha=alpha) for alpha in limits])


@claim(1, "Table 1", on=TABLES, printed=(2, 1))
def highest_of_ten(r: Pick) -> Iterator[Effect]:
    """On all four data sets, FedSelect with its best limit α has the highest mean client accuracy of ten methods."""
    for name in BASELINES:
        yield best_limit(r) - r(name) > 0


@claim(2, "text on Table 1", printed=(2, 1))
def leads_on_average(r: Pick) -> Iterator[Effect]:
    """On average over the four data sets, FedSelect is more than 2.4 points above the best baseline of each."""
    sets = [r.at(name) for name in TABLES]
    leads = [best_limit(here) - best([here(name) for name in BASELINES]) for here in sets]
    yield mean(leads, "best limit − best baseline") > 2.4


@claim(3, "Tables 1 and 2", on=TABLES, printed=(2, 1), option=MAIN)
def one_limit_for_all(r: Pick, alpha: float) -> Iterator[Effect]:
    """One limit for all data sets, α = 0.30 or 0.50, is enough to be more accurate than every baseline on each."""
    for name in BASELINES:
        yield r(alpha=alpha) - r(name) > 0


@claim(4, "Table 2, Section 5", on=("cifar10",), printed=(2,))
def middle_beats_extremes(r: Pick) -> Iterator[Effect]:
    """On CIFAR-10, each of the middle limits 0.30 and 0.50 is more accurate than each of the extremes 0.05 and 0.80."""
    for alpha in MAIN:
        for extreme in EXTREMES:
            yield r(alpha=alpha) - r(alpha=extreme) > 0


@claim(5, "Table 2", on=TABLES, printed=(2,))
def best_is_a_middle_limit(r: Pick) -> Iterator[Effect]:
    """On every data set the best limit is a middle one (0.30 or 0.50), not an extreme one (0.05 or 0.80)."""
    yield best_limit(r, MAIN) - best_limit(r, EXTREMES) > 0


@claim(6, "Section 3, Algorithm 1", on=TABLES, follows=True)
def ends_of_the_range(r: Pick) -> Iterator[Effect]:
    """With the limit α = 0 FedSelect is FedAvg; with α = 1 it ends in training alone, with all parameters personal."""
    # With batch norm, α = 0 is FedAvg only if the statistics are averaged, too.
    zero = r(alpha=0.0, buffer_policy="average") or r(alpha=0.0)
    yield abs(zero - r("fedavg")).exact <= 1e-6
    yield r(alpha=1.0, p=1.0, metric="personal_share").exact >= 1 - 1e-9


@claim(7, "Table 1", on=TABLES, printed=(1,))
def fedavg_fails_under_label_shift(r: Pick) -> Iterator[Effect]:
    """Where clients have different classes, FedAvg is far less accurate than every other method (read as: by more than
    10 points); where only their images look different (OfficeHome), it is close to the others."""
    for name in (name for name in BASELINES if name != "fedavg"):
        lead = r(name) - r("fedavg")
        if r.setting == "office_home":
            yield from within(lead, FAR)
        else:
            yield lead > FAR


@claim(8, "Table 1", on=TABLES[:3], printed=(1,))
def fine_tuning_is_competitive(r: Pick) -> Iterator[Effect]:
    """FedAvg with fine-tuning is within 3 points of the best baseline on CIFAR-10 and CIFAR10-C, and further behind on
    Mini-ImageNet."""
    behind = best([r(name) for name in BASELINES if name != "fedavg_ft"]) - r("fedavg_ft")
    yield behind < 3 if r.setting in CIFAR else behind > 3


@claim(9, "Table 1", printed=(2, 1), option=MAIN)
def corruption_hurts_the_others(r: Pick, alpha: float) -> Iterator[Effect]:
    """From CIFAR-10 to CIFAR10-C, Ditto and the methods with a personal last layer lose much accuracy (read as: more
    than 5 points), FedSelect does not."""
    clean, corrupt = r.at("cifar10"), r.at("cifar10_c")
    own = clean(alpha=alpha) - corrupt(alpha=alpha)
    for name in ("fedbabu", "fedper", "fedrep", "ditto"):
        lost = (clean(name) - corrupt(name)).named(f"lost by {clean(name).text}")
        yield lost > STRONG_FALL
        yield lost - own.named(f"by FedSelect, {clean(alpha=alpha).text}") > 0


@claim(10, "Figure 2", on=TABLES, option=MAIN, margin=None)
def smoothest_and_first(r: Pick, alpha: float) -> Iterator[Effect]:
    """FedSelect's accuracy over the rounds is the smoothest of all methods (least spread of its changes in the second
    half) and the first to settle (at 95 % of its last value)."""
    for metric in ("roughness", "rounds_to_95"):
        for name in BASELINES:
            yield r(name, metric) - r(metric=metric, alpha=alpha) > 0


@claim(11, "Figure 3", option=MAIN)
def loses_less_with_little_data(r: Pick, alpha: float) -> Iterator[Effect]:
    """With very few training images FedSelect loses less accuracy than the others, and FedBABU and FedPer lose most:
    its lead over these two is larger there than with 100 images."""
    few, usual = r.at("cifar10, 20 images"), r.at("cifar10")
    for name in ("fedbabu", "fedper"):
        lead = few(alpha=alpha) - few(name)
        more = lead - (usual(alpha=alpha) - usual(name))
        yield more.named(f"lead over {few(name).text} with 20 images − with 100") > 0


@claim(12, "Table 3", on=TABLES, printed=(3, 2), mechanism=True)
def most_changed_beat_least_changed(r: Pick) -> Iterator[Effect]:
    """With an equal share of personal parameters, FedSelect is more accurate if the parameters that change most are
    personal than if those that change least are."""
    for alpha in MAIN:
        yield r(alpha=alpha) - r(alpha=alpha, ranking="least_change") > 0


@claim(13, "Table 3", on=TABLES, printed=(3, 2), mechanism=True)
def ablations_are_worse(r: Pick) -> Iterator[Effect]:
    """FedSelect is more accurate than each of its six ablations: the least-changed parameters, random parameters, or
    one of four groups of layers personal."""
    for alpha in MAIN:
        yield r(alpha=alpha) - r(alpha=alpha, ranking="least_change") > 0
        yield r(alpha=alpha) - r(alpha=alpha, masks="random") > 0
        for group in "ABCD":
            yield r(alpha=alpha) - r(masks="layers", group=group) > 0


@claim(14, "Table 3", on=TABLES, printed=(3, 2), mechanism=True)
def random_masks_are_worse(r: Pick) -> Iterator[Effect]:
    """FedSelect is more accurate with its own masks than with random masks of the same personal share."""
    for alpha in MAIN:
        yield r(alpha=alpha) - r(alpha=alpha, masks="random") > 0  # drawn before the first round: the paper's words
        yield r(alpha=alpha) - r(alpha=alpha, ranking="random") > 0  # growing as FedSelect's do


@claim(15, "Figure 4", on=("cifar10",), mechanism=True, margin=0.05)
def common_classes_overlap_more(r: Pick) -> Iterator[Effect]:
    """At each limit α, the last-layer masks of two clients that have a class in common overlap more than those of two
    clients that have none."""
    for alpha in LIMITS:
        yield r(metric="iou_contrast", alpha=alpha) > 0


@claim(16, "Figure 4", on=("cifar10",), mechanism=True, margin=0.1)
def overlap_grows_with_the_limit(r: Pick) -> Iterator[Effect]:
    """With a larger limit α, the last-layer masks of all pairs of clients overlap more."""
    yield slope({alpha: r(metric="iou_raw", alpha=alpha) for alpha in LIMITS}, "α") > 0


@claim(17, "text", on=TABLES, follows=True)
def uplink_shrinks(r: Pick) -> Iterator[Effect]:
    """Clients send less as their masks grow: in the end about 1 minus the personal share, so under one half for a limit
    α above 0.5."""
    for alpha in LIMITS:  # 0.05: for the mask's bits (1/32 of the values) and the last mask update
        sent, personal = (r(metric=name, alpha=alpha) for name in ("uplink_fraction", "personal_share"))
        yield abs(sent - (1 - personal)).exact <= 0.05
    yield r(metric="uplink_fraction", alpha=0.80).exact < 0.5


@claim(18, "workshop, Table 1", on=WORKSHOP, option=KEEP_RATES)
def gradltn_beats_all(r: Pick, p: float) -> Iterator[Effect]:
    """Workshop version: with 2 and with 4 classes per client, it is more accurate than all its baselines."""
    for name in WORKSHOP_BASELINES:
        yield gradltn(r, p) - rival(r, name) > 0


def gradltn(r: Pick, p: float, metric: str | None = None) -> Values:
    """The workshop version at one p."""
    return r("fedselect_gradltn", metric, keep_rate=p)


def rival(r: Pick, name: str) -> Values:
    """A method of the workshop's Table 1; FedRep splits the five local epochs, GradLTN has p = 0.50."""
    return {"fedrep": lambda: r("fedrep", head_epochs=4), "fedselect_gradltn": lambda: gradltn(r, 0.50)}.get(
        name, lambda: r(name)
    )()


@claim(19, "workshop, Figure 2")
def p_matters_little(r: Pick) -> Iterator[Effect]:
    """Workshop version: with 2 classes per client, the accuracy hardly depends on p, the share of the mask that a
    search step keeps; with 4 classes, p = 0.50 is slightly better than 0.25 and 0.75."""
    two, four = r.at(TWO), r.at(FOUR)
    for a, b in ((0.50, 0.25), (0.50, 0.75), (0.75, 0.25)):
        yield from within((gradltn(two, a) - gradltn(two, b)).named(f"2 classes, p = {a} − p = {b}"), 2.0)
    for p in (0.25, 0.75):
        yield (gradltn(four, 0.50) - gradltn(four, p)).named(f"4 classes, p = 0.5 − p = {p}") > 0


@claim(20, "workshop, Table 1")
def who_suffers_from_fewer_classes(r: Pick) -> Iterator[Effect]:
    """Workshop version: with fewer classes per client (2 instead of 4), FedAvg, FedBABU and FedPer are less accurate;
    the strongly personal methods are not, because a client's own task becomes easier."""

    def loss(name: str) -> Values:
        two = rival(r.at(TWO), name)
        return (rival(r.at(FOUR), name) - two).named(f"lost by {two.text}")

    for name in ("fedavg", "fedbabu", "fedper"):
        yield loss(name) > 0
    for name in ("fedbabu", "fedper"):
        yield loss(name) - 0.5 * loss("fedavg") > 0
    for name in ("fedselect_gradltn", "ditto", "fedrep", "lg_fedavg", "lotteryfl"):
        yield loss(name) < 0


@claim(21, "workshop, Figure 1", on=WORKSHOP, margin=0.1)
def masks_differ(r: Pick) -> Iterator[Effect]:
    """Workshop version: the last-layer masks of two clients differ strongly: their overlap, corrected for chance, is
    far from complete."""
    yield gradltn(r, 0.50, "iou_chance").named("overlap beyond chance, p = 0.5") < 0.5


@claim(22, "workshop, text", on=WORKSHOP, follows=True)
def larger_p_sends_less(r: Pick) -> Iterator[Effect]:
    """Workshop version: with a larger p clients send less, by the share of parameters that stays personal, p to the
    power of the five search iterations (masks not counted)."""
    sent = {p: gradltn(r, p, "uplink_fraction") for p in KEEP_RATES}
    for p in KEEP_RATES:
        yield abs(sent[p] - (1 - p**5)).exact <= 0.002  # the search rounds in every iteration
    for low, high in ((0.25, 0.50), (0.50, 0.75)):
        yield (sent[low] - sent[high]).exact > 0


@claim(23, "Figure 4", on=("cifar10",), mechanism=True, margin=0.1)
def common_classes_matter_less(r: Pick) -> Iterator[Effect]:
    """With a larger limit α, the overlaps of pairs with and without a common class differ less."""
    yield slope({alpha: r(metric="iou_contrast", alpha=alpha) for alpha in LIMITS}, "α") < 0
