"""`analyze diff OLD..NEW TARGET` names the commit that changed the peak most."""

import shutil
import subprocess
from pathlib import Path

import pytest
from builders import ROOT, analyze, refusal

from analyzer.model.errors import InputError
from analyzer.session import other_versions

NOTES = ROOT / "tests" / "unit" / "predict" / "notes"


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return six commits: three with a small model, a broken one, two with a larger model."""
    place = tmp_path / "repository" / "inner"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    git("init", "--quiet", "..")
    git("config", "user.email", "ann@example.com")
    git("config", "user.name", "Ann")
    Path("train.py").touch()
    for number, size in enumerate(("infer", "infer", "infer", "broken", "cnn", "cnn")):
        Path("size.txt").write_text(size)
        Path("other.txt").write_text(str(number))
        git("add", "--all")
        git("commit", "--quiet", "--message", f"Commit {number} is {size}")
    return git("rev-list", "--reverse", "HEAD").split()


@pytest.fixture
def estimated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace estimates by those of saved notes, named by a file of the commit."""
    calls: list[str] = []

    def estimate(python: str, target: str, options: list[str], out: Path) -> None:
        name = Path("size.txt").read_text()
        calls.append(name)
        if name == "broken":
            raise InputError("It does not run.", hint="Mend it.")
        shutil.copytree(NOTES / name, out)

    monkeypatch.setattr(other_versions, "_estimate", estimate)
    return calls


def test_the_commit_with_the_largest_change_is_named(
    repository: list[str], estimated: list[str]
) -> None:
    done = analyze("diff", f"{repository[0]}..", "train.py:build")
    assert done.code == 0, done.err
    assert f"{repository[4][:10]} Commit 4 is cnn (Ann, " in done.out
    assert f"{repository[4][:10]} requests " in done.out
    assert f" more than {repository[2][:10]}." in done.out
    assert "1 of them could not be estimated" in done.out.replace("\n", " ")
    assert len(estimated) <= 5
    assert git("worktree", "list").count("\n") == 0
    assert git("status", "--short") == ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("HEAD..HEAD", "train.py:build"), "HEAD..HEAD holds no commit."),
        (("nothing..HEAD", "train.py:build"), "git rev-parse: "),
        (("before", "after", "--gpu", "t4"), "--gpu needs a git range"),
    ],
)
def test_a_wrong_range_says_so(
    words: tuple[str, ...], expected: str, repository: list[str], estimated: list[str]
) -> None:
    for name in ("before", "after"):
        Path(name).mkdir()
    assert expected in refusal("diff", *words)
    assert estimated == []
