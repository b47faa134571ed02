"""The JSON Schemas in docs/ are those of the types, and what each command writes keeps to its own."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from builders import analyze
from schemas import DOCS, SCHEMAS, breaches, build_schema, schema_file

LOGS = Path(__file__).parents[1] / "oom" / "logs"


def written_by(folder: Path, *command: str) -> dict[str, Any]:
    file = folder / "written.json"
    done = analyze(*command, "--json", str(file))
    assert done.code == 0, done.err
    written: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return written


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_that_of_the_types(name: str) -> None:
    assert schema_file(name).read_text("utf-8") == build_schema(*SCHEMAS[name])


def test_each_schema_is_made_of_types_and_named_in_a_page_of_the_docs() -> None:
    assert {file.name for file in DOCS.glob("*.schema.json")} == {
        f"{name}.schema.json" for name in SCHEMAS
    }
    pages = "".join(page.read_text("utf-8") for page in DOCS.glob("*.md"))
    for name in SCHEMAS:
        assert f"]({name}.schema.json)" in pages, name


@pytest.mark.parametrize("log", sorted(path.name for path in LOGS.glob("*.log.gz")))
def test_a_log_explained_keeps_to_its_schema(log: str, tmp_path: Path) -> None:
    assert (
        breaches(written_by(tmp_path, "oom", str(LOGS / log)), "oom", "OomDocument")
        == []
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"refusals": [{"line": 1, "times": 1}]}, r"\$.refusals\[0\]"),
        ({"more": 1}, "has fields"),
    ],
)
def test_what_breaks_a_schema_is_found(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    written = written_by(tmp_path, "oom", str(LOGS / "gpu_conv.log.gz"))
    (found,) = breaches({**written, **change}, "oom", "OomDocument")
    assert re.search(said, found)
