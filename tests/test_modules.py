"""What registries read in the text of modules is what the modules say when they are loaded."""

from __future__ import annotations

from importlib import import_module

import pytest
from torchvision.transforms import v2

from fastload import modules, recipe
from fastload.backends import base
from fastload.recipe import Opaque, Recipe, operation

BY_PACKAGE = {*operation._PACKAGES.values()}


@pytest.mark.parametrize("name", base._BUILT_IN)
def test_the_traits_of_a_backend_are_those_of_its_class(name: str) -> None:
    module, _, cls = base._BUILT_IN[name].partition(":")
    read = base._traits_in_text(base._BUILT_IN[name])
    assert read is not None
    assert read == getattr(import_module(module), cls).traits


def test_each_transform_that_is_lowered_is_named_in_the_text_of_the_module_that_does_it() -> None:
    for module in modules.modules_in("fastload.recipe", recipe.__path__):
        if module not in BY_PACKAGE:
            import_module(module)
    lowered = {
        kind.__name__
        for kind in operation._lowerings
        if kind.__module__.startswith(("torchvision.", "fastload.recipe."))
    }
    named = operation._modules_by_name()
    assert lowered <= {*named}
    assert not BY_PACKAGE & {module for found in named.values() for module in found}


def test_without_its_text_a_module_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (operation, base):
        monkeypatch.setattr(module, "text_of", lambda module: None)
    operation._modules_by_name.cache_clear()
    base._traits_in_text.cache_clear()
    try:
        assert not isinstance(Recipe.from_transform(v2.RandomErasing()).ops[0], Opaque)
        assert base.available_backends()[0].traits.runs_opaque
    finally:
        operation._modules_by_name.cache_clear()
        base._traits_in_text.cache_clear()


def test_an_attribute_of_a_class_is_read_to_its_end() -> None:
    text = """class A:
    traits = replace(
        OF_ALL,
        summary="(",
    )
    name: str = "a"

    def f(self):
        other = 1


class B(
    A,
):
    traits = OF_ALL
"""
    statement = modules.class_attribute(text, "A", "traits")
    assert statement == 'replace(\n        OF_ALL,\n        summary="(",\n    )\n'
    assert modules.class_attribute(text, "A", "name") == '"a"\n'
    assert modules.class_attribute(text, "B", "traits") == "OF_ALL\n"
    assert modules.class_attribute(text, "A", "other") is None
    assert modules.class_attribute(text, "C", "traits") is None
