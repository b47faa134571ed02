"""Measure the report page in a headless browser: size, time to open, and time of each interaction.

    python benchmarks/page.py [EVENTS | TRACE ...]

An interaction is timed in the page, from the change of the state to the end of the frame that shows it,
for each view; the median and the worst of ten are printed. It fails if a limit is exceeded: 5 MiB, 3 s
to open, and a median of 100 ms for an interaction.
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

MOST_BYTES = 5 << 20
MOST_OPEN_S = 3.0
MOST_ANSWER_MS = 100.0
TABS = ("tensors", "lifetimes", "layers", "ops", "map")

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

AT = "const at = Math.floor(report.recording.states * (0.3 + 0.06 * i));"
SEARCH = """
const box = [...document.querySelectorAll('input.search')].find((it) => it.offsetParent);
if (box) { box.value = 'conv' + i; box.dispatchEvent(new Event('input')); }
"""
THEME = """
document.documentElement.dataset.theme = i % 2 ? 'dark' : 'light';
document.dispatchEvent(new Event('themechange'));
"""
INTERACTIONS = {
    "click": f"{AT} report.state.update({{ at }});",
    "zoom": "report.axis.zoom(0.8, report.recording.states * 0.6);",
    "hover": f"{AT} report.state.update({{ marked: report.recording.aliveAt(at) }});",
    "window": f"{AT} report.state.update({{ window: [at >> 1, at], at }});",
    "choose": f"{AT} report.state.update({{ buffer: report.recording.aliveAt(at)[i] }});",
    "search": SEARCH,
    "theme": THEME,
}


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
    return Made(result.recording, result.report)


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
            for name, change in INTERACTIONS.items():
                times = timed(page, change)
                middle, worst = statistics.median(times), max(times)
                print(f"  {tab:10} {name:6} {middle:6.1f} ms  worst {worst:6.1f} ms")
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
