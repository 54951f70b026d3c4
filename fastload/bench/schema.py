"""Checks a document against a JSON Schema, as far as ours go: draft 2020-12 without references and combinations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["results_schema", "violations"]

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}


@cache
def results_schema() -> dict[str, Any]:
    """The schema of what `fastload bench ... --json` writes."""
    schema: dict[str, Any] = json.loads(files("fastload.bench").joinpath("results.schema.json").read_text())
    return schema


def violations(document: object, schema: dict[str, Any], where: str = "$") -> Iterator[str]:
    """Each part of the document that is not as the schema says, in words.

    Knows `type`, `const`, `enum`, `required`, `properties`, `additionalProperties` and `items`.
    """
    if "const" in schema and document != schema["const"]:
        yield f"{where} is {document!r}, not {schema['const']!r}"
    if "enum" in schema and document not in schema["enum"]:
        yield f"{where} is {document!r}, none of {', '.join(map(repr, schema['enum']))}"
    allowed = schema.get("type", list(_TYPES))
    allowed = [allowed] if isinstance(allowed, str) else allowed
    if not any(_is(document, name) for name in allowed):
        yield f"{where} is {document!r:.60}, not {' or '.join(allowed)}"
    elif isinstance(document, dict):
        yield from _object(document, schema, where)
    elif isinstance(document, list) and "items" in schema:
        for index, item in enumerate(document):
            yield from violations(item, schema["items"], f"{where}[{index}]")


def _object(document: dict[str, object], schema: dict[str, Any], where: str) -> Iterator[str]:
    for name in schema.get("required", ()):
        if name not in document:
            yield f"{where} has no {name!r}"
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties", {})
    for name, value in document.items():
        if name in properties:
            yield from violations(value, properties[name], f"{where}.{name}")
        elif others is False:
            yield f"{where} has {name!r}, which the schema does not know"
        else:
            yield from violations(value, others, f"{where}.{name}")


def _is(value: object, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES[name])
