"""The scores of the accuracy protocol and their tables."""

from __future__ import annotations

import statistics
from typing import Any

from analyzer.units import format_bytes

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
    case: str, told: dict[str, Any], one: list[dict[str, Any]], many: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the scores of a case: distances outside the range of the real runs over their median.

    Args:
        case: Its name.
        told: Summary of the estimate.
        one: Summaries of the real runs with one inter-op thread.
        many: The same with default threads; may be empty.
    """
    row: dict[str, Any] = {"case": case, "runs": len(one), "runs_default": len(many)}
    for kind in ("requested", "allocated"):
        peaks = sorted(run[kind] for run in one)
        row[f"{kind}_bytes"] = told[kind]
        row[f"real_{kind}_bytes"] = peaks
        row[f"{kind}_error"] = outside(told[kind], peaks)
        row[f"{kind}_plain"] = told[kind] / statistics.median(peaks) - 1
        others = sorted(run[kind] for run in many)
        if others:
            row[f"real_{kind}_default_bytes"] = others
            row[f"{kind}_default_error"] = outside(told[kind], others)
        row[f"resident_{kind}_error"] = outside(
            told[f"resident_{kind}"], sorted(run[f"resident_{kind}"] for run in one)
        )
        prefix = "" if kind == "requested" else "allocated_"
        low, high = (told["range"][f"{prefix}{end}_bytes"] for end in ("low", "high"))
        middle = statistics.median(peaks)
        row[f"{kind}_range_bytes"] = [low, high]
        row[f"{kind}_inside"] = [low <= peak <= high for peak in (*peaks, *others)]
        both = sorted((*peaks, *others))
        row[f"{kind}_width"] = (high - low) / middle
        row[f"{kind}_real_width"] = (both[-1] - both[0]) / middle
    row |= _categories(told, one)
    row |= _fits(told, one)
    row["unmodelled"] = told["unmodelled"]
    row["warnings"] = told["warnings"]
    return row


def outside(value: float, found: list[int]) -> float:
    """Return how far a value lies outside a range, over the range's median; negative below."""
    middle = statistics.median(found)
    return (min(value - found[0], 0) + max(value - found[-1], 0)) / middle


def _categories(told: dict[str, Any], one: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the category that is furthest outside the real runs' range, over the peak."""
    middle = statistics.median(run["requested"] for run in one)
    worst = {}
    for name, size in told["categories"].items():
        found = sorted(run["categories"][name] for run in one)
        gap = (min(size - found[0], 0) + max(size - found[-1], 0)) / middle
        worst[name] = gap
    name = max(worst, key=lambda key: abs(worst[key]))
    return {"category": name, "category_error": worst[name], "category_errors": worst}


def _fits(told: dict[str, Any], one: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the verdicts at limits about the real need, and whether the stated need suffices.

    A real run lives under a limit where replaying its trace does; the verdict is that of the
    estimate's own replay. The need stated is the upper one, which holds for every order drawn.
    """
    need = told["range"].get("limit_high_bytes") or told["safe_limit"] or told["least_limit"]
    real = [run["safe_limit"] or run["least_limit"] for run in one]
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
    """Return one line for the terminal."""
    return (
        f"{row['case']:24} req {row['requested_error']:+7.2%} ({row['requested_plain']:+7.2%}) "
        f"alloc {row['allocated_error']:+7.2%} ({row['allocated_plain']:+7.2%}) "
        f"res {row['resident_requested_error']:+7.2%} {row['resident_allocated_error']:+7.2%} "
        f"cat {row['category_error']:+6.1%} {row['category'][:8]:8} "
        f"in {_share(row['requested_inside']):4.0%} {_share(row['allocated_inside']):4.0%} "
        f"width {row['requested_width']:6.2%}/{row['requested_real_width']:6.2%} "
        f"{row['allocated_width']:6.2%}/{row['allocated_real_width']:6.2%} "
        f"need {row['need_plain']:+6.1%}"
    )


def totals(rows: list[dict[str, Any]]) -> str:
    """Return the figures that the targets are about, a line each."""
    lines = []
    for name, halves in _halves(rows).items():
        if halves:
            found = figures(halves)
            lines.append(f"{name}: " + ", ".join(f"{key} {value}" for key, value in found.items()))
    return "\n".join(lines)


def figures(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return the protocol's figures over some rows, as text."""
    found = {"cases": str(len(rows)), "real runs": _runs(rows)}
    for kind in ("requested", "allocated"):
        for key, words in (("", f"{kind} peak"), ("_default", f"{kind} peak, default threads")):
            errors = [abs(row[f"{kind}{key}_error"]) for row in rows if f"{kind}{key}_error" in row]
            if errors:
                found[words] = _spread(errors)
        found[f"{kind} peak, plain"] = _spread([abs(row[f"{kind}_plain"]) for row in rows])
        found[f"{kind} resident"] = _spread([abs(row[f"resident_{kind}_error"]) for row in rows])
        for words, part in (("one thread", slice(1)), ("default threads", slice(1, None))):
            inside = [
                one
                for row in rows
                for own in [
                    (row[f"{kind}_inside"][: row["runs"]], row[f"{kind}_inside"][row["runs"] :])
                ]
                for run in own[part]
                for one in run
            ]
            if inside:
                found[f"{kind}, {words}: runs inside the range"] = (
                    f"{_share(inside):.1%} of {len(inside)}"
                )
        wide = [
            row[f"{kind}_width"] <= max(3 * row[f"{kind}_real_width"], 0.02) + 1e-9 for row in rows
        ]
        found[f"{kind} ranges narrow enough"] = f"{_share(wide):.1%}"
    found["worst category"] = _spread([abs(row["category_error"]) for row in rows])
    found["verdicts right"] = f"{_share([one for row in rows for one in row['verdicts']]):.1%}"
    found["need suffices (replayed)"] = (
        f"{_share([one for row in rows for one in row['suffices']]):.1%}"
    )
    capped = [row["capped_lives"] for row in rows if row.get("capped_lives") is not None]
    if capped:
        failed = [
            not all(row["verdicts"]) or not row["capped_lives"]
            for row in rows
            if row.get("capped_lives") is not None
        ]
        found["capped runs that live"] = f"{_share(capped):.1%} of {len(capped)}"
        found["PEF"] = f"{_share(failed):.1%}"
    return found


def _halves(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    return {
        "tuning": [row for row in rows if row["half"] == "tuning"],
        "held out": [row for row in rows if row["half"] == "held-out"],
    }


def _runs(rows: list[dict[str, Any]]) -> str:
    one = sum(row["runs"] for row in rows)
    default = sum(row["runs_default"] for row in rows)
    return f"{one} with one inter-op thread, {default} with default threads"


def _spread(errors: list[float]) -> str:
    ordered = sorted(errors)
    ninth = ordered[min(int(0.9 * len(ordered)), len(ordered) - 1)]
    return f"median {statistics.median(ordered):.2%} p90 {ninth:.2%} worst {ordered[-1]:.2%}"


def _share(found: list[bool]) -> float:
    return sum(found) / len(found) if found else 0.0


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the page for the docs."""
    parts = [_INTRODUCTION]
    halves = {name: found for name, found in _halves(rows).items() if found}
    columns = {name: figures(found) for name, found in halves.items()}
    keys = list(dict.fromkeys(key for found in columns.values() for key in found))
    parts.append(f"| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for key in keys:
        cells = " | ".join(found.get(key, "") for found in columns.values())
        parts.append(f"| {key} | {cells} |")
    parts.append(_peers(rows))
    for name, found in halves.items():
        parts.append(f"\n## Every case: {name}\n\n{_CASES}")
        parts += [_case_line(row) for row in found]
    return "\n".join(parts) + "\n"


_INTRODUCTION = """# How accurate an estimate is

Written by `benchmarks/accuracy.py`. Each case is a step of a small network (its name, batch size and
optimizer; `benchmarks/accuracy_models.py`), estimated by `analyze estimate --device cpu --no-jit` and
measured by `analyze trace` in fresh processes on TensorFlow's CPU with the BFC allocator; the third
step counts. The real peak differs from run to run, so an *error* is how far the prediction lies outside
the range of the real runs, over their median; *plain* is the distance to their median. The networks
held out were first measured when the rules were done; three later cures (a select that takes over its
input, initializers, small variables) came from looking at some of them. The protocol asks
for five real runs of a case in each series; the row *real runs* says how many stand behind this page.
Fewer runs make their range narrower, and an error larger.
"""
_COLUMNS = (
    "case | real requested | error | plain | real allocated | error | plain | resident | category "
    "| inside"
)
_CASES = f"| {_COLUMNS} |\n|{'---|' * (_COLUMNS.count('|') + 1)}"


def _case_line(row: dict[str, Any]) -> str:
    requested, allocated = row["real_requested_bytes"], row["real_allocated_bytes"]
    inside = row["requested_inside"] + row["allocated_inside"]
    return (
        f"| {row['case']} | {_range(requested)} | {row['requested_error']:+.2%} "
        f"| {row['requested_plain']:+.2%} | {_range(allocated)} | {row['allocated_error']:+.2%} "
        f"| {row['allocated_plain']:+.2%} | {row['resident_allocated_error']:+.2%} "
        f"| {row['category']} {row['category_error']:+.1%} | {_share(inside):.0%} |"
    )


def _range(found: list[int]) -> str:
    low, high = format_bytes(found[0]), format_bytes(found[-1])
    return low if low == high else f"{low} to {high}"


def _peers(rows: list[dict[str, Any]]) -> str:
    """Return the other methods' plain errors beside ours."""
    found = [row for row in rows if row.get("peers")]
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
    lines.append(f"| this | {_spread([abs(row['requested_plain']) for row in found])} |")
    for key, words in names.items():
        errors = []
        for row in found:
            if row["peers"].get(key) is not None:
                middle = statistics.median(row["real_requested_bytes"])
                errors.append(abs(row["peers"][key] / middle - 1))
        if errors:
            lines.append(f"| {words} | {_spread(errors)} |")
    return "\n".join(lines)
