"""The JSON Schemas in docs/: what each is made of, and whether a document keeps to one.

``python tests/schemas.py`` writes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.json import schema_components

from analyzer.cli.gpus_command import CardList
from analyzer.fitting.fit_answer import FitAnswer, LogAnswer
from analyzer.model.contract.oom_file import OomDocument
from analyzer.model.contract.report_file import DiffFile, ReportFile, SweepFile
from analyzer.session.device_report import DeviceFile

DOCS = Path(__file__).parents[1] / "docs"
SCHEMAS: dict[str, tuple[str, tuple[type, ...]]] = {
    "report": (
        "Output of analyze trace, estimate and diff --json",
        (ReportFile, DiffFile),
    ),
    "fit": ("The answer of analyze fit --json", (FitAnswer,)),
    "oom": ("Output of analyze oom --json", (OomDocument, LogAnswer)),
    "sweep": ("Output of analyze sweep (sweep.json)", (SweepFile,)),
    "device": ("Document of analyze device --json", (DeviceFile,)),
    "gpus": ("Output of analyze gpus --json", (CardList,)),
}
TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "number": (int, float),
    "integer": int,
}
KNOWN = {
    "$ref", "additionalProperties", "anyOf", "default", "description", "enum", "items", "maxItems",
    "maxLength", "maximum", "minItems", "minimum", "prefixItems", "properties", "propertyNames",
    "required", "title", "type",
}  # fmt: skip


def field_notes() -> dict[tuple[str, str], str]:
    """Return the comment beside or above each field of the package's records: class, field -> text."""
    notes: dict[tuple[str, str], str] = {}
    for file in (DOCS.parent / "analyzer").rglob("*.py"):
        record, above = "", ""
        for line in file.read_text("utf-8").splitlines():
            if opened := re.match(r"class (\w+)", line):
                record = opened[1]
            elif comment := re.match(r"    # (.+)", line):
                above = f"{above} {comment[1]}".strip()
                continue
            field = re.match(r"    (\w+): [^#]+(?:#(?! noqa) (.+))?", line)
            if field and (text := field[2] or above):
                notes[record, field[1]] = text
            above = ""
    return notes


def build_schema(title: str, types: tuple[type, ...]) -> str:
    """Return the JSON Schema of a document that is one of several records."""
    either, parts = schema_components(types)
    notes = field_notes()
    for record, part in parts.items():
        if "description" in part:
            part["description"] = cleandoc(part["description"])
        classes = [cls.__name__ for cls in _find_class(record).__mro__]
        for name, field in part.get("properties", {}).items():
            if note := next(
                (notes[cls, name] for cls in classes if (cls, name) in notes), ""
            ):
                field["description"] = note
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "anyOf": list(either),
        "$defs": parts,
    }
    return json.dumps(schema, indent=1) + "\n"


def _find_class(record: str) -> type:
    """Return the class of a record by its name, which no other class has."""
    open_classes = [Struct, object]
    while open_classes:
        cls = open_classes.pop()
        if cls.__name__ == record:
            return cls
        open_classes += type.__subclasses__(cls)
    return object


def schema_file(name: str) -> Path:
    return DOCS / f"{name}.schema.json"


def breaches(document: Any, name: str, record: str) -> list[str]:
    """Return how a document breaks the schema of one record, by the words that ours are written in."""
    parts = json.loads(schema_file(name).read_text("utf-8"))["$defs"]
    return list(_breaches(document, parts[record], parts, "$"))


def _breaches(
    value: Any, schema: dict[str, Any], parts: dict[str, Any], where: str
) -> Iterator[str]:
    assert set(schema) <= KNOWN, set(schema) - KNOWN
    if "$ref" in schema:
        yield from _breaches(
            value, parts[schema["$ref"].rpartition("/")[2]], parts, where
        )
    if "anyOf" in schema:
        found = [list(_breaches(value, one, parts, where)) for one in schema["anyOf"]]
        if all(found):
            yield from min(found, key=len)
    kind = schema.get("type")
    if kind and not (
        isinstance(value, TYPES[kind])
        and (kind == "boolean" or not isinstance(value, bool))
    ):
        yield f"{where} is no {kind}: {str(value)[:40]}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where} is none of {schema['enum']}: {value}"
    low, high = schema.get("minimum"), schema.get("maximum")
    if (low is not None and value < low) or (high is not None and value > high):
        yield f"{where} is {value}, not from {low} to {high}"
    if len(value) > schema["maxLength"] if "maxLength" in schema else False:
        yield f"{where} is too long"
    if isinstance(value, dict):
        yield from _object_breaches(value, schema, parts, where)
    if isinstance(value, list):
        yield from _array_breaches(value, schema, parts, where)


def _object_breaches(
    value: dict[str, Any], schema: dict[str, Any], parts: dict[str, Any], where: str
) -> Iterator[str]:
    known = schema.get("properties", {})
    yield from (
        f"{where} lacks {name}"
        for name in schema.get("required", ())
        if name not in value
    )
    for name, item in value.items():
        if name in known:
            yield from _breaches(item, known[name], parts, f"{where}.{name}")
        elif isinstance(schema.get("additionalProperties"), dict):
            yield from _breaches(
                item, schema["additionalProperties"], parts, f"{where}.{name}"
            )
        elif schema.get("type") == "object":
            yield f"{where}.{name} is not in the schema"


def _array_breaches(
    value: list[Any], schema: dict[str, Any], parts: dict[str, Any], where: str
) -> Iterator[str]:
    least, most = schema.get("minItems", 0), schema.get("maxItems", len(value))
    if not least <= len(value) <= most:
        yield f"{where} has {len(value)} items, not from {least} to {most}"
    first = schema.get("prefixItems", [])
    rest = schema.get("items")
    for place, item in enumerate(value):
        part = first[place] if place < len(first) else rest
        if isinstance(part, dict):
            yield from _breaches(item, part, parts, f"{where}[{place}]")


if __name__ == "__main__":
    for name, (title, types) in SCHEMAS.items():
        schema_file(name).write_text(build_schema(title, types), "utf-8")
