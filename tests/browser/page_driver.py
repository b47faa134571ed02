"""A page of ours in a headless Chromium, with what it wrote to the console and asked of the network."""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


CUT_NUMBERS = """
(() => {
  const cut = [];
  for (const it of document.querySelectorAll('.num')) {
    if (it.getClientRects().length === 0 || it.closest('.unseen')) continue;
    const say = (why) => cut.push(`${why}: ${it.textContent.trim()}`);
    if (it.textContent.includes('…')) say('ellipsis');
    if (it.classList.contains('size') && it.getClientRects().length > 1) say('broken over lines');
    const { right } = it.getBoundingClientRect();
    for (let box = it; box !== document.body; box = box.parentElement) {
      const { overflowX, display } = getComputedStyle(box);
      if (['auto', 'scroll'].includes(overflowX)) break;
      const holds = display !== 'inline' && box.matches('td, th, dd, p, .num');
      if (holds && box.scrollWidth > box.clientWidth) say('wider than its cell');
      if (overflowX !== 'visible' && right > box.getBoundingClientRect().right + 0.5) say('clipped');
    }
  }
  return cut;
})()
"""
"""Of each number in sight that is not wholly so: why, and the number."""


def missing() -> str:
    """Say why no browser can be driven here; empty where one can."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed"
    if not _browser():
        return "no Chromium or Chrome is installed"
    if not shutil.which("chromedriver"):
        return "chromedriver is not installed"
    return ""


def _browser() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((found for name in names if (found := shutil.which(name))), None)


class Page:
    """One open page and the gestures a reader makes on it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path, fragment: str = "") -> float:
        """Open a file and return the seconds until the page said that it is ready."""
        self.driver.get("about:blank")
        started = time.perf_counter()
        self.driver.get(path.resolve().as_uri() + fragment)
        self.wait("document.documentElement.dataset.ready === 'true'", seconds=120)
        return time.perf_counter() - started

    def open_until(self, path: Path, expression: str, seconds: float = 60) -> None:
        """Open a file anew until an expression is true: the browser stores choices in its own time."""
        until = time.monotonic() + seconds
        self.open(path)
        while not self.js(f"Boolean({expression})"):
            assert time.monotonic() < until, f"still not true: {expression}"
            self.open(path)

    def js(self, script: str, *arguments: Any) -> Any:
        """Return the value of an expression in the page."""
        return self.driver.execute_script(f"return ({script});", *arguments)

    def wait(self, expression: str, seconds: float = 60) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + seconds
        while not self.js(f"Boolean({expression})"):
            assert time.monotonic() < until, (
                f"still not true after {seconds} s: {expression}"
            )
            time.sleep(0.02)

    def settle(self) -> None:
        """Wait until the frame after the next is painted."""
        self.driver.execute_async_script(
            "const done = arguments[0];"
            "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0)));"
        )

    def text(self, selector: str) -> str:
        """Return the text of the first element, no-break spaces as spaces."""
        text = str(self.js("document.querySelector(arguments[0]).innerText", selector))
        return text.replace("\u00a0", " ")

    def click(self, selector: str) -> None:
        """Click the middle of the first element, as a mouse does."""
        self.driver.find_element("css selector", selector).click()
        self.settle()

    def keys(self, *keys: str, selector: str = "body") -> None:
        """Press keys with an element in focus."""
        self.driver.find_element("css selector", selector).send_keys(*keys)
        self.settle()

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Send one mouse event at a place in the window."""
        event = {"type": kind, "x": x, "y": y, **more}
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)

    def box(self, selector: str) -> dict[str, float]:
        """Return where an element is in the window, scrolled into view."""
        return dict(
            self.js(
                "(() => { const element = document.querySelector(arguments[0]);"
                "element.scrollIntoView({block: 'center', behavior: 'instant'});"
                "const box = element.getBoundingClientRect();"
                "return {x: box.x, y: box.y, width: box.width, height: box.height}; })()",
                selector,
            )
        )

    def click_at(self, selector: str, across: float, down: float) -> None:
        """Click inside an element, at parts of its width and height."""
        box = self.box(selector)
        x, y = box["x"] + across * box["width"], box["y"] + down * box["height"]
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, button="left", clickCount=1)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)
        self.settle()

    def drag(self, selector: str, start: float, end: float, modifiers: int = 0) -> None:
        """Drag along an element's middle, from one part of its width to another."""
        box = self.box(selector)
        y = box["y"] + box["height"] / 2
        places = [start + (end - start) * part / 5 for part in range(6)]
        self.mouse(
            "mouseMoved", box["x"] + start * box["width"], y, modifiers=modifiers
        )
        for place, across in enumerate(places):
            kind = "mousePressed" if place == 0 else "mouseMoved"
            self.mouse(
                kind,
                box["x"] + across * box["width"],
                y,
                button="left",
                clickCount=int(place == 0),
                modifiers=modifiers,
                buttons=1,
            )
        self.mouse(
            "mouseReleased",
            box["x"] + end * box["width"],
            y,
            button="left",
            clickCount=1,
            modifiers=modifiers,
        )
        self.settle()

    def size(self, width: int, height: int) -> None:
        """Set the size of the window's inside."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        self.settle()

    def scheme(self, theme: str) -> None:
        """Set the colour scheme that the system asks for."""
        feature = {"name": "prefers-color-scheme", "value": theme}
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [feature]}
        )
        self.settle()

    def cut_numbers(self) -> list[str]:
        """Return what is wrong with each number that cannot be read whole."""
        return [str(each) for each in self.js(CUT_NUMBERS)]

    def forget(self) -> None:
        """Remove the choices that earlier pages stored."""
        self.driver.execute_cdp_cmd(
            "Storage.clearDataForOrigin",
            {"origin": "file://", "storageTypes": "local_storage"},
        )

    def complaints(self) -> list[str]:
        """Return what the console holds and every request but the page's own, since last asked."""
        console = [entry["message"] for entry in self.driver.get_log("browser")]
        requests = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                requests.append(message["params"]["request"]["url"])
        foreign = [
            url
            for url in requests
            if not url.startswith(("file:", "data:", "about:", "blob:"))
        ]
        others = [
            url
            for url in requests
            if url.startswith("file:") and not url.split("#")[0].endswith(".html")
        ]
        return console + foreign + others


@contextmanager
def browser() -> Iterator[Page]:
    """Start a browser, and end it."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = _browser() or ""
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability(
        "goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"}
    )
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))
    )
    driver.set_script_timeout(20)
    try:
        yield Page(driver)
    finally:
        driver.quit()
