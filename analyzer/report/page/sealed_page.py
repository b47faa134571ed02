"""Old names of the page shell, until every page is a document."""

from __future__ import annotations

import jinja2

from analyzer.report.render.page_shell import asset, policy_of, templates_of, writable

__all__ = ["asset", "policy_of", "templates_in", "writable"]


def templates_in(package: str, folder: str = ".") -> jinja2.Environment:
    """Return the templates of a package."""
    return templates_of(package).overlay(
        loader=jinja2.PackageLoader(package, folder), undefined=jinja2.Undefined
    )
