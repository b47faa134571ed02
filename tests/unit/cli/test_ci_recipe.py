"""The action of docs/ci.md: its script runs as it is, on sample traces, with a stand-in for GitHub."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from builders import ROOT, analyze, sample_folder

ACTION = (ROOT / "action" / "action.yml").read_text("utf-8")
SCRIPT = ROOT / "action" / "check.sh"
RECIPE = (
    (ROOT / "docs" / "ci.md").read_text("utf-8").split("```yaml")[1].split("```")[0]
)

ANALYZE = """#!/bin/bash
# A trace that exists stands for the capture: it takes neither a folder nor threads.
words=("$@")
if [ "$1" = trace ]; then
  [[ " $* " = *" ../before "* ]] && out=../before sample={before} || out=memory/after sample={after}
  [ -n "$sample" ] || exit 2
  cp -r "$sample" "$out"; words=(trace "$out")
  while [ $# -gt 0 ]; do
    case $1 in --max-peak | --markdown) words+=("$1" "$2") ;; esac
    shift
  done
fi
exec {python} -m analyzer "${{words[@]}}"
"""
GITHUB = """#!/bin/bash
echo "$@" >> calls
[[ " $* " = *" --jq "* ]] && echo "$OLD_COMMENT" || true
"""


def run_action(
    folder: Path, before: str = "infer", after: str = "infer", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the action's script in a repository with a base branch; empty for a failed capture."""
    samples = {
        name: shlex.quote(str(sample_folder(sample))) if sample else ""
        for name, sample in (("before", before), ("after", after))
    }
    stand_ins = folder / "bin"
    stand_ins.mkdir()
    (stand_ins / "analyze").write_text(ANALYZE.format(python=sys.executable, **samples))
    (stand_ins / "gh").write_text(GITHUB)
    for file in stand_ins.iterdir():
        file.chmod(0o755)
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(folder))
    subprocess.run((*git, "init", "--quiet"), check=True)
    subprocess.run(
        (*git, "commit", "--quiet", "--allow-empty", "-m", "base"), check=True
    )
    subprocess.run((*git, "update-ref", "refs/remotes/origin/main", "HEAD"), check=True)
    given = {
        "TARGET": "train.py:make_step",
        "INCREASE": "5%",
        "GITHUB_BASE_REF": "main",
        "GITHUB_REPOSITORY": "me/project",
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "GH_TOKEN": "token",
        "PULL_REQUEST": "7",
        **environment,
    }
    path = os.pathsep.join((str(stand_ins), os.environ["PATH"]))
    return subprocess.run(
        ("bash", str(SCRIPT)),
        cwd=folder,
        env={**os.environ, **given, "PATH": path},
        text=True,
        capture_output=True,
    )


def read_comment(folder: Path) -> str:
    return (folder / "memory" / "comment.md").read_text("utf-8")


def test_a_step_above_its_limit_fails_and_the_comment_starts_with_the_verdict(
    tmp_path: Path,
) -> None:
    done = run_action(tmp_path, LIMIT="1MiB")
    assert done.returncode == 3, done.stderr
    comment = read_comment(tmp_path)
    first = comment.splitlines()[0]
    assert re.fullmatch(
        r"### The requested peak of .* is above the limit of 1\.00 MiB by .*", first
    )
    assert "\n### " in comment  # the difference follows
    assert (tmp_path / "summary.md").read_text("utf-8") == comment
    last = (tmp_path / "calls").read_text().splitlines()[-1]
    assert "--method POST repos/me/project/issues/7/comments" in last


def test_growth_fails_and_the_comment_of_the_last_run_is_replaced(
    tmp_path: Path,
) -> None:
    done = run_action(tmp_path, after="eager", LIMIT="1GiB", OLD_COMMENT="41")
    assert done.returncode == 4, done.stderr
    comment = read_comment(tmp_path)
    assert "is within the limit of 1.00 GiB" in comment.splitlines()[0]
    assert re.search(r"requests .* \(.*\) more than ", comment)
    last = (tmp_path / "calls").read_text().splitlines()[-1]
    assert "--method PATCH repos/me/project/issues/comments/41" in last


@pytest.mark.parametrize(
    ("before", "after", "code"), [("", "infer", 0), ("infer", "", 2)]
)
def test_a_step_without_a_measurement(
    tmp_path: Path, before: str, after: str, code: int
) -> None:
    # A step that is new has no base to compare with; one that fails is reported.
    done = run_action(tmp_path, before, after, GH_TOKEN="")
    assert done.returncode == code, done.stderr
    comment = read_comment(tmp_path)
    assert comment.startswith("### ")
    assert ("was not measured (exit code 2)" in comment) is (code == 2)
    assert not (tmp_path / "calls").exists()


def test_the_recipe_gives_the_inputs_of_the_action_and_its_commands_exist() -> None:
    inputs = set(re.findall(r"^  (\w+):$", ACTION.split("runs:")[0], re.M))
    used = set(re.findall(r"^          ([a-z]+):", RECIPE.split("/action@")[1], re.M))
    assert used
    assert used <= inputs
    assert {"contents: read", "pull-requests: write"} <= set(
        map(str.strip, RECIPE.splitlines())
    )
    script = SCRIPT.read_text("utf-8")
    for command in ("trace", "diff"):
        known = analyze(command, "--help").out
        lines = re.findall(rf"analyze {command} .*(?:\\\n.*)?", script)
        for option in re.findall(r"--[a-z-]+", " ".join(lines)):
            assert option in known
