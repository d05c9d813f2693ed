"""A headless Chromium for the tests of the console, from Debian's packages.

    python -m tools.browser install          installs chromium and chromium-driver, as CI does
    python -m tools.browser screenshots      writes the pictures of docs/images anew

Decides the flags: nothing is asked of the network, and nothing is left but what ``profile`` holds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tools.interop import ToolMissing

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
PICTURES_TO = "RMQ_RAY_SCREENSHOTS"
"""Environment: the directory that the test writes its pictures to."""
TEST = "tests/e2e/test_console_browser.py"
PACKAGES = {"chromium": "chromium", "chromedriver": "chromium-driver"}
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-dev-shm-usage "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--hide-scrollbars --force-device-scale-factor=1 --lang=en"
).split()
WAIT_S = 20.0


def install() -> None:
    """Install what is missing with apt, as root or by sudo."""
    wanted = [package for name, package in PACKAGES.items() if shutil.which(name) is None]
    if not wanted:
        return
    as_root = [] if os.getuid() == 0 else ["sudo"]
    subprocess.run([*as_root, "apt-get", "update", "-qq"], check=True, stdin=subprocess.DEVNULL)
    quiet = ["env", "DEBIAN_FRONTEND=noninteractive"]
    command = [*as_root, *quiet, "apt-get", "install", "-y", "-qq", *wanted]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def program() -> str:
    """Where it is. ``ToolMissing`` names what to install."""
    for name, package in PACKAGES.items():
        if shutil.which(name) is None:
            raise ToolMissing(f"{package} is not installed: python -m tools.browser install")
    return str(shutil.which("chromium"))


@contextmanager
def opened(profile: Path, width: int = 1_200, height: int = 800) -> Iterator[Chrome]:
    """A browser with an empty profile in the directory ``profile``; it ends with the block."""
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = program()
    for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    home = {**os.environ, "HOME": str(profile)}  # it writes some files there, whatever it is told
    driver = Chrome(options, ChromeService(shutil.which("chromedriver"), env=home))
    driver.set_page_load_timeout(WAIT_S)
    try:
        yield driver
    finally:
        driver.quit()


def screenshots() -> int:
    """Run the test that takes them; its exit code."""
    IMAGES.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", TEST]
    environment = os.environ | {PICTURES_TO: str(IMAGES)}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["install"]:
            install()
        case ["screenshots"]:
            sys.exit(screenshots())
        case _:
            sys.exit("usage: python -m tools.browser install | screenshots")
