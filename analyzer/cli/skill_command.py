"""``analyze skill``: print the skill for coding agents, or install it into a project."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

from analyzer.cli.outputs import check_paths
from analyzer.cli.shared_options import Force, option
from analyzer.cli.stdout import printing
from analyzer.model.errors import InputError
from analyzer.report.output_files import write_text

# The skill in a project; the folder has the name that is in the file.
_PLACE = Path(".claude", "skills", "tf-memory-analyzer", "SKILL.md")


def read_skill() -> str:
    """Return the skill, a Markdown file with a name and a description at its head."""
    return (files("analyzer.cli.agents") / "SKILL.md").read_text("utf-8")


def skill(
    install: Annotated[
        Path | None,
        option(
            f"Write it into this project, as {_PLACE.as_posix()}.",
            metavar="FOLDER",
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Print the skill for coding agents, or install it into a project.

    It states the command for each question, the meaning of the JSON fields, and conclusions to avoid.
    """
    text = read_skill()
    if install is None:
        with printing():
            print(text, end="")
        return

    if not install.is_dir():
        raise InputError(f"There is no folder {install}.", "Name the project.")

    place = install / _PLACE
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        message = f"{error.filename} is a file, and a folder is needed."
        raise InputError(message, "Move it away first.") from None

    check_paths(place, force=force)
    write_text(place, text)
    print(f"Wrote {place}")
