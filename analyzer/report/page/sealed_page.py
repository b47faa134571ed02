"""What every HTML file of ours is made with: its parts, its template, and the policy that seals it.

Text of others reaches a page through a template, which escapes. A Content-Security-Policy names the
page's own scripts and style by their hash and forbids every other, every request and every form.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources

import jinja2

from analyzer.model.units import format_bytes
from analyzer.report.unbreakable_units import unbroken


@cache
def asset(package: str, name: str) -> str:
    """Return the text of a file that lies in a package."""
    return (resources.files(package) / name).read_text(encoding="utf-8")


def policy_of(style: str, scripts: Sequence[str] = ()) -> str:
    """Return the Content-Security-Policy of a page with this style and these scripts."""
    allowed = ["script-src " + " ".join(map(_hash, scripts))] if scripts else []
    return "; ".join(
        (
            "default-src 'none'",
            *allowed,
            f"style-src {_hash(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def templates_in(package: str, folder: str = ".") -> jinja2.Environment:
    """Return the templates of a package's folder; they escape, and show sizes with ``size``."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package, folder),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["size"] = format_bytes
    environment.filters["unbroken"] = unbroken
    return environment


def writable(text: str) -> str:
    """Replace what no HTML can hold: U+0000, and half a character, which no file can."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
