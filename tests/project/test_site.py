"""The site: every page has its place, links hold, and nothing is fetched from elsewhere."""

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.browser import violations
from support.shared_data import missing

from kvsim import cli

ROOT = Path(cli.__file__).resolve().parent


def in_nav():
    """The files that the navigation of mkdocs.yml names, in order."""
    return re.findall(r"^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)


def test_every_page_stands_in_the_navigation_once():
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(in_nav()) == sorted(pages)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built in strict mode: a link or an anchor that leads nowhere fails."""
    if find_spec("zensical") is None:
        missing("the site needs the package zensical: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    shutil.copytree(ROOT / "docs", folder / "docs")
    built = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "site"


@pytest.mark.slow
def test_the_site_has_every_page(site):
    for page in in_nav():
        name = page.removesuffix(".md")
        assert (site / ("index.html" if name == "index" else f"{name}/index.html")).is_file(), page


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_to_mend_on_the_site(site, browser, scheme):
    found = []
    for page in ("index.html", "learn/index.html", "commands/index.html", "api/index.html"):
        with browser.new_context(color_scheme=scheme, bypass_csp=True) as context:
            opened = context.new_page()
            opened.goto((site / page).as_uri())
            if opened.locator("pre > code").count():
                opened.wait_for_selector("button.md-code__button[aria-label]", state="attached")
            found += [(page, *each) for each in violations(opened)]
    assert found == []


@pytest.mark.slow
def test_axe_finds_nothing_to_mend_on_a_phone(site, browser):
    """Wide tables scroll there, and the keyboard must reach them."""
    with browser.new_context(viewport={"width": 390, "height": 844}, bypass_csp=True) as context:
        opened = context.new_page()
        opened.goto((site / "tiers/index.html").as_uri())
        opened.wait_for_selector(".md-typeset__scrollwrap[tabindex]", state="attached")
        opened.wait_for_selector("button.md-code__button[aria-label]", state="attached")
        assert violations(opened) == []
        assert opened.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
def test_every_column_of_every_table_has_a_heading(site):
    for page in site.rglob("*.html"):
        assert not re.search(r"<th[^>]*>\s*</th>", page.read_text(encoding="utf-8")), page


@pytest.mark.slow
def test_the_pages_of_the_site_fetch_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(https?:[^\s\">]+)", text)
        fetched += re.findall(r"<link\b[^>]*\brel=\"?(?:stylesheet|preload|preconnect)[^>]*", text)
        assert not [each for each in fetched if "http" in each], page


@pytest.mark.slow
def test_the_pictures_and_headings_that_pages_link_to_are_there(site):
    """Of what the browser gets, by the addresses as they are written."""
    for page in site.rglob("index.html"):
        text = page.read_text(encoding="utf-8")
        for link in re.findall(r"\b(?:href|src)=\"?([^\s\">]+)", text):
            if re.match(r"https?:|mailto:|data:|javascript:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), (page, link)
            if anchor and anchor != "__skip":
                assert re.search(
                    rf"\bid=\"?{re.escape(anchor)}[\"\s>]", target.read_text(encoding="utf-8")
                ), link
