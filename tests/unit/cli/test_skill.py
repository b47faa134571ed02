"""The skill for coding agents names commands, options and fields that exist."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import analyze
from schemas import schema_file

from analyzer.cli.app import COMMANDS, load_command
from analyzer.cli.skill_command import read_skill

PLACE = Path(".claude", "skills", "tf-memory-analyzer", "SKILL.md")
RECORDS = {
    "`trace` and `estimate`": ("report", "ReportFile"),
    "`fit`": ("fit", "FitAnswer"),
    "`oom`": ("oom", "OomDocument"),
    "`diff`": ("report", "DiffFile"),
}
SPAN = re.compile(r"`([^`]+)`")


def parts_of(schema: dict[str, Any], parts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a schema and the schemas that it refers to, of rows of a list too."""
    yield schema
    if "$ref" in schema:
        yield from parts_of(parts[schema["$ref"].rpartition("/")[2]], parts)
    for one in (*schema.get("anyOf", ()), schema.get("items", {})):
        if one:
            yield from parts_of(one, parts)


def follow(schemas: list[dict[str, Any]], path: str, parts: dict[str, Any]) -> Any:
    """Return the schemas at a path of fields; none if the path does not exist."""
    for name in path.split("."):
        fields = [
            one["properties"][name]
            for one in schemas
            if name in one.get("properties", {})
        ]
        schemas = [part for field in fields for part in parts_of(field, parts)]
    return schemas


@pytest.mark.parametrize(
    "line", [s for s in SPAN.findall(read_skill()) if s.startswith("analyze ")]
)
def test_commands_and_options_exist(line: str) -> None:
    _, name, *words = shlex.split(line)
    options = {flag for one in load_command(name).params for flag in one.opts}
    assert [
        word for word in words if word.startswith("-") and word not in ("-", *options)
    ] == []


def test_options_in_the_text_exist() -> None:
    known = {
        flag
        for name in COMMANDS
        for one in load_command(name).params
        for flag in one.opts
    }
    named = {
        word
        for span in SPAN.findall(read_skill())
        for word in re.findall(r"--[a-z-]+", span)
    }
    assert named - known == set()


@pytest.mark.parametrize("heading", RECORDS)
def test_fields_exist(heading: str) -> None:
    """A field of the first column exists; a name in the second is its part, or one of its values."""
    section = read_skill().split(f"### {heading}\n")[1].split("\n#")[0]
    file, record = RECORDS[heading]
    text = schema_file(file).read_text("utf-8")
    parts = json.loads(text)["$defs"]
    root = list(parts_of(parts[record], parts))

    rows = [
        row.strip("|").split("|")
        for row in section.splitlines()
        if row.startswith("| `")
    ]
    assert rows
    for first, second in rows:
        paths = SPAN.findall(first)
        assert all(follow(root, path, parts) for path in paths), paths
        for name in SPAN.findall(second):
            is_field = follow(follow(root, paths[0], parts), name, parts)
            is_value = f'"{name.strip(chr(34))}"' in text
            assert is_field or is_value or name.startswith("-"), name


def test_it_has_a_head_that_agents_read() -> None:
    _, head, body = read_skill().split("---\n", 2)
    name, description = head.splitlines()
    assert name == f"name: {PLACE.parent.name}"
    assert len(description) <= 1024
    assert len(body.split()) <= 1_500


def test_it_is_installed_once(tmp_path: Path) -> None:
    first = analyze("skill", "--install", tmp_path)
    assert (first.code, first.out) == (0, f"Wrote {tmp_path / PLACE}\n")
    assert (tmp_path / PLACE).read_text() == analyze("skill").out == read_skill()

    (tmp_path / PLACE).write_text("My own.")
    refused = analyze("skill", "--install", tmp_path)
    assert refused.code == 2
    assert "Add --force to replace it." in refused.err
    assert (tmp_path / PLACE).read_text() == "My own."
    assert analyze("skill", "--install", tmp_path, "--force").code == 0

    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".claude").write_text("A file.")
    blocked = analyze("skill", "--install", tmp_path / "other")
    assert (blocked.code, blocked.err.count("\n")) == (2, 1)

    absent = analyze("skill", "--install", tmp_path / "absent")
    assert (absent.code, absent.err.count("\n")) == (2, 1)


def test_the_server_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "analyzer.cli.agents.mcp_server", raising=False)
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    monkeypatch.setitem(sys.modules, "anyio", None)
    done = analyze("mcp")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "pip install 'tf-memory-analyzer[mcp]'" in done.err
