"""The functions ``fit`` and ``fits``."""

from pathlib import Path

import pytest

import analyzer
from analyzer.model.errors import InputError


def test_the_example_of_the_documents_runs() -> None:
    text = (Path(__file__).parents[3] / "docs" / "fit.md").read_text(encoding="utf-8")
    code = text.split("class FittingTuner")[1].split("```")[0]
    compile("class FittingTuner" + code, "docs/fit.md", "exec")


@pytest.mark.parametrize("size", [0, -3])
def test_no_batch_at_all_is_no_question(size: int) -> None:
    with pytest.raises(InputError, match="too small"):
        analyzer.fits("step.py:build", size, limit="16MiB")
