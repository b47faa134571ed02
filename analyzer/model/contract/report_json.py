"""Conversion of reports to JSON and back."""

import hashlib
import json
import math
import os
from contextlib import suppress
from operator import index
from pathlib import Path
from typing import Any, SupportsIndex

from msgspec import DecodeError, Struct, to_builtins
from msgspec.json import encode
from msgspec.json import format as indented

from analyzer.model import __version__
from analyzer.model.contract.reading import (
    read_record,
    read_regular_file,
)
from analyzer.model.contract.report_file import REPORT_VERSION, ReportFile
from analyzer.model.errors import AnalyzerError

# a value of JSON
Json = bool | int | float | str | None | list["Json"] | dict[str, "Json"]

_HINT = "Write it again from the trace or the estimate."


def plain_report(report: Struct) -> dict[str, Json]:
    """Return a report as JSON values, with null for NaN and infinity."""
    plain: dict[str, Json] = replace_non_finite(to_builtins(report, enc_hook=_number))
    return plain


def _number(value: object) -> int | float:
    if isinstance(value, float):
        return float(value)
    if isinstance(value, SupportsIndex):
        return index(value)

    raise NotImplementedError(f"{type(value)} in a report")


def encode_report(report: Struct) -> str:
    """Return a report as JSON text."""
    text = json.dumps(plain_report(report))

    try:
        return indented(text, indent=1) + "\n"
    except DecodeError:  # half a surrogate pair, from a file name that is not UTF-8
        # Python's encoder accepts it, but indents slowly.
        return json.dumps(json.loads(text), indent=1) + "\n"


def read_report(path: Path) -> ReportFile:
    """Read ``report.json``, or raise a TraceError."""
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


DIGEST_FILE = "kept.json"
REPORT_JSON = "report.json"
REPORT_HTML = "report.html"


def encode_digest(folder: Path) -> bytes:
    """Return the content of ``kept.json``: this version, and a digest of the files in the folder."""
    return encode({"analyzer": __version__, "digest": _digest_files(folder)})


def _digest_files(folder: Path) -> str:
    """Return the SHA-256 of the files in a folder with their paths, without the two files about it."""
    digest = hashlib.sha256()

    for file in sorted(folder.rglob("*")):
        is_own = file.name in (DIGEST_FILE, REPORT_HTML)

        if file.is_file() and not file.is_symlink() and not is_own:
            content = read_regular_file(file)
            digest.update(
                os.fsencode(f"{file.relative_to(folder).as_posix()} {len(content)}\n")
            )
            digest.update(content)

    return digest.hexdigest()


def read_saved_report(folder: Path) -> tuple[ReportFile | None, str]:
    """Return the report that is saved in ``folder``, and why it cannot be used (empty without one)."""
    file = folder / DIGEST_FILE
    if not file.is_file():
        return None, ""

    with suppress(AnalyzerError, OSError, ValueError):
        if read_regular_file(file) == encode_digest(folder):
            return read_report(folder / REPORT_JSON), ""

    return None, "another version saved it, or a file has changed or is damaged"
