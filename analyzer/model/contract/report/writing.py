"""Conversion of reports to JSON and back."""

from __future__ import annotations

import json
import math
from inspect import cleandoc
from operator import index
from pathlib import Path
from typing import Any, Final, SupportsIndex

from msgspec import DecodeError, convert, to_builtins
from msgspec.json import format as indented
from msgspec.json import schema_components as json_schema

from analyzer.model.contract.fields import ReportRecord
from analyzer.model.contract.reading import read_record
from analyzer.model.contract.report.diff_file import DiffFile
from analyzer.model.contract.report.report_file import REPORT_VERSION, ReportFile

Json = bool | int | float | str | None | list["Json"] | dict[str, "Json"]
"""A value of JSON."""

_HINT: Final = "Write it again from the trace or the estimate."


def plain_report(report: ReportRecord) -> dict[str, Json]:
    """Return a report as JSON values, with null for NaN and infinity."""
    plain: dict[str, Json] = replace_non_finite(to_builtins(report, enc_hook=_number))
    return plain


def _number(value: object) -> int | float:
    """Return a NumPy number as a Python number."""
    if isinstance(value, float):
        return float(value)
    if isinstance(value, SupportsIndex):
        return index(value)
    raise NotImplementedError(f"{type(value)} in a report")


def encode_report(report: ReportRecord) -> str:
    """Return a report as JSON text."""
    plain = to_builtins(report, enc_hook=_number)
    try:
        text = json.dumps(plain, allow_nan=False)
    except ValueError:  # NaN or infinity
        text = json.dumps(replace_non_finite(plain), allow_nan=False)
    try:
        return indented(text, indent=1) + "\n"
    except DecodeError:  # half a surrogate pair, from a file name that is not UTF-8
        # Python's encoder accepts it, but indents slowly.
        return json.dumps(json.loads(text), indent=1) + "\n"


def schema_text() -> str:
    """Return the JSON Schema of ``--json``, ``docs/report.schema.json``."""
    return build_schema("Output of analyze trace, estimate and diff --json", ReportFile, DiffFile)


def build_schema(title: str, *types: type) -> str:
    """Return the JSON Schema of a document that is one of several records."""
    either, parts = json_schema(types)
    for part in parts.values():
        if "description" in part:
            part["description"] = cleandoc(part["description"])
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "anyOf": list(either),
        "$defs": parts,
    }
    return json.dumps(schema, indent=1) + "\n"


def convert_report(plain: dict[str, Any]) -> ReportFile:
    """Return the report of JSON values.

    Raises:
        ValueError: A field is missing, has another type or exceeds its limits.
    """
    return convert(plain, ReportFile)


def read_report(path: Path) -> ReportFile:
    """Read ``report.json``.

    Raises:
        TraceError: It is missing or damaged, or a newer version wrote it.
    """
    return read_record(path, ReportFile, version=REPORT_VERSION, hint=_HINT)


def replace_non_finite(value: Any) -> Any:
    """Return JSON values with null for NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_non_finite(item) for item in value]
    return value
