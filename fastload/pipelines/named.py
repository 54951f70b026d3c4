"""Pipelines by name, with their arguments as text, for commands and configurations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_type_hints

import msgspec
from torchvision.transforms import v2

from fastload import pipelines
from fastload.errors import ConfigurationError, did_you_mean
from fastload.recipe.views import Views
from fastload.sampler.scales import Progressive


def transforms() -> dict[str, Callable[..., Any]]:
    """By name, the pipelines that are a `transform`; others are a `batch_transform` or an
    `order`."""
    every = {name: getattr(pipelines, name) for name in pipelines.__all__}
    return {
        name: function
        for name, function in every.items()
        if get_type_hints(function)["return"] in (v2.Compose, Views, Any)
    }


def transform_named(
    name: str, texts: Sequence[str], *, setting: str = "pipeline"
) -> v2.Compose | Views:
    """The transform of a pipeline.

    Args:
        texts: arguments, NAME=VALUE; a value is a word, or as JSON has it: 0.1, true, null,
            [0.05,0.32].
        setting: what the name was given as, for messages; that of the arguments is `_option`.

    Raises:
        ConfigurationError: there is no such pipeline, or it does not take such an argument.
    """
    known = transforms()
    if name not in known:
        batches = ""
        if name in pipelines.__all__:
            returned = get_type_hints(getattr(pipelines, name))["return"]
            argument = "order" if returned is Progressive else "batch_transform"
            batches = f" It is for {argument}= of create_loader."
        near = did_you_mean(name, known)
        raise ConfigurationError(
            f"{setting} {name!r}: there are {', '.join(sorted(known))}.{batches or near}"
        )
    function = known[name]
    hints = get_type_hints(function)
    given: dict[str, Any] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if not key.isidentifier() or not value:
            example = next(iter(hints))
            raise ConfigurationError(
                f"{setting}_option {text!r}: must be NAME=VALUE, such as {example}=..."
            )
        given[key] = value if key not in hints else _value(value, hints[key], setting, text)
    transform: v2.Compose | Views = function(**given)
    return transform


def _value(text: str, hint: Any, setting: str, whole: str) -> Any:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = text
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{setting}_option {whole!r}: {error}.") from error


def shown(name: str, texts: Sequence[str]) -> str:
    """As one would write it in a script."""
    return f"fastload.pipelines.{name}({', '.join(texts)})"
