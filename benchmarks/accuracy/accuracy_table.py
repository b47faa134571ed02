"""The scores of the accuracy protocol and their tables, for ``accuracy.py``.

Figures: benchmarks/results/accuracy-cpu.md.
"""

from __future__ import annotations

import statistics
from typing import Any

from analyzer.model.units import format_bytes

LIMIT_SHARES = (0.9, 1.1)
"""Limits, as shares of the real need, at which the verdict is held against reality."""


def summary(document: dict[str, Any]) -> dict[str, Any]:
    """Return what the protocol compares, of a report's document: bytes of the last step."""
    waste = document["fragmentation"] or {}
    return {
        "requested": document["steps"][-1]["requested_bytes"],
        "allocated": document["steps"][-1]["allocated_bytes"],
        "resident_requested": document["resident"]["requested_bytes"],
        "resident_allocated": document["resident"]["allocated_bytes"],
        "categories": document["categories_at_peak"],
        "least_limit": waste.get("minimum_limit_bytes"),
        "safe_limit": waste.get("safe_limit_bytes"),
        "range": document["uncertainty"],
        "unmodelled": document["unmodelled"],
        "warnings": document["warnings"],
    }


def compare(
    case: str, told: dict[str, dict[str, Any]], real: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    """Return the scores of a case: distances outside the range of the real runs over their median.

    Args:
        case: Its name.
        told: By series, the summary of the estimate with that number of threads.
        real: By series (``one`` inter-op thread, ``default`` threads), summaries of the real runs.
    """
    series = {name: _scores(told[name], runs) for name, runs in real.items() if runs}
    row: dict[str, Any] = {"case": case, "series": series}
    for kind in ("requested", "allocated"):
        prefix = "" if kind == "requested" else "allocated_"
        for name, found in series.items():
            low, high = (
                told[name]["range"][f"{prefix}{end}_bytes"] for end in ("low", "high")
            )
            peaks = sorted(found[f"real_{kind}_bytes"])
            middle = statistics.median(peaks)
            found[f"{kind}_inside"] = [low <= peak <= high for peak in peaks]
            found[f"{kind}_width"] = (high - low) / middle
            found[f"{kind}_real_width"] = (peaks[-1] - peaks[0]) / middle
    row["unmodelled"] = told["default"]["unmodelled"]
    row["warnings"] = told["default"]["warnings"]
    return row


def _scores(told: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the scores of one series' runs."""
    found: dict[str, Any] = {"runs": len(runs)}
    for kind in ("requested", "allocated"):
        peaks = sorted(run[kind] for run in runs)
        found[f"{kind}_bytes"] = told[kind]
        found[f"real_{kind}_bytes"] = peaks
        found[f"{kind}_error"] = outside(told[kind], peaks)
        found[f"{kind}_plain"] = told[kind] / statistics.median(peaks) - 1
        found[f"resident_{kind}_error"] = outside(
            told[f"resident_{kind}"], sorted(run[f"resident_{kind}"] for run in runs)
        )
    return found | _categories(told, runs) | _fits(told, runs)


def outside(value: float, found: list[int]) -> float:
    """Return how far a value lies outside a range, over the range's median; negative below."""
    middle = statistics.median(found)
    return (min(value - found[0], 0) + max(value - found[-1], 0)) / middle


def _categories(told: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the category that is furthest outside the real runs' range, over the peak."""
    middle = statistics.median(run["requested"] for run in runs)
    worst = {}
    for name, size in told["categories"].items():
        found = sorted(run["categories"].get(name, 0) for run in runs)
        worst[name] = (min(size - found[0], 0) + max(size - found[-1], 0)) / middle
    name = max(worst, key=lambda key: abs(worst[key]))
    return {"category": name, "category_error": worst[name], "category_errors": worst}


def _fits(told: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the verdicts at limits about the real need, and whether the stated need suffices.

    A real run lives under a limit where replaying its trace does; the verdict is that of the
    estimate's own replay. The need stated is the upper one, which holds for every order drawn.
    """
    need = (
        told["range"].get("limit_high_bytes")
        or told["safe_limit"]
        or told["least_limit"]
    )
    real = [run["safe_limit"] or run["least_limit"] for run in runs]
    middle = statistics.median(real)
    verdicts = []
    for share in LIMIT_SHARES:
        limit = share * middle
        verdicts.append((told["least_limit"] <= limit) == (middle <= limit))
    return {
        "need_bytes": need,
        "real_need_bytes": sorted(real),
        "need_plain": told["least_limit"] / statistics.median(real) - 1,
        "verdicts": verdicts,
        "suffices": [found <= need for found in real],
    }


def line(row: dict[str, Any]) -> str:
    """Return a line a series for the terminal."""
    lines = []
    for name, found in row["series"].items():
        lines.append(
            f"{row['case']:24} {name:7} "
            f"req {found['requested_error']:+7.2%} ({found['requested_plain']:+7.2%}) "
            f"alloc {found['allocated_error']:+7.2%} ({found['allocated_plain']:+7.2%}) "
            f"res {found['resident_requested_error']:+7.2%} {found['resident_allocated_error']:+7.2%} "
            f"cat {found['category_error']:+6.1%} {found['category'][:8]:8} "
            f"in {_share(found['requested_inside']):4.0%} {_share(found['allocated_inside']):4.0%} "
            f"need {found['need_plain']:+6.1%} {_share(found['suffices']):4.0%}"
        )
        lines.append(
            f"{'':24} width "
            f"{found['requested_width']:6.2%} of {found['requested_real_width']:6.2%} allocated "
            f"{found['allocated_width']:6.2%} of {found['allocated_real_width']:6.2%}"
        )
    return "\n".join(lines)


def totals(rows: list[dict[str, Any]]) -> str:
    """Return the figures that the targets are about, a line each."""
    columns = _columns(rows)
    return "\n".join(
        f"{name}: " + ", ".join(f"{key} {value}" for key, value in found.items())
        for name, found in columns.items()
    )


def figures(rows: list[dict[str, Any]], series: str) -> dict[str, str]:
    """Return the protocol's figures over some rows and one series, as text."""
    scores = [row["series"][series] for row in rows]
    found = {
        "cases": str(len(rows)),
        "real runs": str(sum(one["runs"] for one in scores)),
    }
    for kind in ("requested", "allocated"):
        for key in ("error", "plain"):
            words = f"{kind} peak" + (", plain" if key == "plain" else "")
            found[words] = _spread([abs(one[f"{kind}_{key}"]) for one in scores])
        found[f"{kind} resident"] = _spread(
            [abs(one[f"resident_{kind}_error"]) for one in scores]
        )
        inside = [one for found in scores for one in found[f"{kind}_inside"]]
        found[f"{kind}: runs inside the range"] = (
            f"{_share(inside):.1%} of {len(inside)}"
        )
        found[f"{kind}: width of the range"] = _spread(
            [one[f"{kind}_width"] for one in scores]
        )
        wide = [
            one[f"{kind}_width"] <= max(3 * one[f"{kind}_real_width"], 0.02) + 1e-9
            for one in scores
        ]
        found[f"{kind} ranges narrow enough"] = f"{_share(wide):.1%} of {len(wide)}"
    found["worst category"] = _spread([abs(one["category_error"]) for one in scores])
    found["verdicts right"] = (
        f"{_share([v for one in scores for v in one['verdicts']]):.1%}"
    )
    found["need suffices (replayed)"] = (
        f"{_share([one for found in scores for one in found['suffices']]):.1%}"
    )
    capped = [one for one in scores if one.get("capped_lives") is not None]
    if capped:
        failed = [not all(one["verdicts"]) or not one["capped_lives"] for one in capped]
        lives = _share([one["capped_lives"] for one in capped])
        found["capped runs that live"] = f"{lives:.1%} of {len(capped)}"
        found["PEF"] = f"{_share(failed):.1%}"
    return found


def _columns(rows: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Return the figures by half and series."""
    words = {"one": "one inter-op thread", "default": "default threads"}
    columns = {}
    for half, some in _halves(rows).items():
        for series, name in words.items():
            measured = [row for row in some if series in row["series"]]
            if measured:
                columns[f"{half}, {name}"] = figures(measured, series)
    return columns


def _halves(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    return {
        "tuning": [row for row in rows if row["half"] == "tuning"],
        "second half": [row for row in rows if row["half"] == "held-out"],
    }


def _spread(errors: list[float]) -> str:
    ordered = sorted(errors)
    ninth = ordered[min(int(0.9 * len(ordered)), len(ordered) - 1)]
    return f"median {statistics.median(ordered):.2%} p90 {ninth:.2%} worst {ordered[-1]:.2%}"


def _share(found: list[bool]) -> float:
    return sum(found) / len(found) if found else 0.0


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the page for the docs."""
    parts = [_INTRODUCTION]
    columns = _columns(rows)
    keys = list(dict.fromkeys(key for found in columns.values() for key in found))
    parts.append(f"| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for key in keys:
        cells = " | ".join(found.get(key, "") for found in columns.values())
        parts.append(f"| {key} | {cells} |")
    parts.append(_peers(rows))
    for name, found in _halves(rows).items():
        if found:
            parts.append(f"\n## Every case: {name}\n\n{_CASES}")
            parts += [
                _case_line(row, series) for row in found for series in row["series"]
            ]
    return "\n".join(parts) + "\n"


_INTRODUCTION = """# How accurate an estimate is

Written by `benchmarks/accuracy/accuracy.py`. Each case is a step of a small network (its name,
batch size and optimizer; `benchmarks/accuracy/accuracy_models.py`), estimated by
`analyze estimate --device cpu --no-jit` and measured by `analyze trace` in fresh processes on
TensorFlow's CPU with the BFC allocator; the third
step counts. The real peak differs from run to run, so an *error* is how far the prediction lies outside
the range of the real runs, over their median; *plain* is the distance to their median. There are two
series: with one inter-op thread, held against `--inter-op-threads 1`, and with TensorFlow's default
threads, held against the estimate without that option. The runs of each should lie in the range that its
estimate states, which should be no wider than three times theirs, or 2 %.

The networks of the second half were first measured when the rules were done; three later cures (a select
that takes over its input, initializers, small variables) came from looking at some of them. None of
the figures with default threads is of a held-out case: the three rates of kernels (`threads.py`)
come from traced steps of both halves. With one thread no rate counts. The protocol asks for
five real runs of a case in each series; the row *real runs* says how many stand behind this page.
Fewer runs make their range narrower, and an error larger.
"""
_COLUMNS = (
    "case | threads | real requested | error | plain | real allocated | error | plain | resident "
    "| category | inside"
)
_CASES = f"| {_COLUMNS} |\n|{'---|' * (_COLUMNS.count('|') + 1)}"


def _case_line(row: dict[str, Any], series: str) -> str:
    one = row["series"][series]
    inside = one["requested_inside"] + one["allocated_inside"]
    return (
        f"| {row['case']} | {series} | {_range(one['real_requested_bytes'])} "
        f"| {one['requested_error']:+.2%} | {one['requested_plain']:+.2%} "
        f"| {_range(one['real_allocated_bytes'])} | {one['allocated_error']:+.2%} "
        f"| {one['allocated_plain']:+.2%} | {one['resident_allocated_error']:+.2%} "
        f"| {one['category']} {one['category_error']:+.1%} | {_share(inside):.0%} |"
    )


def _range(found: list[int]) -> str:
    low, high = format_bytes(found[0]), format_bytes(found[-1])
    return low if low == high else f"{low} to {high}"


def _peers(rows: list[dict[str, Any]]) -> str:
    """Return the other methods' plain errors beside ours."""
    found = [
        {**row["series"]["one"], "peers": row["peers"]}
        for row in rows
        if row.get("peers") and "one" in row["series"]
    ]
    if not found:
        return ""
    names = {
        "grappler": "grappler's DeterminePeakMemoryUsage",
        "weights": "weights x 4",
        "layers": "sum of the layers' outputs, and weights x 4",
    }
    lines = [
        "\n## Beside other ways to tell\n",
        f"| method | plain error of the requested peak, {len(found)} cases |",
        "|---|---|",
    ]
    lines.append(
        f"| this | {_spread([abs(row['requested_plain']) for row in found])} |"
    )
    for key, words in names.items():
        errors = []
        for row in found:
            if row["peers"].get(key) is not None:
                middle = statistics.median(row["real_requested_bytes"])
                errors.append(abs(row["peers"][key] / middle - 1))
        if errors:
            lines.append(f"| {words} | {_spread(errors)} |")
    return "\n".join(lines)
