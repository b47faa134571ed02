"""``analyze oom`` as people call it: codes, files, standard input, and what is shown."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from builders import analyze
from rich.console import Console
from unit.oom.dump_wordings import Scene, log_of
from unit.oom.test_every_version import FULL, PIECES

from analyzer.model.units import format_option_bytes
from analyzer.oom import ModelTensor, OomDocument, OomReport, read_oom_log
from analyzer.oom.log_sections import build_sections
from analyzer.report.render.page_shell import to_page
from analyzer.report.render.terminal import print_terminal

LOGS = Path(__file__).parent / "logs"
HOSTILE = "</script><script>alert(1)</script>\x1b[31m[bold]{{7*7}}"


def report(text: str, name: str = "a log") -> OomReport:
    return read_oom_log(io.BytesIO(text.encode()), name)


def shown(found: OomReport, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, no_color=True)
    print_terminal(build_sections(found.document), console)
    return console.file.getvalue()


def write_page(found: OomReport, path: Path) -> None:
    path.write_text(to_page(build_sections(found.document, found.cases)), "utf-8")


def test_the_log_is_explained_and_the_code_is_0() -> None:
    done = analyze("oom", str(LOGS / "gpu_conv.log.gz"))
    assert done.code == 0
    assert "153.3 MiB too little" in done.out
    assert "gradient_tape/sequential_1/global_average_pooling2d_1/Tile" in done.out


def test_a_log_without_a_failure_is_code_0(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("epoch 1\nloss 0.1\n")
    done = analyze("oom", str(log))
    assert done.code == 0
    assert done.out.startswith("No out-of-memory failure in this log.\n")
    assert "python train.py > train.log 2>&1" in done.out


@pytest.mark.parametrize("log", ["missing.log", "."])
def test_what_cannot_be_read_is_code_2(log: str, tmp_path: Path) -> None:
    done = analyze("oom", str(tmp_path / log))
    assert done.code == 2
    assert "Traceback" not in done.err


def test_options_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    log = str(LOGS / "gpu_conv.log.gz")
    assert analyze("oom", log, "--target", "keras:ResNet50", "--trace", str(tmp_path)).code == 2
    assert analyze("oom", log, "--batch-size", "4").code == 2
    assert analyze("oom", log, "--fit").code == 2
    assert analyze("oom", log, "--trace", str(tmp_path / "none")).code == 2
    assert analyze("oom", log, "--json", log).code == 2


def test_fit_needs_a_failure_on_a_named_card(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(log_of(FULL, "2.9"))
    done = analyze("oom", str(log), "--target", "train.py:build", "--fit")
    assert done.code == 2
    limit = format_option_bytes(FULL.limit)
    command = f"analyze fit train.py:build --gpu CARD --limit {limit} --batch-size"
    assert f"{command} {FULL.shape[0]}" in done.err
    assert done.err.count("\n") == 1
    log.write_text("epoch 1\nloss 0.1\n")
    done = analyze("oom", str(log), "--target", "train.py:build", "--fit")
    assert (done.code, done.err.count("\n")) == (2, 1)


def test_the_json_is_the_document(tmp_path: Path) -> None:
    out = tmp_path / "oom.json"
    done = analyze("oom", str(LOGS / "gpu_embed.log.gz"), "--json", str(out))
    assert done.code == 0
    plain = json.loads(out.read_text())
    assert plain["schema_version"] == 1
    document = msgspec.convert(plain, OomDocument)
    assert len(document.failures) == 2


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("name", ["gpu_conv", "gpu_embed", "gpu_async_conv", "gpu_refused_growth"])
def test_no_number_is_cut_at_any_width(name: str, width: int) -> None:
    with (LOGS / f"{name}.log.gz").open("rb") as stream:
        found = read_oom_log(stream, name)
    text = shown(found, width)
    assert max(map(len, text.splitlines())) <= width
    failure = found.document.failures[0]
    assert failure.asked is not None
    for number in (failure.in_use_bytes, failure.asked.requested_bytes):
        if number is not None and not failure.ranges.get("in_use_bytes"):
            assert f"{number:,}" in text
    assert not re.search(r"\d…\d", text)


def test_a_narrow_terminal_wraps_the_facts_of_a_failure() -> None:
    with (LOGS / "gpu_conv.log.gz").open("rb") as stream:
        found = read_oom_log(stream, "gpu_conv")
    text = shown(found, 60)
    assert max(map(len, text.splitlines())) <= 60
    full = found.document.failures[0].requested_by
    assert len(full) > 60
    assert full in re.sub(r"\s+", "", text)


def hostile() -> OomReport:
    scene = Scene(
        PIECES.regions,
        PIECES.shape,
        PIECES.limit,
        op=HOSTILE.replace(" ", ""),
        allocator="GPU_<b>_bfc",
    )
    return report(log_of(scene, "2.9"), HOSTILE)


def test_hostile_names_reach_no_terminal_and_no_page(tmp_path: Path) -> None:
    found = hostile()
    assert "\x1b" not in shown(found, 100)
    page = tmp_path / "oom.html"
    write_page(found, page)
    text = page.read_text()
    assert "<script>alert" not in text
    assert "{{7*7}}" in text or "49" not in re.findall(r"\{\{.*?\}\}|49", text)
    assert text.count("<script") == 1


class _Tags(HTMLParser):
    """Counts what the page would load, and sums the drawn chunks."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.looks: dict[str, float] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        for name in ("src", "href"):
            if values.get(name) and not str(values[name]).startswith("data:"):
                self.loaded.append(str(values[name]))
        look = str(values.get("class", ""))
        if tag == "rect" and look.startswith("pool-") and values.get("y"):
            self.looks[look] = self.looks.get(look, 0.0) + float(str(values["width"]))


def test_the_page_draws_the_pool_to_scale_and_loads_nothing(tmp_path: Path) -> None:
    page = tmp_path / "oom.html"
    write_page(report(log_of(FULL, "2.9")), page)
    tags = _Tags()
    tags.feed(page.read_text())
    assert not tags.loaded
    ground = tags.looks["pool-free"]
    free = tags.looks.get("pool-hole", 0) + tags.looks.get("pool-chunk", 0)
    assert free / ground == pytest.approx((FULL.pool - FULL.in_use) / FULL.pool, abs=0.02)
    assert tags.looks["pool-request"] / ground == pytest.approx(FULL.asked / FULL.pool, abs=0.02)


def test_sizes_are_named_by_the_models_tensors() -> None:
    found = report(log_of(FULL, "2.9"))
    tensors = [
        ModelTensor("kernel", "parameter", "", 90 << 20),
        ModelTensor("conv1/Relu:0", "activation", FULL.op, FULL.asked),
        ModelTensor("other", "temporary", "other", 12345),
    ]
    (failure,) = found.with_model(tensors, "train.py:model").document.failures
    names = {row.size_bytes: row.names for row in failure.sizes}
    assert names[90 << 20] == ("kernel (parameter)",)
    assert any("conv1/Relu:0 (activation)" in told for told in failure.matched)
    assert any("45%" in told or "47%" in told for told in failure.matched)
    (other,) = found.with_model(
        [ModelTensor("x", "activation", FULL.op, 64)], "m"
    ).document.failures
    assert any("another batch size" in told for told in other.matched)


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_first_candidate_of_a_size_is_shown(width: int) -> None:
    tensors = [ModelTensor(f"b{n}", "temporary", "", 90 << 20) for n in range(9)]
    tensors.append(ModelTensor("kernel", "parameter", "", 90 << 20))
    text = shown(report(log_of(FULL, "2.9")).with_model(tensors, "m.py:net", is_target=True), width)
    assert "kernel (parameter)" in text
    assert "b8 (temporary)" not in text
    assert "analyze fit m.py:net --gpu CARD" in text


def test_remedies_come_before_the_drawing(tmp_path: Path) -> None:
    page = tmp_path / "oom.html"
    write_page(report(log_of(FULL, "2.9")), page)
    text = page.read_text()
    assert text.index("What to do") < text.index('class="pool"')
