"""Every option on every form of target is either honoured or refused with a sentence."""

from pathlib import Path

import pytest
from builders import sample_folder

import analyzer
from analyzer.capture.targets.target_spec import (
    TargetForm,
    check_honoured,
    parse_target,
)
from analyzer.model.contract.child_messages import CaptureOptions
from analyzer.model.errors import InputError, TargetError


def test_options_with_one_reason_share_one_error() -> None:
    both = CaptureOptions(loss="mse", optimizer="sgd", batch_size=8)
    with pytest.raises(InputError) as raised:
        check_honoured("a.py:step", TargetForm.STEP, both)
    assert "--optimizer and --loss cannot" in raised.value.message
    with pytest.raises(InputError) as raised:
        check_honoured("logs", TargetForm.TRACE, both)
    assert "--batch-size and --optimizer and --loss cannot" in raised.value.message
    assert raised.value.hint.startswith("Leave them out")


def test_python_functions_refuse_options_too() -> None:
    with pytest.raises(InputError, match="--batch-size cannot be used"):
        analyzer.trace(sample_folder("infer"), batch_size=8)
    with pytest.raises(InputError, match="cannot run on another card"):
        analyzer.trace(sample_folder("infer"), gpu="t4")
    with pytest.raises(InputError, match="--optimizer cannot be used"):
        analyzer.estimate(sample_folder("infer"), optimizer="sgd")


@pytest.mark.parametrize("text", ["book.ipynb", "book.ipynb:model"])
def test_notebook_is_no_target(text: str, folder: Path) -> None:
    Path("book.ipynb").write_text("{}")
    with pytest.raises(TargetError, match=r"book\.ipynb is a notebook") as raised:
        parse_target(text)
    assert "jupyter nbconvert --to script book.ipynb" in raised.value.hint
