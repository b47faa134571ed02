"""Take pictures of the page in a headless browser.

    python tests/browser/screenshots.py

It makes ``docs/images`` anew from the sample traces.
"""

import base64
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from page_driver import Page, browser, missing

ROOT = Path(__file__).parents[2]
HIGHEST = 2200


@dataclass(frozen=True)
class Picture:
    """One picture of the documentation: a part of a page, from the top of ``start`` on."""

    name: str
    page: str
    fragment: str = ""
    theme: str = "light"
    width: int = 1280
    start: str = "body"
    height: int = 960


PICTURES = (
    Picture("report", "transformer", height=1076),
    Picture(
        "timeline-lifetimes", "cnn", "#tab=lifetimes", start="#explore", height=1080
    ),
    Picture(
        "allocator-map", "transformer", "#tab=map", "dark", start=".views", height=640
    ),
)


def take_documented(folder: Path) -> list[Path]:
    """Write the pictures of the documentation and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as pages, browser() as page:
        return [_take_one(page, picture, Path(pages), folder) for picture in PICTURES]


def _take_one(page: Page, picture: Picture, pages: Path, folder: Path) -> Path:
    report = pages / f"{picture.page}.html"
    if not report.exists():
        _write_page(picture.page, report)
    page.size(picture.width, 900)
    page.scheme(picture.theme)
    page.open(report, picture.fragment)
    page.size(picture.width, HIGHEST)
    page.settle()
    top = page.js(
        "document.querySelector(arguments[0]).getBoundingClientRect().top",
        picture.start,
    )
    shot = page.driver.execute_cdp_cmd(
        "Page.captureScreenshot",
        {
            "format": "png",
            "clip": {
                "x": 0,
                "y": max(0, top - 8) if picture.start != "body" else 0,
                "width": picture.width,
                "height": picture.height,
                "scale": 1,
            },
        },
    )
    path = folder / f"{picture.name}.png"
    path.write_bytes(base64.b64decode(shot["data"]))
    return path


def _write_page(name: str, path: Path) -> None:
    sys.path.insert(0, str(ROOT))
    import analyzer

    analyzer.open_trace(ROOT / "traces" / name).to_html(path)


def main() -> int:
    """Take the pictures and print their paths."""
    if reason := missing():
        print(f"no pictures: {reason}")
        return 1
    for path in take_documented(ROOT / "docs" / "images"):
        print(f"{path} {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
