"""The environment variable ``XLA_FLAGS``."""

from pathlib import Path


def read_flags(text: str) -> str:
    """Return the value of ``XLA_FLAGS`` as flags; without a leading dash it names a file of flags."""
    text = text.strip()
    if not text or text.startswith("-"):
        return text

    try:
        return " ".join(Path(text).read_text("utf-8").split())
    except (OSError, UnicodeDecodeError):
        return ""  # XLA ignores a missing file


def path_flag(flag: str, path: Path) -> str:
    """Return a flag with a path, quoted if XLA would split it at white space."""
    text = str(path)
    if not any(mark.isspace() or mark in "\"'\\" for mark in text):
        return f"{flag}={text}"

    return f'{flag}="' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
