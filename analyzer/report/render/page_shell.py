"""Render pages as single HTML files with a shared shell, style, theme and security policy.

Untrusted text reaches a page through templates, which escape it. A Content-Security-Policy allows only
the page's own scripts and style, by hash, and forbids all requests and forms.
"""

import base64
import hashlib
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from analyzer.model.units import format_bytes
from analyzer.report.render.sections import Document, cell_of, cell_text
from analyzer.report.untrusted import unbroken

SHELL = "analyzer.report.render"


def to_page(document: Document) -> str:
    """Return a document as the text of one HTML file."""
    return fill_page(SHELL, "assets/section_page.html", document=document)


def fill_page(package: str, template: str, *, script: str = "", **values: Any) -> str:
    """Return the text of one HTML file.

    The template extends ``assets/shell.html``, and sets or gets the ``title``, ``subtitle``, ``badge``,
    ``footer`` and ``next_command``; ``script`` is JavaScript for ``{{ script }}``.
    """
    style = asset(SHELL, "assets/shared.css")
    theme = asset(SHELL, "assets/theme.js")
    policy = policy_of(style, filter(None, (theme, script)))

    values |= {
        "style": Markup(style),
        "theme_script": Markup(theme),
        "script": Markup(script),
    }

    return writable(
        templates_of(package).get_template(template).render(policy=policy, **values)
    )


@cache
def asset(package: str, name: str) -> str:
    """Return the text of a file in a package."""
    return (resources.files(package) / name).read_text(encoding="utf-8")


@cache
def templates_of(package: str) -> jinja2.Environment:
    """Return the templates of a package and the shared ones, with escaping."""
    loaders = [
        jinja2.PackageLoader(name, ".") for name in dict.fromkeys((package, SHELL))
    ]

    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    environment.filters |= {
        "size": format_bytes,
        "unbroken": unbroken,
        "cell_of": cell_of,
        "cell_text": cell_text,
        "kind": lambda block: type(block).__name__,
    }

    return environment


def policy_of(style: str, scripts: Iterable[str]) -> str:
    """Return the Content-Security-Policy of a page with this style and these scripts."""
    parts = (
        "default-src 'none'",
        f"script-src {' '.join(map(_hash, scripts))}",
        f"style-src {_hash(style)}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    )

    return "; ".join(parts)


def writable(text: str) -> str:
    """Replace U+0000, which HTML cannot hold, and lone surrogates, which no file can."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
