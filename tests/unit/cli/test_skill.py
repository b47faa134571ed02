"""The skill for coding agents names commands, options and fields that exist."""

import re
import sys
from pathlib import Path

import pytest
from builders import analyze, refusal
from schemas import SCHEMAS, schema_file

from analyzer.cli.app import COMMANDS, load_command
from analyzer.cli.skill_command import read_skill

PLACE = Path(".claude", "skills", "tf-memory-analyzer", "SKILL.md")
SPAN = re.compile(r"`([^`]+)`")


@pytest.mark.parametrize("text", SPAN.findall(read_skill()))
def test_commands_and_options_exist(text: str) -> None:
    """Each option is one of its command, or of any command if none is named."""
    named = text.split()[1:2] if text.startswith("analyze ") else COMMANDS
    options = [one for name in named for one in load_command(name).params]
    known = {flag for one in options for flag in (*one.opts, *one.secondary_opts)}
    assert set(re.findall(r"(?:^| )(--?[a-z][a-z-]*)", text)) <= known


def test_fields_exist() -> None:
    """Each name of a table of fields stands in a schema."""
    schemas = "".join(schema_file(name).read_text("utf-8") for name in SCHEMAS)
    rows = [row for row in read_skill().splitlines() if row.startswith("| `")]
    paths = [SPAN.findall(row.split("|")[1]) for row in rows]
    names = {name for found in paths for path in found for name in path.split(".")}

    assert names
    assert [name for name in names if f'"{name}"' not in schemas] == []


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
    assert "Add --force to replace it" in refusal("skill", "--install", tmp_path)
    assert (tmp_path / PLACE).read_text() == "My own."
    assert analyze("skill", "--install", tmp_path, "--force").code == 0

    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".claude").write_text("A file.")
    for name in ("other", "absent"):
        refusal("skill", "--install", tmp_path / name)


def test_the_server_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "analyzer.cli.agents.mcp_server", raising=False)
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    monkeypatch.setitem(sys.modules, "anyio", None)
    assert "pip install 'tf-memory-analyzer[mcp]'" in refusal("mcp")
