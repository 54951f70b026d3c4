"""An argument that a public function does not have is an error that names the nearest one."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import fastload
from fastload.errors import ConfigurationError, FastloadError

FUNCTIONS = {
    name: found
    for name in fastload.__all__
    if inspect.isfunction(found := getattr(fastload, name)) and inspect.signature(found).parameters
}


def test_all_public_functions_are_tried() -> None:
    assert {"create_loader", "from_dataloader", "open_source", "build_cache"} <= {*FUNCTIONS}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_misspelt_argument_is_refused_with_the_nearest(name: str) -> None:
    function: Any = FUNCTIONS[name]
    last = [*inspect.signature(function).parameters][-1]
    with pytest.raises(TypeError, match=rf"^{name}: there is no .*'{last}s'\. Did you mean {last}"):
        function("anything", **{f"{last}s": 1})


def test_the_error_is_ours_and_pythons() -> None:
    for kind in (FastloadError, ConfigurationError, ValueError, TypeError):
        with pytest.raises(kind, match=r"no argument 'num_worker'\. Did you mean num_workers\?"):
            fastload.create_loader("data", num_worker=4)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"no argument 'xyz'\. There are source, batch_size, "):
        fastload.create_loader("data", xyz=4)  # type: ignore[call-arg]


def test_names_and_documentation_stay() -> None:
    parameters = inspect.signature(fastload.create_loader).parameters
    assert [*parameters][:3] == ["source", "batch_size", "shuffle"]
    assert (fastload.create_loader.__doc__ or "").startswith("Make a Loader.")
