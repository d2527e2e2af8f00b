"""A real browser for tests of pages: headless Chromium, started once, with a window of any width, dark or light."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


class Browser:
    """Chromium, driven by selenium; `driver` does what is not here."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, page: str | Path, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Open an address or a file in a window of this size, and forget what earlier pages complained about."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.complaints()
        self.driver.get(page.resolve().as_uri() if isinstance(page, Path) else page)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript in the page, and give what it returns."""
        return self.driver.execute_script(script, *arguments)

    def complaints(self) -> list[str]:
        """Give the errors and warnings on the page's console since the last time, such as a refused resource."""
        lines = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [line["message"] for line in lines if line["level"] in ("SEVERE", "WARNING")]

    def overflows(self) -> list[str]:
        """Name the elements that reach beyond the right edge of the window, but for those in a box that scrolls."""
        found: list[str] = self.run(OVERFLOWS)
        return found

    def screenshot(self, path: Path) -> None:
        """Save the whole page as PNG, however long it is."""
        height = self.run("return document.documentElement.scrollHeight")
        width = self.run("return innerWidth")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.save_screenshot(str(path))


OVERFLOWS = """
const scrolls = box => box && (getComputedStyle(box).overflowX !== "visible" || scrolls(box.parentElement));
return [...document.body.querySelectorAll("*")]
  .filter(element => element.getBoundingClientRect().right > innerWidth + 1 && !scrolls(element.parentElement))
  .map(element => `${element.tagName} ${element.className.baseVal ?? element.className}`);
"""


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """Start Chromium with a new profile in this folder; end it afterwards."""
    binary, driver = next(filter(None, map(which, CHROMIUM)), None), which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("needs chromium and chromedriver (Debian: chromium, chromium-driver)")
    options = ChromeOptions()
    options.binary_location = binary
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    started = Chrome(options=options, service=Service(driver))
    try:
        yield Browser(started)
    finally:
        started.quit()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Give the browser that all tests share; without one installed, its tests are skipped."""
    with chromium(tmp_path_factory.mktemp("chromium")) as started:
        yield started
