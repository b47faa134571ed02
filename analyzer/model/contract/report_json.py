"""Conversion of reports to JSON and back."""

import hashlib
import json
import math
import os
import stat
from operator import index
from pathlib import Path
from typing import Annotated, Any, Final, SupportsIndex

from msgspec import DecodeError, Meta, Struct, convert, to_builtins
from msgspec.json import encode
from msgspec.json import format as indented

from analyzer.model.contract.fields import Name
from analyzer.model.contract.reading import (
    open_without_blocking,
    read_record,
    sibling_file,
)
from analyzer.model.contract.report_file import REPORT_VERSION, ReportFile
from analyzer.model.errors import AnalyzerError
from analyzer.model.version import __version__

Json = (
    bool | int | float | str | None | list["Json"] | dict[str, "Json"]
)  # a value of JSON

_HINT: Final = "Write it again from the trace or the estimate."


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


def convert_report(plain: dict[str, Any]) -> ReportFile:
    """Return the report of JSON values, or raise a ValueError."""
    return convert(plain, ReportFile)


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


DIGESTS_FILE: Final = "kept.json"
REPORT_JSON: Final = "report.json"
REPORT_HTML: Final = "report.html"
_FORMAT: Final = 2
_BLOCK_BYTES: Final = 1 << 20
_Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]  # SHA-256 of a file's content


class _FileDigests(Struct, frozen=True, kw_only=True):
    """The content of ``kept.json``: files by path in the folder, with ``/`` between folders."""

    schema_version: int = _FORMAT
    analyzer: Name
    files: Annotated[dict[Name, _Digest], Meta(max_length=4096)]


def encode_digests(folder: Path) -> bytes:
    """Return the content of ``kept.json`` for the files in a folder, as JSON text."""
    found = sorted(
        file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()
    )
    files = {
        file.relative_to(folder).as_posix(): _digest(file)
        for file in found
        if file.name not in (DIGESTS_FILE, REPORT_HTML)
    }

    return encode(_FileDigests(analyzer=__version__, files=files))


def read_saved_report(folder: Path) -> tuple[ReportFile | None, str]:
    """Return the report that is saved in ``folder``, and why it cannot be used (empty without one)."""
    file = folder / DIGESTS_FILE
    if not file.is_file():
        return None, ""

    try:
        facts = read_record(file, _FileDigests, version=_FORMAT, hint="")
        if facts.schema_version != _FORMAT or facts.analyzer != __version__:
            return None, f"version {facts.analyzer:.20} saved it"

        for name, digest in facts.files.items():
            place = folder
            for part in name.split("/"):
                place = sibling_file(place / "file", part)

            if _digest(place) != digest:
                return None, "one of its files has changed"

        traces = (
            found.relative_to(folder).as_posix()
            for found in folder.rglob("*")
            if found.name.endswith((".xplane.pb", ".xplane.pb.gz"))
        )

        if REPORT_JSON not in facts.files or set(traces) - facts.files.keys():
            return None, "a file was added"
        return read_report(folder / REPORT_JSON), ""
    except (AnalyzerError, OSError, ValueError, RecursionError):
        return None, f"a file is missing or damaged, or {DIGESTS_FILE} is"


def _digest(file: Path) -> str:
    """Return the digest of a file; raise an OSError if it is no regular file."""
    digest = hashlib.sha256()
    with open(file, "rb", opener=open_without_blocking) as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise OSError(f"{file} is no regular file")

        while block := opened.read(_BLOCK_BYTES):
            digest.update(block)

    return digest.hexdigest()
