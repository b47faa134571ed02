"""Run folders: whole or not at all, each in a place of its own, and nothing of others' removed."""

import json
from pathlib import Path

import pytest
from builders import listing

from analyzer.capture.process.run_folders import (
    RUN_FORMAT,
    check_writable,
    make_staging_folder,
    publish,
)
from analyzer.model.errors import InputError

NOTE = json.dumps({"format": RUN_FORMAT})


def make(out: Path, text: str = "", *, force: bool = False) -> Path:
    check_writable(out, force=force)
    with make_staging_folder(out) as staging:
        assert staging.is_absolute()
        (staging / "plugins").mkdir()
        (staging / "plugins" / "trace").write_text(text)
        (staging / "run.json").write_text(NOTE)
        return publish(staging, out, force=force)


def text_of(folder: Path) -> str:
    return (folder / "plugins" / "trace").read_text()


def test_an_earlier_run_is_replaced_and_what_is_not_of_it_stays(tmp_path: Path) -> None:
    make(tmp_path / "run", "old")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    (tmp_path / "run" / "report.html").write_text("old")
    with pytest.raises(InputError, match="is not empty"):
        make(tmp_path / "run")
    assert make(tmp_path / "run", "new", force=True) == tmp_path / "run"
    assert text_of(tmp_path / "run") == "new"
    assert listing(tmp_path / "run") == {
        "notes.txt",
        "plugins",
        "plugins/trace",
        "run.json",
    }


@pytest.mark.parametrize(
    "note", [None, "{}", "[1]", "[" * 100_000, '{"format": "mlflow"}', "\xff"]
)
def test_what_is_no_run_is_not_replaced(note: str | None, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    if note is not None:
        (tmp_path / "run" / "run.json").write_text(note)
    before = listing(tmp_path)
    with pytest.raises(InputError, match="no run to replace"):
        make(tmp_path / "run", force=True)
    assert listing(tmp_path) == before


def test_a_run_that_fails_leaves_nothing(tmp_path: Path) -> None:
    for out in (tmp_path / "new" / "run", tmp_path):
        with pytest.raises(RuntimeError), make_staging_folder(out):
            raise RuntimeError
        assert listing(tmp_path) == set()


@pytest.mark.parametrize("out", ["file", "file/run", "loop", "n" * 300, "/proc/run"])
def test_a_place_that_takes_none(out: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    before = listing(tmp_path)
    with pytest.raises(InputError):
        make(tmp_path / out)
    assert listing(tmp_path) == before
