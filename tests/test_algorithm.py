"""Registry, readings, and construction of methods from plain data."""

import dataclasses

import pytest
import torch

import pfl_core.algorithm as algorithm_module
from pfl_core.algorithm import Algorithm, State, build, method, methods, register
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.fedselect.method import FedSelect
from pfl_core.papers import PAPERS
from tests.helpers import everyone, federation, one_line


@dataclasses.dataclass(frozen=True)
class Bare(Algorithm):
    """A method without a setting."""


class NotAMethod:
    """A class that is not an Algorithm."""


def no_class() -> None:
    """A function."""


@dataclasses.dataclass(frozen=True)
class Outside(FedAvg):
    """A user's method outside the package."""

    mu: float = 0.5


def test_every_registry_entry_is_complete():
    for name, entry in methods().items():
        assert entry.name == name
        assert issubclass(entry.cls, Algorithm), name
        assert dataclasses.is_dataclass(entry.cls), name
        assert entry.papers and set(entry.papers) <= set(PAPERS), name
        assert entry.shares and "\n" not in entry.shares, name
        assert entry.cls.__doc__, name
        assert "paper" in entry.cls.readings, name


def test_the_default_is_the_papers_reading_and_every_setting_is_frozen():
    for name, entry in methods().items():
        default = build(name, {})
        assert default == entry.cls() == entry.cls.reading("paper"), name
        with pytest.raises(dataclasses.FrozenInstanceError):
            default.anything = 1


def test_every_variant_can_be_built():
    for name, entry in methods().items():
        for options in (*entry.variants.values(), entry.ci):
            fields = {option: value for option, value in options.items() if option != "reading"}
            built = build(name, fields, options.get("reading", "paper"))
            assert {option: getattr(built, option) for option in fields} == fields, (name, options)


def test_registering_makes_a_method_known(monkeypatch):
    monkeypatch.setattr(algorithm_module, "_REGISTRY", dict(algorithm_module._REGISTRY))
    register("mine", papers=("fedselect",), shares="nothing at all", ci={"mu": 0.1})(Outside)
    assert methods()["mine"].ci == {"mu": 0.1}
    assert build("mine", {"mu": 2}) == Outside(mu=2.0)


def test_the_list_of_methods_is_a_copy():
    methods().clear()
    assert methods()


def test_a_method_from_outside_the_package():
    address = f"{__name__}:Outside"
    assert method(address) is Outside
    assert build(address, {"mu": "0.25", "client_weighting": "samples"}) == Outside("samples", mu=0.25)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fedavgg", "unknown method 'fedavgg'"),
        ("no_such_module:Thing", "no_such_module"),
        (f"{__name__}:Nothing", "Nothing"),
        (f"{__name__}:NotAMethod", "not a subclass of pfl_core.Algorithm"),
        (f"{__name__}:no_class", "not a subclass of pfl_core.Algorithm"),
    ],
)
def test_unknown_methods_are_refused_in_one_line(name, message):
    with one_line(message):
        method(name)


@pytest.mark.parametrize(
    ("name", "options", "reading", "message"),
    [
        (
            "fedselect",
            {"alfa": 0.3},
            "paper",
            r"method fedselect: no setting 'alfa' \(did you mean 'alpha'\?\)$",
        ),
        ("fedselect", {"alpha": "much"}, "paper", "method fedselect: alpha='much': input should be a valid number"),
        (
            "fedselect",
            {"limit_policy": "never"},
            "paper",
            "limit_policy='never': input should be 'check_before' or 'cap'",
        ),
        ("fedselect", {"mask_update_every": 1.5}, "paper", r"mask_update_every=1\.5: .*integer"),
        (
            "fedselect",
            {"alpha": 30},
            "paper",
            r"alpha=30: input should be less than or equal to 1; for 30 percent give 0\.3",
        ),
        ("fedselect", {"p": -0.1}, "paper", r"p=-0\.1: input should be greater than or equal to 0$"),
        ("fedselect", {"p": 300}, "paper", "p=300: input should be less than or equal to 1$"),
        ("fedap", {"lam": 0}, "paper", "lam=0: input should be greater than 0$"),
        ("fedselect", {"p": float("nan")}, "paper", "p=nan: input should be a finite number"),
        (
            "fedselect",
            {"mask_update_every": 0},
            "paper",
            "mask_update_every=0: input should be greater than or equal to 1",
        ),
        ("fedselect", {}, "authors", "no reading 'authors'; choose from paper, authors_code"),
        ("local", {"epochs": 3}, "paper", "method local: no setting 'epochs'; choose from keep_momentum"),
        (f"{__name__}:Bare", {"epochs": 3}, "paper", "no setting 'epochs'; there are none"),
        ("local", {}, "authors_code", "Local: no reading 'authors_code'; choose from paper"),
    ],
)
def test_bad_options_are_refused_in_one_line(name, options, reading, message):
    with one_line(message):
        build(name, options, reading)


def test_plain_data_is_converted_to_the_fields_types():
    built = build("fedselect", {"p": "0.25", "alpha": 1, "mask_update_every": "3", "skip_empty_pass": "false"})
    assert built == FedSelect(p=0.25, alpha=1.0, mask_update_every=3, skip_empty_pass=False)
    assert isinstance(built.alpha, float)
    assert build("fedselect", {"lr_shared": None, "lr_personal": 0.1}).lr_personal == 0.1


def test_changes_replace_fields_of_a_reading():
    code = FedSelect.reading("authors_code")
    assert FedSelect.reading("authors_code", alpha=0.3) == dataclasses.replace(code, alpha=0.3)
    assert code.alpha == 0.80


def test_an_algorithm_without_a_round_raises():
    fed = federation()
    with pytest.raises(NotImplementedError, match="Algorithm.round"):
        Algorithm().round(fed, State(fed.theta0), everyone(fed), 0)


def test_defaults_of_an_algorithm():
    fed, plain = federation(), Algorithm()
    state = plain.init(fed, fed.theta0)
    assert torch.equal(state.shared, fed.theta0)
    assert state.local is None
    assert torch.equal(plain.evaluation_models(fed, state, torch.arange(3), 0), fed.theta0.expand(3, -1))
    assert plain.adapt(fed, state, torch.arange(2), 0) is state
    assert plain.artifacts(fed, state) == {}
    assert plain.shared_prefix(fed) == (plain, 0)
    x = fed.splits["test"].client(0)[0]
    assert torch.equal(plain.predict(fed, state, 0, fed.theta0, x), fed.logits(fed.theta0, x))
