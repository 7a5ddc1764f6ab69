"""The import of torchvision, with and without its compiled operators."""

import importlib
from types import ModuleType, SimpleNamespace

import pytest

from pfl_core import vision


def test_torchvision_is_usable_and_the_same_each_time():
    first = vision.torchvision()
    assert first.models.resnet18 and first.datasets.CIFAR10 and first.transforms.Resize
    assert vision.torchvision() is first


def test_missing_operators_are_declared_once_and_the_import_tried_again(monkeypatch):
    calls, good = [], ModuleType("torchvision")
    fake_modules = {"torchvision": 1, "torchvision.half": 2, "torchvisionary": 3}

    def fake_import(name):
        calls.append(name)
        if len(calls) == 1:
            raise RuntimeError("operator torchvision::nms does not exist")
        return good

    monkeypatch.setattr(vision, "importlib", SimpleNamespace(import_module=fake_import))
    monkeypatch.setattr(vision, "sys", SimpleNamespace(modules=fake_modules))
    monkeypatch.setattr(vision, "_declare_operators", lambda: calls.append("declared"))
    assert vision.torchvision() is good
    assert calls == ["torchvision", "declared", "torchvision"]
    assert fake_modules == {"torchvisionary": 3}


def test_other_failures_of_the_import_are_not_hidden(monkeypatch):
    def broken(name):
        raise RuntimeError("something else")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(RuntimeError, match="something else"):
        vision.torchvision()
