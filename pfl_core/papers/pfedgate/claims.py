"""pFedGate's claims as inequalities. Criteria: data/paper/criteria.md.

Claims 7 and 8 are about measured steps, with turns in place of seeds, see ``benchmark.measured_rows``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from pfl_core.papers.pfedgate.experiments import ALPHAS, BUDGETS, EPOCHS, MIXED, WITH_TENTH
from pfl_core.papers.pfedgate.settings import BASELINES
from pfl_core.study.claims import Claims, Effect, Pick, Values, best, slope, within

claim = Claims()

STAND_INS = ("fashion_mnist", "mnist")
SETS = ("cifar10", "emnist", "femnist", "cifar100", *STAND_INS)
TENTH = ("cifar10", "emnist", *STAND_INS)  # sets with s = 0.1: Tables 10 to 12
EMNIST = ("emnist", *STAND_INS)  # Table 11, Figure 5
FEW = ("femnist", "cifar10", *STAND_INS)  # Tables 3, 8 and 13
PARTS = ("emnist", "cifar100", *STAND_INS)  # Table 4
EACH_ROUND = (*SETS[:4], *(f"{name}, each round" for name in STAND_INS))  # the paper scores every fifth round
E_STEP = {"with its E step": True, "without it": False}
BATCHES = tuple(f"batch {size}" for size in (32, 128, 512))  # Table 2
MEAN, WORST = "acc_pooled", "acc_bottom_decile"
SCORES = {MEAN: "mean", WORST: "worst tenth"}


def over_baselines(r: Pick, metric: str) -> Iterator[Effect]:
    baselines = [r(name, metric) for name in BASELINES]
    for s in BUDGETS:
        own = r(metric=metric, keep_ratio=s)
        yield from (own - other > 0 for other in baselines)


@claim(1, "Table 1", on=SETS, printed=(13, 1))  # Table 1 repeats FedEM's row for FedMask on CIFAR10
def more_accurate(r: Pick) -> Iterator[Effect]:
    """At the budgets s = 1, 0.5 and 0.3 (the share of the model that is kept), pFedGate has a higher mean accuracy than
    every baseline on each data set; clients count by their test images."""
    yield from over_baselines(r, MEAN)


@claim(2, "Table 1", on=SETS, printed=(13, 1))
def worst_tenth_is_more_accurate(r: Pick) -> Iterator[Effect]:
    """At the same budgets, the worst tenth of pFedGate's clients is also more accurate than that of every baseline, on
    each data set."""
    yield from over_baselines(r, WORST)


@claim(3, "Table 1", on=SETS, follows=True)
def within_its_budget(r: Pick) -> Iterator[Effect]:
    """The share of the model that pFedGate keeps is at most the budget s."""
    for s in WITH_TENTH:
        yield (r(metric="achieved_keep_ratio", keep_ratio=s) - s).exact <= 1e-6  # shares are stored with 32 bits


@claim(4, "Tables 1, 10 and 12", on=TENTH, printed=(1, 10, 12))
def falls_slowly_then_clearly(r: Pick) -> Iterator[Effect]:
    """pFedGate loses little accuracy from s = 1 to s = 0.3, less than 2.5 points, and clearly more to s = 0.1."""
    small, smallest = (r(keep_ratio=1.0) - r(keep_ratio=s) for s in (0.3, 0.1))
    yield small < 2.5
    yield (smallest - small).named("loss to s = 0.1 − loss to s = 0.3") > 0


@claim(5, "Tables 1, 10 and 12", on=TENTH, printed=(1, 10, 12))
def a_tenth_beats_fedavg(r: Pick) -> Iterator[Effect]:
    """Even at s = 0.1, with a tenth of the model, pFedGate is more accurate than FedAvg with all of it."""
    yield r(keep_ratio=0.1) - r("fedavg") > 0


@claim(6, "Figure 5", on=EMNIST)
def clients_differ_more(r: Pick) -> Iterator[Effect]:
    """With a smaller budget s the clients' accuracies differ more; with budgets of 0.5 and 0.1 in one federation
    pFedGate remains usable (read as: more accurate than with 0.1 for all)."""
    yield r(metric="client_spread", keep_ratio=0.1) - r(metric="client_spread", keep_ratio=1.0) > 0
    yield r(keep_ratio=MIXED) - r(keep_ratio=0.1) > 0


@claim(7, "Table 2", on=BATCHES, printed=(2,), margin=0.1)
def cheaper_than_fedavg(r: Pick) -> Iterator[Effect]:
    """A training step of pFedGate at s = 0.3 takes less time and less memory than one of FedAvg (measured with this
    implementation, on a CPU)."""
    yield r(metric="step_ratio", keep_ratio=0.3) < 1
    yield r(metric="peak_ratio", keep_ratio=0.3).exact < 1


@claim(8, "Table 2", on=BATCHES, printed=(2,), option=tuple(E_STEP), margin=0.1)
def fedem_takes_three_times(r: Pick, counted: str) -> Iterator[Effect]:
    """A training step of FedEM takes about three times as long as one of FedAvg, with or without its E step."""
    time = r("fedem", "step_ratio", e_step=E_STEP[counted])
    yield time > 2.5
    yield time < 3.5


@claim(9, "Section 4", on=SETS, margin=0.01)
def sends_more_than_a_batch_uses(r: Pick) -> Iterator[Effect]:
    """The share of the model that a client sends in a round is larger than the share that it uses in one batch, smaller
    than 1, and grows with the number of batches."""
    sent, used = (r(metric=metric, keep_ratio=0.5) for metric in ("upload_ratio", "kept_ratio"))
    yield (sent - used).named("sent in a round − used in a batch").exact > 0
    yield sent.exact < 1
    for epochs in EPOCHS[1:]:  # trained anew each, so seeds differ
        more = r.at(f"{r.setting}, epochs={epochs}")(metric="upload_ratio", keep_ratio=0.5) - sent
        yield more.named(f"sent with {epochs} epochs − with one") > 0


@claim(10, "Table 4", on=PARTS, printed=(4,), mechanism=True)
def sigmoid_then_first_norm_then_second(r: Pick) -> Iterator[Effect]:
    """Of the gate's parts, the sigmoid matters most for the accuracy, then the norm before the linear layer, then the
    norm after it."""
    # The paper does not say what replaces the sigmoid. If a line with its value and slope at the start was run, it is
    # compared: a gate whose slope is many times as large learns too fast at the same rate.
    tangent = r(sigmoid=False, without_sigmoid="tangent")
    sigmoid = {"sigmoid (but its tangent)": tangent} if tangent else {"sigmoid": r(sigmoid=False)}
    without = sigmoid | {"norm before": r(pre_norm=False), "norm after": r(post_norm=False)}
    lost = {part: r(keep_ratio=0.5) - score for part, score in without.items()}
    for more, less in pairwise(lost):
        yield (lost[more] - lost[less]).named(f"lost without {more} − without {less}") > 0


@claim(11, "Table 4", on=PARTS, printed=(4,), margins={"rounds_to_80": 0.1})
def client_wise_is_faster_and_worse(r: Pick) -> Iterator[Effect]:
    """A gate that decides once for each client, in place of once for each batch, learns in fewer rounds (to 80 % of its
    best accuracy) and ends less accurate."""
    rounds = {name: r(metric="rounds_to_80", gate_granularity=name) for name in ("client", "batch")}
    yield rounds["client"] / rounds["batch"] < 1
    yield r(gate_granularity="batch") - r(gate_granularity="client") > 0


@claim(12, "Table 3", on=FEW, printed=(1, 3))
def few_clients_cost_little(r: Pick) -> Iterator[Effect]:
    """With a fifth of the clients in each round in place of all, pFedGate loses little accuracy (less than 1.14
    points), and FedAvg loses more."""

    def lost(method: str, metric: str, **fields: float) -> Values:
        return r(method, metric, **fields) - r.at(f"{r.setting}, sampled")(method, metric, **fields)

    for metric, of in SCORES.items():
        for s in BUDGETS:
            own = lost("pfedgate", metric, keep_ratio=s)
            yield own.named(f"{of}: lost at s = {s:g}") < 1.14
            yield (lost("fedavg", metric) - own).named(f"{of}: lost by FedAvg − at s = {s:g}") > 0


@claim(13, "Table 8", on=FEW, printed=(8,))
def novel_clients_are_close(r: Pick) -> Iterator[Effect]:
    """Clients that never took part in training score less than one point below those that did; with FedAvg (as it is or
    fine-tuned, whichever gap is smaller) and with FedEM the gap is larger."""
    novel = r.at(f"{r.setting}, novel")

    def gap(method: str, novel_method: str = "", **fields: float) -> Values:
        part = novel(method, "acc_participating", **fields) - novel(novel_method or method, "acc_novel", **fields)
        return part.named(f"gap of {novel(novel_method or method, None, **fields).text}")

    fedavg = best([gap("fedavg"), gap("fedavg", "fedavg_ft")], lowest=True)
    for s in BUDGETS:
        own = gap("pfedgate", keep_ratio=s)
        yield own < 1
        for other in (fedavg, gap("fedem")):
            yield other - own > 0


@claim(14, "Table 9", on=EACH_ROUND, printed=(9,), margin=0.1)
def rounds_to_nine_tenths(r: Pick) -> Iterator[Effect]:
    """To reach 90 % of its own best accuracy, pFedGate needs fewest rounds at s = 1, fewer than FedAvg at s = 0.5, and
    somewhat more than FedAvg at s = 0.3."""
    one, half, small = (r(metric="rounds_to_90", keep_ratio=s) for s in BUDGETS)
    fedavg = r("fedavg", "rounds_to_90")
    for more, fewer in ((half, one), (fedavg, one), (fedavg, half), (small, fedavg)):
        yield more / fewer > 1


@claim(15, "Table 10", on=SETS, printed=(10,))
def gated_beats_global(r: Pick) -> Iterator[Effect]:
    """A client's model with its gate is much more accurate than the global model without gates, on average and for the
    worst tenth of the clients."""
    for metric, of in SCORES.items():
        for s in WITH_TENTH:
            lead = r(metric=metric, keep_ratio=s) - r(metric=f"global_{metric}", keep_ratio=s)
            yield lead.named(f"{of}: gated − global model, s = {s:g}") > 0


@claim(16, "Table 11", on=EMNIST, printed=(11,))
def few_epochs_alike(r: Pick) -> Iterator[Effect]:
    """Up to four local epochs in a round change pFedGate's accuracy by no more than about one point against one epoch;
    eight cost more."""
    for epochs in EPOCHS[1:]:
        lost = r(keep_ratio=0.5) - r.at(f"{r.setting}, epochs={epochs}")(keep_ratio=0.5)
        lost = lost.named(f"one epoch − {epochs} epochs")
        if epochs < 8:
            yield from within(lost, 1.0)
        else:
            yield lost > 1


@claim(17, "Table 12", on=("cifar10", *STAND_INS), printed=(12,))
def skew_costs(r: Pick) -> Iterator[Effect]:
    """The more the clients' labels differ (Dirichlet α from 0.4 down to 0.01), the lower is pFedGate's accuracy."""
    first, *others = ALPHAS
    score = {first: r(keep_ratio=0.5)}
    score |= {alpha: r.at(f"{r.setting}, alpha={alpha:g}")(keep_ratio=0.5) for alpha in others}
    for even, skewed in ((0.4, 0.2), (0.2, 0.1), (0.1, 0.01), (0.4, 0.01)):
        yield (score[even] - score[skewed]).named(f"α = {even:g} − α = {skewed:g}") > 0


@claim(18, "Table 13", on=FEW, printed=(13,))
def five_blocks(r: Pick) -> Iterator[Effect]:
    """pFedGate is most accurate with five blocks per tensor (B = 5, against 2 and 10); from s = 0.5 to 0.3 it then
    loses less accuracy than FedMask."""
    for s in (0.5, 0.3):
        for blocks in (2, 10):
            yield r(keep_ratio=s, blocks_per_tensor=5) - r(keep_ratio=s, blocks_per_tensor=blocks) > 0
    own, fedmask = (r(name, keep_ratio=0.5) - r(name, keep_ratio=0.3) for name in ("pfedgate", "fedmask"))
    yield (fedmask - own).named("lost by FedMask from s = 0.5 to 0.3 − by pFedGate") > 0


@claim(19, "Figure 4", on=("pathological",), margin=0.05)
def common_labels_give_similar_gates(r: Pick) -> Iterator[Effect]:
    """Clients with common labels have gates whose parameters are near each other."""
    yield r(metric="gate_rank", keep_ratio=0.3) < 0


@claim(20, "Figure 7", on=SETS, mechanism=True, margin=0.0005)
def histogram_settles(r: Pick) -> Iterator[Effect]:
    """The histogram of the gates' values settles during training: it changes less per round at the end than at the
    start (without the decay of a large initial bias, which the paper does not have)."""

    def less(s: float, **fields: float) -> Values:
        return r(metric="drift_first", keep_ratio=s, **fields) - r(metric="drift_last", keep_ratio=s, **fields)

    for s in BUDGETS[1:]:
        change = less(s, scale_bias_init=0.0) or less(s, gate_weight_decay=0.0)
        yield change.named(f"change per round, first − last quarter, s = {s:g}") > 0


@claim(21, "not in the paper", on=SETS)
def the_lead_depends_on_the_weights(r: Pick) -> Iterator[Effect]:
    """Not in the paper: pFedGate's lead over FedAvg is smaller when its clients are scored with the shared weights than
    with their own weights after local training; FedAvg with fine-tuning is the fair rival of the latter."""
    own, shared = (r(metric=f"{MEAN}_{point}", keep_ratio=0.5) for point in ("trained", "merged"))
    yield (own - shared).named("own − shared weights") > 0


@claim(22, "not in the paper", on=SETS)
def one_mask_for_all(r: Pick) -> Iterator[Effect]:
    """Not in the paper: at s = 0.3 and B = 5 all clients keep the same blocks, so that only the scales are personal."""
    yield r(metric="distinct_masks", keep_ratio=0.3).exact <= 1


@claim(23, "not in the paper", on=SETS)
def order_matters_if_it_follows_the_labels(r: Pick) -> Iterator[Effect]:
    """Not in the paper: pFedGate's accuracy hardly depends on the order of the test images if it is random, and more if
    batches follow the labels."""
    spread = r(metric="order_range", keep_ratio=0.5).named("range over random orders")
    yield spread < 1
    yield abs(r(metric="sorted_change", keep_ratio=0.5)).named("change by batches sorted by label") - spread > 0


@claim(24, "Theorem 1", on=SETS, margin=0.02)
def smaller_budgets_overfit_less(r: Pick) -> Iterator[Effect]:
    """Theorem 1, as far as stored values show it: with a larger budget s, the test loss exceeds the training loss by
    more."""
    yield slope({s: r(metric="loss_gap", keep_ratio=s) for s in BUDGETS}, "s") > 0


@claim(25, "Proposition 1", on=SETS, follows=True)
def gates_are_bounded(r: Pick) -> Iterator[Effect]:
    """Proposition 1, as far as stored values show it: the gate's values M lie between 0 and 1."""
    yield r(metric="gate_smallest", keep_ratio=0.5).exact >= 0
    yield r(metric="gate_largest", keep_ratio=0.5).exact <= 1
