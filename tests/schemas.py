"""The JSON Schemas in docs/: what each is made of, and whether a document keeps to one.

``python tests/schemas.py`` writes them.
"""

import json
import re
from inspect import cleandoc
from pathlib import Path
from typing import Any

from msgspec import Struct, ValidationError, convert
from msgspec.json import encode, schema_components

from analyzer.cli.gpus_command import CardList
from analyzer.fitting.fit_answer import FitAnswer
from analyzer.model.contract.oom_file import OomDocument
from analyzer.model.contract.report_file import DiffFile, ReportFile
from analyzer.session.device_report import DeviceFile

DOCS = Path(__file__).parents[1] / "docs"
SCHEMAS: dict[str, tuple[str, tuple[type, ...]]] = {
    "report": (
        "Output of analyze trace, estimate and diff --json",
        (ReportFile, DiffFile),
    ),
    "fit": ("The answer of analyze fit --json", (FitAnswer,)),
    "oom": ("Output of analyze oom --json", (OomDocument,)),
    "device": ("Document of analyze device --json", (DeviceFile,)),
    "gpus": ("Output of analyze gpus --json", (CardList,)),
}


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
    """Return how a document breaks the schema of one record: the schema is that of the type."""
    (kind,) = [one for one in SCHEMAS[name][1] if one.__name__ == record]
    try:
        read = convert(document, kind)
    except ValidationError as error:
        return [str(error)]
    written = json.loads(encode(read))
    return (
        []
        if written == document
        else ["has fields that the type has not, or lacks some"]
    )


if __name__ == "__main__":
    for name, (title, types) in SCHEMAS.items():
        schema_file(name).write_text(build_schema(title, types), "utf-8")
