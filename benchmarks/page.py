"""Measure the report page in a headless browser: size, time to open, time of a zoom and of a click.

    python benchmarks/page.py [EVENTS | TRACE ...]

A zoom or click is timed from the change of the state to the end of the frame that shows it, in the
page, for each view; the median and the worst of ten are printed. Fails where a limit is exceeded:
6 MB and 3 s for 100,000 events, 100 ms for a zoom or a click.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [
    str(ROOT),
    str(ROOT / "tests" / "browser"),
    str(ROOT / "tests" / "unit" / "report"),
]

from make_recording import Made, make_recording  # noqa: E402
from page_driver import Page, browser, missing  # noqa: E402

import analyzer  # noqa: E402
from analyzer.report.page.build import render  # noqa: E402

MOST_BYTES = 6_000_000
MOST_OPEN_S = 3.0
MOST_ANSWER_MS = 100.0
TABS = ("tensors", "lifetimes", "layers", "ops", "retained", "map", "graph")

TIMED = """
const done = arguments[1];
(async () => {
  const change = new Function('report', 'i', arguments[0]);
  const times = [];
  for (let i = 0; i < 10; i += 1) {
    const started = performance.now();
    change(memoryReport, i);
    await new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(() => {
      const channel = new MessageChannel();
      channel.port1.onmessage = next;
      channel.port2.postMessage(0);
    })));
    times.push(performance.now() - started);
  }
  done(times);
})();
"""
"""The change is drawn in the frame after it; the message runs once that frame is handed over."""

CLICK = "const s = report.recording.states; report.state.update({at: Math.floor(s * (0.3 + 0.06 * i))});"
ZOOM = "report.axis.zoom(0.8, report.recording.states * 0.6);"


def timed(page: Page, change: str) -> list[float]:
    """Return ten times in milliseconds."""
    # The policy of the page forbids making functions from text, so each change is its own script.
    script = TIMED.replace(
        "new Function('report', 'i', arguments[0])", f"(report, i) => {{ {change} }}"
    )
    script = script.replace("arguments[1]", "arguments[0]")
    return [float(value) for value in page.driver.execute_async_script(script)]


def recorded(what: str) -> Made:
    """Return a made recording of so many events, or the trace of that name."""
    if what.isdigit():
        return make_recording(int(what))
    result = analyzer.open_trace(what)
    return Made(result.recording, result.document)


def measure(page: Page, what: str) -> list[str]:
    """Print the figures of one page and return the limits that it exceeds."""
    made = recorded(what)
    started = time.perf_counter()
    text = render(made.report, made.recording)
    render_s = time.perf_counter() - started
    broken = [f"{len(text):,} bytes"] * (len(text) > MOST_BYTES)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        path.write_text(text, encoding="utf-8")
        opened = [page.open(path) for _ in range(3)]
        print(
            f"{what}: {len(made.recording.events):,} events, "
            f"{len(made.recording.allocations):,} buffers: "
            f"{len(text) / 1e6:.2f} MB, rendered in {render_s:.1f} s, "
            f"interactive after {statistics.median(opened):.2f} s (worst {max(opened):.2f})"
        )
        broken += [f"{max(opened):.1f} s to open"] * (max(opened) > MOST_OPEN_S)
        for tab in TABS:
            page.open(path, f"#tab={tab}")
            page.settle()
            for name, change in (("click", CLICK), ("zoom", ZOOM)):
                times = timed(page, change)
                middle, worst = statistics.median(times), max(times)
                print(f"  {tab:10} {name:5} {middle:6.1f} ms  worst {worst:6.1f} ms")
                broken += [f"{tab} {name} {middle:.0f} ms"] * (middle > MOST_ANSWER_MS)
    return broken


def main() -> int:
    """Measure the sizes named on the command line; return 1 where a limit is exceeded."""
    if reason := missing():
        print(f"not measured: {reason}")
        return 0
    broken: list[str] = []
    with browser() as page:
        page.size(1280, 900)
        for what in sys.argv[1:] or ["10000", "100000"]:
            broken += measure(page, what)
    for line in broken:
        print(f"over the limit: {line}")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
