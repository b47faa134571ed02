"""The texts of findings: each one is used, and each name in braces is filled in."""

import re
from pathlib import Path

import analyzer.explain
from analyzer.explain.buffer_words import TEXTS

_MADE = ("retraced-", "data-stage-", "allocator-")  # the rest of the key is a kind


def test_each_text_is_used() -> None:
    folder = Path(analyzer.explain.__file__).parent
    code = "\n".join(path.read_text("utf-8") for path in folder.rglob("*.py"))
    words = set(re.findall(r"""["']([\w-]+)["']""", code))
    unused = {key for key in TEXTS if key not in words and not key.startswith(_MADE)}
    assert unused == set()
    keys = re.findall(r"""TEXTS\[["']([\w-]+)["']""", code)
    assert set(keys) <= {*TEXTS, *_MADE}
