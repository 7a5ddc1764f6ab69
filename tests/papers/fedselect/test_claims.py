"""FedSelect's claims on invented runs: what makes each reproduced, not found, reversed or open."""

import pytest

from pfl_core.papers.fedselect.claims import CIFAR, FOUR, KEEP_RATES, LIMITS, MAIN, TABLES, TWO, claim
from pfl_core.papers.fedselect.paper import PAPER
from pfl_core.papers.fedselect.settings import BASELINES
from pfl_core.study.claims import NOT_FOUND, NOT_RUN, OPEN, REPRODUCED, REVERSED
from tests.papers.invented_runs import judged

CLOSE = {"spread": 0.02}
EXACT = {"spread": 0.0}
SHARE = {"spread": 0.005}
FEW = "cifar10, 20 images"


def scores(own, others=70.0, **named):
    """The mean of each pick: of FedSelect (CVPR or workshop version), of a named method, and of all others.

    Each is a number, None for runs that are missing, or a function of setting and fields.
    """

    def score(setting, method, metric, fields):
        value = named.get(method, own if method.startswith("fedselect") else others)
        return value(setting, fields) if callable(value) else value

    return score


def by_alpha(*values):
    """A number for each limit."""
    return lambda setting, fields: dict(zip(LIMITS, values, strict=True))[fields["alpha"]]


def by_set(values, other):
    """Numbers in some settings, and one in the others."""
    return lambda setting, fields: values.get(setting, other)


def only_on(sets, alpha):
    """Ahead of all others at this limit on these sets, behind elsewhere."""
    return lambda setting, fields: 80.0 if setting in sets and fields["alpha"] == alpha else 60.0


def metrics(**values):
    """The mean by metric: a number or a function of the fields."""

    def score(setting, method, metric, fields):
        return values[metric](fields) if callable(values[metric]) else values[metric]

    return score


def curves(own, others):
    """Two numbers of a curve, its spread and the round where it settles."""
    return lambda setting, method, metric, fields: (
        {"roughness": 1.0, "rounds_to_95": 20.0}[metric] * (own if method == "fedselect" else others)
    )


def ablation(own=80.0, ablated=70.0, **named):
    """FedSelect, and the same with another rule: ``least``, ``fixed`` (random), ``growing`` (random), or a layer."""
    names = {"ranking": {"least_change": "least", "random": "growing"}, "masks": {"random": "fixed"}}

    def score(setting, fields):
        rules = [names.get(field, {}).get(value, value) for field, value in fields.items() if field != "alpha"]
        rule = next((rule for rule in rules if rule != "layers"), None)
        return own if rule is None else named.get(rule, ablated)

    return scores(score)


def losses(own, rivals):
    """On CIFAR-10 all have 80; how much of it each loses on CIFAR10-C."""
    return scores(by_set({"cifar10_c": 80.0 - own}, 80.0), by_set({"cifar10_c": 80.0 - rivals}, 80.0))


def with_few_images(own, rivals):
    """With 100 images FedSelect has 80 and its rivals 75."""
    return scores(by_set({FEW: own}, 80.0), by_set({FEW: rivals}, 75.0))


def workshop(two, four, others=70.0):
    """The workshop version with 2 and with 4 classes, by p."""
    values = {TWO: dict(zip(KEEP_RATES, two, strict=True)), FOUR: dict(zip(KEEP_RATES, four, strict=True))}
    return scores(lambda setting, fields: values[setting][fields["keep_rate"]], others)


def fewer_classes(personal, fedavg=20.0, shared=15.0, **named):
    """How much each method loses from 4 classes to 2; all have 70 with 4."""

    def lost(points):
        return by_set({TWO: 70.0 - points}, 70.0)

    return scores(
        lost(personal),
        lost(personal),
        **{"fedavg": lost(fedavg), "fedbabu": lost(shared), "fedper": lost(shared)},
        **{name: lost(points) for name, points in named.items()},
    )


def uplink(sent, personal=lambda fields: fields["alpha"]):
    return metrics(uplink_fraction=sent, personal_share=personal)


def ends(zero=70.0, averaged=70.0, share=1.0, fedavg=70.0):
    """Claim 6: FedSelect with α = 0 (without and with averaged statistics), its share with α = 1, and FedAvg."""

    def own(setting, fields):
        return share if fields["alpha"] == 1 else averaged if "buffer_policy" in fields else zero

    return scores(own, fedavg=fedavg)


LABEL_SHIFT = dict.fromkeys(TABLES[:3], 30.0)  # FedAvg where clients have different classes

CASES = {
    1: [
        (REPRODUCED, scores(80.0), {}),
        (REPRODUCED, scores(by_alpha(60.0, 60.0, 80.0, 60.0)), {}),  # the best limit counts
        (NOT_FOUND, scores(70.0), {}),
        (REVERSED, scores(80.0, lg_fedavg=82.0), {}),  # one rival, everywhere
        (REVERSED, scores(80.0, ditto=by_set({"office_home": 82.0}, 70.0)), {}),  # one rival on one set
        (REPRODUCED, scores(80.0, ditto=None), {}),  # the missing rival does not enter
        (NOT_RUN, scores(lambda setting, fields: None if fields["alpha"] == 0.05 else 80.0), {}),
    ],
    2: [
        (REPRODUCED, scores(73.0), {}),
        (REPRODUCED, scores(by_set({"cifar10": 84.0}, 70.5)), {}),  # only the mean over the sets counts
        (NOT_FOUND, scores(72.4), {}),
        (REVERSED, scores(72.0), {}),
        (REVERSED, scores(80.0, ditto=78.0), {}),  # above the best baseline, not above their mean
        (NOT_RUN, scores(by_set({"office_home": None}, 80.0)), {}),
    ],
    3: [
        (REPRODUCED, scores(only_on(TABLES, 0.50)), {}),  # one of the limits is enough
        (NOT_FOUND, scores(70.0), {}),
        (
            REVERSED,
            scores(lambda s, f: 80.0 if (f["alpha"] == 0.30) == (s in CIFAR) else 60.0),
            {},
        ),  # half of the sets each
        (REVERSED, scores(only_on(TABLES, 0.80)), {}),  # another limit
    ],
    4: [
        (REPRODUCED, scores(by_alpha(70.0, 80.0, 80.0, 70.0)), {}),
        (NOT_FOUND, scores(by_alpha(70.0, 80.0, 80.0, 80.0)), {}),
        (REVERSED, scores(by_alpha(70.0, 80.0, 72.0, 75.0)), {}),  # each of the two is asked
    ],
    5: [
        (REPRODUCED, scores(by_alpha(70.0, 60.0, 80.0, 70.0)), {}),
        (NOT_FOUND, scores(70.0), {}),
        (REVERSED, scores(by_alpha(70.0, 80.0, 80.0, 82.0)), {}),
        (NOT_RUN, scores(by_alpha(None, 80.0, 80.0, 70.0)), {}),
    ],
    6: [
        (REPRODUCED, ends(zero=60.0), EXACT),  # with averaged statistics
        (REPRODUCED, ends(averaged=None), EXACT | {"seeds": 1}),  # a network without batch norm
        (REVERSED, ends(averaged=70.1), EXACT),
        (REVERSED, ends(averaged=None, zero=69.9), EXACT),
        (REVERSED, ends(share=0.99), EXACT),
        (REVERSED, ends(fedavg=None, share=0.99), EXACT),
    ],
    7: [
        (REPRODUCED, scores(70.0, fedavg=by_set(LABEL_SHIFT, 65.0)), {}),
        (REPRODUCED, scores(70.0, fedavg=by_set(LABEL_SHIFT, 75.0)), {}),
        (NOT_FOUND, scores(70.0, fedavg=by_set(LABEL_SHIFT | {"cifar10": 60.0}, 65.0)), {}),
        (NOT_FOUND, scores(70.0, fedavg=by_set(LABEL_SHIFT, 80.0)), {}),
        (REVERSED, scores(70.0, fedavg=by_set(LABEL_SHIFT | {"mini_imagenet": 65.0}, 65.0)), {}),
        (REVERSED, scores(70.0, fedavg=30.0), {}),  # also on OfficeHome
        (REVERSED, scores(70.0, fedavg=by_set(LABEL_SHIFT, 65.0), fedbabu=by_set({"cifar10": 35.0}, 70.0)), {}),
    ],
    8: [
        (REPRODUCED, scores(80.0, fedavg_ft=by_set({"mini_imagenet": 60.0}, 68.0)), {}),
        (REPRODUCED, scores(80.0, fedavg_ft=by_set({"mini_imagenet": 60.0}, 75.0)), {}),  # it is ahead
        (NOT_FOUND, scores(80.0, fedavg_ft=by_set({"mini_imagenet": 60.0}, 67.0)), CLOSE),
        (NOT_FOUND, scores(80.0, fedavg_ft=by_set({"mini_imagenet": 67.0}, 68.0)), {}),
        (REVERSED, scores(80.0, fedavg_ft=60.0), {}),
        (REVERSED, scores(80.0, fedavg_ft=68.0), {}),
    ],
    9: [
        (REPRODUCED, losses(own=1.0, rivals=10.0), {}),
        (REPRODUCED, losses(own=10.0, rivals=20.0), {}),
        (NOT_FOUND, losses(own=1.0, rivals=5.0), CLOSE),
        (NOT_FOUND, losses(own=10.0, rivals=10.0), CLOSE),
        (REVERSED, losses(own=1.0, rivals=3.0), {}),
        (REVERSED, losses(own=12.0, rivals=10.0), {}),
    ],
    10: [  # no margin: it cannot be not found
        (REPRODUCED, curves(own=1.0, others=2.0), {}),
        (REVERSED, curves(own=2.0, others=1.0), {}),
        (REVERSED, lambda s, m, k, f: (k == "roughness") == (m == "fedselect"), {}),  # smoothest or first, not both
        (OPEN, curves(own=1.0, others=1.0), {}),
    ],
    11: [
        (REPRODUCED, with_few_images(own=70.0, rivals=50.0), {}),
        (NOT_FOUND, with_few_images(own=70.0, rivals=65.0), {}),
        (REVERSED, with_few_images(own=70.0, rivals=68.0), {}),
    ],
    12: [
        (REPRODUCED, ablation(), {}),
        (REPRODUCED, ablation(growing=90.0, fixed=90.0, A=90.0), {}),  # other rules are not asked
        (NOT_FOUND, ablation(least=80.0), {}),
        (REVERSED, ablation(least=82.0), {}),
    ],
    13: [
        (REPRODUCED, ablation(), {}),
        (NOT_FOUND, ablation(C=80.0), {}),
        *((REVERSED, ablation(**{rule: 82.0}), {}) for rule in ("least", "fixed", *"ABCD")),
    ],
    14: [
        (REPRODUCED, ablation(), {}),
        (REPRODUCED, ablation(least=90.0), {}),
        (NOT_FOUND, ablation(growing=80.0), {}),
        *((REVERSED, ablation(**{rule: 82.0}), {}) for rule in ("fixed", "growing")),
    ],
    15: [
        (REPRODUCED, metrics(iou_contrast=0.2), SHARE),
        (NOT_FOUND, metrics(iou_contrast=0.0), SHARE),
        (REVERSED, scores(by_alpha(0.2, 0.2, 0.2, -0.2)), SHARE),
    ],
    16: [
        (REPRODUCED, metrics(iou_raw=lambda fields: fields["alpha"]), SHARE),
        (NOT_FOUND, metrics(iou_raw=0.5), SHARE),
        (REVERSED, metrics(iou_raw=lambda fields: 1 - fields["alpha"]), SHARE),
        (NOT_RUN, scores(by_alpha(0.1, 0.3, None, 0.8)), SHARE),
    ],
    17: [
        (REPRODUCED, uplink(lambda fields: 1.04 - fields["alpha"]), EXACT | {"seeds": 1}),
        (REVERSED, uplink(lambda fields: 1.06 - fields["alpha"]), EXACT),
        (REVERSED, uplink(1.0, personal=0.0), EXACT),  # as their masks say, but more than half
    ],
    18: [
        (REPRODUCED, workshop((60.0, 80.0, 60.0), (60.0, 80.0, 60.0)), {}),  # one p is enough
        (NOT_FOUND, workshop([70.0] * 3, [70.0] * 3), {}),
        (REVERSED, workshop((60.0, 80.0, 60.0), (60.0, 60.0, 80.0)), {}),  # the same p for both
        (REVERSED, scores(80.0, fedrep=lambda setting, fields: 70.0 + 3 * fields["head_epochs"]), {}),
    ],
    19: [
        (REPRODUCED, workshop((71.0, 70.0, 70.0), (70.0, 72.0, 71.0)), {}),
        (NOT_FOUND, workshop((70.0, 70.0, 70.0), (70.0, 72.0, 72.0)), {}),
        (NOT_FOUND, workshop((70.0, 70.0, 72.0), (70.0, 72.0, 70.0)), {}),
        (REVERSED, workshop((70.0, 70.0, 73.0), (70.0, 72.0, 70.0)), {}),
        (REVERSED, workshop((70.0, 70.0, 70.0), (73.0, 72.0, 70.0)), {}),
    ],
    20: [
        (REPRODUCED, fewer_classes(personal=-5.0), {}),
        (NOT_FOUND, fewer_classes(personal=0.0), {}),
        (NOT_FOUND, fewer_classes(personal=-5.0, shared=10.0), {}),  # half of what FedAvg loses
        (REVERSED, fewer_classes(personal=-5.0, shared=7.0), {}),
        (REVERSED, fewer_classes(personal=-5.0, lg_fedavg=3.0), {}),
        (REVERSED, fewer_classes(personal=-5.0, fedavg=-5.0), {}),
    ],
    21: [
        (REPRODUCED, metrics(iou_chance=0.2), SHARE),
        (NOT_FOUND, metrics(iou_chance=0.5), SHARE),
        (REVERSED, metrics(iou_chance=0.7), SHARE),
    ],
    22: [
        (REPRODUCED, metrics(uplink_fraction=lambda fields: 1 - fields["keep_rate"] ** 5), EXACT | {"seeds": 1}),
        (REVERSED, metrics(uplink_fraction=lambda fields: 1 - fields["keep_rate"] ** 4), EXACT),
        (REVERSED, metrics(uplink_fraction=0.9), EXACT),
    ],
    23: [
        (REPRODUCED, metrics(iou_contrast=lambda fields: 1 - fields["alpha"]), SHARE),
        (NOT_FOUND, metrics(iou_contrast=0.2), SHARE),
        (REVERSED, metrics(iou_contrast=lambda fields: fields["alpha"]), SHARE),
    ],
}


def test_which_runs_the_claims_ask_for():
    """Every pick of the claims, by method and fields, whatever the setting and metric."""
    asked = set()

    def score(setting, method, metric, fields):
        if setting:
            asked.add((method, *sorted(fields.items())))
        return 70.0

    for number in claim:
        judged(PAPER, number, score)
    rules = [("ranking", "least_change"), ("ranking", "random"), ("masks", "random")]
    own = [[("alpha", alpha)] for alpha in LIMITS] + [[("alpha", alpha), rule] for alpha in MAIN for rule in rules]
    own += [[("group", letter), ("masks", "layers")] for letter in "ABCD"]
    own += [[("alpha", 1.0), ("p", 1.0)], [("alpha", 0.0), ("buffer_policy", "average")]]
    expected = {("fedselect", *fields) for fields in own} | {(name,) for name in (*BASELINES, "lotteryfl")}
    expected |= {("fedselect_gradltn", ("keep_rate", p)) for p in KEEP_RATES} | {("fedrep", ("head_epochs", 4))}
    assert asked == expected


@pytest.mark.parametrize(
    ("number", "effect", "setting", "printed"),
    [
        (1, "best (α = 0.3) − LG-FedAvg > 0", "cifar10", 4.60),
        (2, "best limit − best baseline > 2.4", "", 2.14),
        (3, "α = 0.3 − FedPAC > 0", "mini_imagenet", 0.12),
        (4, "α = 0.3 − α = 0.05 > 0", "cifar10", 2.15),
        (5, "best (α = 0.3) − best (α = 0.8) > 0", "cifar10", 0.85),
        (7, "FedBABU − FedAvg > 10", "mini_imagenet", -1.07),
        (8, "best (LG-FedAvg) − (FedAvg + FT) < 3", "cifar10", 2.35),
        (9, "lost by FedBABU > 5", "", 10.50),
        (12, "α = 0.3 − α = 0.3, ranking = least_change > 0", "cifar10", 2.38),
        (14, "α = 0.3 − α = 0.3, masks = random > 0", "cifar10", 2.52),
    ],
)
def test_printed_effects(number, effect, setting, printed):
    """As the notes in data/paper/fedselect.toml state them, from the same tables."""
    found = judged(PAPER, number, as_printed)
    named = [e for e in found.effects if e.effect == effect and e.setting == setting]
    assert named and named[0].printed == (pytest.approx(printed, abs=0.006),)


def as_printed(setting, method, metric, fields):
    """In the order of Tables 1 and 2 on CIFAR-10."""
    if method == "fedselect":
        return {0.05: 80.1, 0.3: 82.25, 0.5: 82.2, 0.8: 81.4}.get(fields.get("alpha"), 79.0)
    return {"lg_fedavg": 77.65, "fedavg": 27.7, "fedavg_ft": 75.3}.get(method, 75.0)
