"""Run folders: whole or not at all, each in a place of its own, and nothing of others' removed."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from builders import listing

from analyzer.capture.process.run_folders import (
    RUN_FORMAT,
    check_writable,
    make_staging_folder,
    publish,
    remove_run,
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


def test_a_new_folder(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        assert make(tmp_path / "a" / "b", "x") == tmp_path / "a" / "b"
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o750
    assert listing(tmp_path / "a") == {"b", "b/plugins", "b/plugins/trace", "b/run.json"}


def test_a_relative_folder_when_the_working_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    with make_staging_folder(Path("run")) as staging:
        (staging / "run.json").write_text(NOTE)
        os.chdir("other")
        os.chdir("..")
        publish(staging, Path("run"), force=False)
    assert listing(tmp_path) == {"other", "run", "run/run.json"}


def test_two_of_one_name_at_once(tmp_path: Path) -> None:
    places = []
    with (
        make_staging_folder(tmp_path / "run") as first,
        make_staging_folder(tmp_path / "run") as second,
    ):
        for staging in (first, second):
            (staging / "run.json").write_text(NOTE)
            places.append(publish(staging, tmp_path / "run", force=False))
    assert places == [tmp_path / "run", tmp_path / "run-2"]
    assert listing(tmp_path) == {"run", "run/run.json", "run-2", "run-2/run.json"}


def test_two_in_one_empty_folder_at_once(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    places = []
    with (
        make_staging_folder(tmp_path / "run") as first,
        make_staging_folder(tmp_path / "run") as second,
    ):
        for staging in (first, second):
            (staging / "run.json").write_text(NOTE)
        places = [publish(one, tmp_path / "run", force=False) for one in (first, second)]
    assert all((place / "run.json").is_file() for place in places)
    assert len(set(places)) == 2


def test_an_empty_folder_keeps_its_rights(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    inode = (tmp_path / "run").stat().st_ino
    make(tmp_path / "run", "x")
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    assert (
        tmp_path / "run"
    ).stat().st_ino == inode  # it may be mounted, or someone's working folder
    assert listing(tmp_path / "run") == {"plugins", "plugins/trace", "run.json"}


def test_a_link_to_a_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    make(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink()
    assert text_of(tmp_path / "there") == "x"
    (tmp_path / "to nothing").symlink_to("made")
    make(tmp_path / "to nothing", "y")
    assert text_of(tmp_path / "made") == "y"


def test_an_earlier_run_is_replaced_and_what_is_not_of_it_stays(tmp_path: Path) -> None:
    make(tmp_path / "run", "old")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    (tmp_path / "run" / "report.html").write_text("old")
    with pytest.raises(InputError, match="is not empty"):
        make(tmp_path / "run")
    assert make(tmp_path / "run", "new", force=True) == tmp_path / "run"
    assert text_of(tmp_path / "run") == "new"
    assert listing(tmp_path / "run") == {"notes.txt", "plugins", "plugins/trace", "run.json"}


@pytest.mark.parametrize("note", [None, "{}", "[1]", "[" * 100_000, '{"format": "mlflow"}', "\xff"])
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


def test_a_run_taken_back(tmp_path: Path) -> None:
    make(tmp_path / "a")
    make(tmp_path / "b")
    (tmp_path / "b" / "notes.txt").write_text("mine")
    remove_run(tmp_path / "a")
    remove_run(tmp_path / "b")
    assert listing(tmp_path) == {"b", "b/notes.txt"}


@pytest.mark.parametrize("out", ["file", "file/run", "loop", "n" * 300, "/proc/run"])
def test_a_place_that_takes_none(out: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    before = listing(tmp_path)
    with pytest.raises(InputError):
        make(tmp_path / out)
    assert listing(tmp_path) == before
