"""Debian's Chromium, driven through Playwright.

The executable is given by the environment variable CHROMIUM, or is the first at one of the usual places. If
there is none the tests that need it are skipped, or, in continuous integration (CI is set), fail.
"""

import os
import shutil
from contextlib import contextmanager

from support.shared_data import missing

PLACES = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@contextmanager
def launched():
    """A browser; a process can have one at a time."""
    try:
        import axe_playwright_python  # noqa: F401 - for the tests with axe-core
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("the browser tests need playwright and axe-playwright-python: pip install -e '.[test]'")
    path = os.environ.get("CHROMIUM") or next(filter(os.path.exists, PLACES), shutil.which("chromium"))
    if not path:
        missing("the browser tests need Chromium: apt-get install chromium, or name it in CHROMIUM")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=path, args=FLAGS)


def violations(page):
    """axe-core's findings on a page: each rule, and the first element that breaks it."""
    from axe_playwright_python.sync_playwright import Axe

    told = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [(each["id"], each["nodes"][0]["html"]) for each in told]
