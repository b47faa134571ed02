"""Outputs are written through: nothing that was there is replaced by something else."""

import contextlib
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import analyze, listing, refusal, sample_folder

from analyzer.model.errors import InputError
from analyzer.report.output_files import check_output, output_file, write_text

SAMPLE = sample_folder("infer")


@pytest.fixture
def umask() -> Iterator[None]:
    old = os.umask(0o027)
    yield
    os.umask(old)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("rights", [0o600, 0o640, 0o666, 0o755])
def test_a_file_keeps_its_mode(rights: int, tmp_path: Path, umask: None) -> None:
    file = tmp_path / "old"
    file.write_text("before")
    file.chmod(rights)
    write_text(file, "after")
    assert (file.read_text(), mode(file)) == ("after", rights)
    assert listing(tmp_path) == {"old"}


def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    check_output(tmp_path / "pipe")  # and does not wait for a reader
    found: list[str] = []
    reader = threading.Thread(
        target=lambda: found.append((tmp_path / "pipe").read_text())
    )
    reader.start()
    write_text(tmp_path / "pipe", "x" * 200_000)
    reader.join(timeout=600)
    assert found == ["x" * 200_000]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_block_that_fails_leaves_all_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("before")
    for name in ("old", "new"):
        with (
            contextlib.suppress(RuntimeError),
            output_file(tmp_path / name) as temporary,
        ):
            temporary.write_text("half")
            raise RuntimeError
    assert listing(tmp_path) == {"old"}
    assert (tmp_path / "old").read_text() == "before"


@pytest.mark.parametrize(
    "name", ["folder", "loop", "none/file", "folder/x/y", "n" * 300]
)
def test_what_cannot_be_written_is_refused_early(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    before = listing(tmp_path)
    with pytest.raises(InputError):
        check_output(tmp_path / name)
    with pytest.raises(InputError):
        write_text(tmp_path / name, "x")
    assert listing(tmp_path) == before


def test_outputs_are_checked_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("folder", "none/x", "/proc/nothing/x"):
        refusal("trace", "keras:MobileNetV2", "--csv", tmp_path / name)
    assert listing(tmp_path) == {"folder"}


def test_what_is_read_is_not_written_over(folder: Path) -> None:
    shutil.copytree(SAMPLE, folder / "run")
    (folder / "train.py").write_text("mine")
    (folder / "link.py").symlink_to("train.py")
    trace = next((folder / "run").rglob("*.xplane.pb.gz"))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for command in (
        ["trace", "train.py:step", "--csv", "train.py"],
        ["estimate", "train:step", "--csv", "train.py"],
        ["trace", "train.py:step", "--json", "link.py"],
        ["trace", trace, "--json", trace],
        ["diff", "run", trace, "--markdown", trace],
    ):
        assert "is an input" in refusal(*command)
    assert before == {path: path.read_bytes() for path in before}
    assert analyze("trace", "run", "-q", "--json", "run/report.json").code == 0
