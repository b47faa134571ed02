"""Outputs are written through: nothing that was there is replaced by something else."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import COMMAND, INSTALLED, analyze, listing, sample_folder

from analyzer.model.errors import InputError
from analyzer.report.output_files import check_output, output_file, write_text

SAMPLE = sample_folder("infer")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make it")
not_as_root = pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")


@pytest.fixture
def umask() -> Iterator[None]:
    old = os.umask(0o027)
    yield
    os.umask(old)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_new_file_honours_the_umask(tmp_path: Path, umask: None) -> None:
    write_text(tmp_path / "new", "x")
    assert mode(tmp_path / "new") == 0o640
    assert listing(tmp_path) == {"new"}


@pytest.mark.parametrize("rights", [0o600, 0o640, 0o666, 0o755])
def test_a_file_keeps_its_mode(rights: int, tmp_path: Path, umask: None) -> None:
    file = tmp_path / "old"
    file.write_text("before")
    file.chmod(rights)
    write_text(file, "after")
    assert (file.read_text(), mode(file)) == ("after", rights)
    assert listing(tmp_path) == {"old"}


@needs_root
def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "real").write_text("before")
    (tmp_path / "link").symlink_to("there/real")
    (tmp_path / "second").symlink_to("link")
    write_text(tmp_path / "second", "after")
    assert (tmp_path / "second").is_symlink()
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "real").read_text() == "after"


def test_a_link_to_nothing_makes_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("made")
    write_text(tmp_path / "link", "x")
    assert (tmp_path / "made").read_text() == "x"
    assert (tmp_path / "link").is_symlink()


def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    check_output(tmp_path / "pipe")  # and does not wait for a reader
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_text()))
    reader.start()
    write_text(tmp_path / "pipe", "x" * 200_000)
    reader.join(timeout=10)
    assert found == ["x" * 200_000]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_reader_that_has_enough(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    write_text(Path(f"/dev/fd/{write}"), "x" * 200_000)
    os.close(write)


def test_a_device_is_written_into(tmp_path: Path) -> None:
    before = os.lstat("/dev/null")
    for link in (Path("/dev/null"), tmp_path / "link"):
        if link != Path("/dev/null"):
            link.symlink_to("/dev/null")
        write_text(link, "x")
        assert os.stat(link).st_rdev == before.st_rdev
    after = os.lstat("/dev/null")
    assert (before.st_ino, before.st_mode, before.st_uid) == (
        after.st_ino,
        after.st_mode,
        after.st_uid,
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_told() -> None:
    with pytest.raises(InputError, match="/dev/full cannot be written: No space left"):
        write_text(Path("/dev/full"), "x")


@needs_root
def test_a_device_of_our_own(tmp_path: Path) -> None:
    """As root a device can be replaced: it must not be."""
    try:
        os.mknod(tmp_path / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except OSError:
        pytest.skip("devices cannot be made here")
    write_text(tmp_path / "null", "x")
    assert stat.S_ISCHR((tmp_path / "null").stat().st_mode)
    assert listing(tmp_path) == {"null"}


def test_a_block_that_fails_leaves_all_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("before")
    for name in ("old", "new"):
        with contextlib.suppress(RuntimeError), output_file(tmp_path / name) as temporary:
            temporary.write_text("half")
            raise RuntimeError
    assert listing(tmp_path) == {"old"}
    assert (tmp_path / "old").read_text() == "before"


@pytest.mark.parametrize("name", ["folder", "loop", "none/file", "folder/x/y", "n" * 300])
def test_what_cannot_be_written_is_refused_early(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    before = listing(tmp_path)
    with pytest.raises(InputError):
        check_output(tmp_path / name)
    with pytest.raises(InputError):
        write_text(tmp_path / name, "x")
    assert listing(tmp_path) == before


@pytest.mark.parametrize("name", ["new", "old", "link", "pipe"])
def test_checking_changes_nothing(name: str, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("before")
    (tmp_path / "link").symlink_to("nothing yet")
    os.mkfifo(tmp_path / "pipe")
    before = listing(tmp_path)
    check_output(tmp_path / name)
    assert listing(tmp_path) == before
    assert (tmp_path / "old").read_text() == "before"


@not_as_root
def test_a_file_that_is_read_only(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("before")
    (tmp_path / "old").chmod(0o444)
    with pytest.raises(InputError, match="Permission denied"):
        check_output(tmp_path / "old")


OTHER_USER = """
import os, sys
from pathlib import Path
from analyzer.model.errors import InputError
from analyzer.report.output_files import check_output, write_text
os.setgid(65534); os.setuid(65534)
try:
    check_output(Path(sys.argv[1]))
    write_text(Path(sys.argv[1]), "after")
except InputError as error:
    sys.exit(str(error))
"""


def as_other_user(path: Path) -> str:
    # Its lines are not counted: coverage cannot write for this user.
    kept = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE")}
    done = subprocess.run(
        [sys.executable, "-c", OTHER_USER, str(path)],
        env={**kept, "PYTHONPATH": str(INSTALLED)}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    return done.stderr


@needs_root
def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command.replace("ANALYZE", f"{sys.executable} {COMMAND} trace -q")],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_descriptors_of_a_shell(tmp_path: Path) -> None:
    # GIVEN each way in which a shell hands a command something to write into, in one run
    done = shell(
        f"""set -e
        exec 7> seven; echo first >&7
        ANALYZE {SAMPLE} --json /dev/stdout --csv >(wc -l > lines) --markdown /dev/fd/7 \
            --html >(head -c 1 > little) > out
        echo last >&7; sleep 1
        """,
        tmp_path,
    )
    assert done.returncode == 0
    assert all(line.startswith("Wrote ") for line in done.stderr.splitlines()), done.stderr
    # THEN each got all of it, in its place, and nothing else was made
    assert (tmp_path / "out").read_text().startswith("{")
    assert (tmp_path / "out").read_text().rstrip().endswith("}")
    assert int((tmp_path / "lines").read_text()) > 10
    lines = (tmp_path / "seven").read_text().splitlines()
    assert (lines[0], lines[-1]) == ("first", "last")
    assert lines[1].startswith("### ")
    assert (tmp_path / "little").read_text() == "<"
    assert listing(tmp_path) == {"out", "lines", "seven", "little"}


def test_outputs_are_checked_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("folder", "none/x", "/proc/nothing/x"):
        done = analyze("trace", "keras:MobileNetV2", "--csv", tmp_path / name)
        assert done.code == 2
        assert done.err.count("\n") == 1
    assert listing(tmp_path) == {"folder"}


def test_one_file_by_two_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    done = analyze("trace", SAMPLE, "--csv", tmp_path / "file", "--html", tmp_path / "link")
    assert (done.code, "named twice" in done.err) == (2, True)
    assert analyze("trace", SAMPLE, "-q", "--csv", "/dev/null", "--html", "/dev/null").code == 0


def test_what_is_read_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(SAMPLE, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("mine")
    (tmp_path / "link").symlink_to("run/run.json")
    trace = next((tmp_path / "run").rglob("*.xplane.pb.gz"))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for command in (
        ["trace", "train.py:step", "--csv", "train.py"],
        ["estimate", "train:step", "--csv", "train.py"],
        ["trace", "run", "--json", "link"],
        ["trace", trace, "--json", trace],
        ["diff", "run", trace, "--markdown", trace],
    ):
        done = analyze(*command)
        assert (done.code, "is an input" in done.err) == (2, True), done.err
    assert before == {path: path.read_bytes() for path in before}
    assert analyze("trace", "run", "-q", "--json", "run/report.json").code == 0
