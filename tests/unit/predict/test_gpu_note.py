"""A step noted for a T4 (``notes/gpu``): books, totals, does it fit. No GPU was asked."""

import json
import math
import shutil
from collections import Counter
from pathlib import Path

import pytest
from builders import analyze, refusal

from analyzer.cards.catalogue import find_gpu, memory_limit
from analyzer.model.contract.child_messages import WhatIf
from analyzer.model.contract.report_file import plain_report
from analyzer.report.document import build_document
from analyzer.session.opening import explain
from analyzer.simulate.predict.predicted_recording import predict_note
from analyzer.tracing.parse.run_folder import read_run

NOTE = Path(__file__).parent / "notes" / "gpu" / "run.json"


def document_of(note, **what_if):
    return plain_report(
        build_document(explain(predict_note(note), WhatIf(**what_if), search=True))
    )


@pytest.fixture(scope="module")
def note():
    return read_run(NOTE)


@pytest.fixture(scope="module")
def document(note):
    return document_of(note)


@pytest.fixture
def folder(tmp_path):
    for name in ("run.json", "graph.json.gz"):
        shutil.copy(NOTE.parent / name, tmp_path)
    return tmp_path


def test_variables_and_inputs_have_their_own_sizes(document, note):
    sizes = Counter(input=16 * 64 * 64 * 3 * 4)  # labels, int32, stay on the host
    for row in note.variables:
        sizes[row.category] += math.prod(row.shape) * (8 if row.dtype == "int64" else 4)
    categories = document["categories_at_peak"]
    for name in ("parameter", "optimizer_state", "input"):
        assert categories[name] == sizes[name]


def test_a_limit_that_is_too_small_ends_with_3(folder):
    done = analyze("estimate", folder, "--limit", "30MiB")
    assert done.code == 3
    assert "DOES NOT FIT the given limit on Tesla T4" in done.out


def test_growth_takes_less_than_the_whole_limit(folder):
    done = analyze("estimate", folder, "--growth", "--json", "-")
    replayed = json.loads(done.out)["what_if"]
    assert replayed["fits"]
    assert replayed["peak_pool_bytes"] < memory_limit(find_gpu("t4")).bytes / 10


def test_a_folder_is_for_the_card_that_it_was_noted_for(folder):
    assert analyze("estimate", folder, "--gpu", "Tesla T4", "--quiet").code == 0
    assert "t4" in refusal("estimate", folder, "--gpu", "h100")
