"""The pictures of README and docs that take seconds are what the gallery's commands draw today.

`KVSIM_REDRAW=1 pytest tests/project/test_pictures.py` draws them anew, in 256 colours.
"""

import io
import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kvsim import cli
from kvsim.reports.figures.catalogue import FIGURES
from kvsim.reports.figures.swept import FIGURES as SWEPT

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
GALLERY = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
DRAWN = {
    "waste": "four/waste.png",
    "map": "figures/map.png",
    "fit": "figures/memory.png",
    "requests": "one/requests.png",
    "lengths": "figures/lengths.png",
    "fleet": "fleet/replicas.png",
    "layouts": "layouts/waste.png",
    "turns": "turns/curves.png",
}
"""Picture of the docs -> the file that the commands below it write."""
WINDOW = {"width": 1200, "height": 1000}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A directory for all of them, as one section may show what an earlier one has recorded."""
    return tmp_path_factory.mktemp("gallery")


def carried_out(name, workplace, monkeypatch):
    """Do what stands below a picture in the gallery."""
    monkeypatch.chdir(workplace)
    section = next(part for part in GALLERY.split("\n## ") if f"(images/{name}.png)" in part)
    for command in re.findall(r"^sim (.+)$", section, re.MULTILINE):
        assert cli.main(shlex.split(command)) == 0


def coarse(image):
    """An eighth of the size: letters that a pixel more or less is given to do not count."""
    small = image.resize((image.width // 8, image.height // 8), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.float64)


def assert_shown(name, drawn, far=1.0):
    """The picture of the docs is this one; in the mean a colour may be so `far` off, of 255."""
    picture = ROOT / f"docs/images/{name}.png"
    if os.environ.get("KVSIM_REDRAW"):
        drawn.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(
            picture, optimize=True
        )
    with Image.open(picture) as image:
        shown = image.convert("RGB").resize(drawn.size)  # with other fonts the page has a few pixels more
    assert np.abs(coarse(shown) - coarse(drawn)).mean() < far


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_is_what_its_command_draws(name, workplace, monkeypatch):
    carried_out(name, workplace, monkeypatch)
    with Image.open(workplace / DRAWN[name]) as image:
        assert_shown(name, image.convert("RGB"))


def test_the_gallery_draws_every_figure(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    others = re.findall(r"^\| (`.*) \| (`sim .*) \|$", GALLERY, re.MULTILINE)
    for names, commands in others:
        if "result.json" not in commands:
            for command in re.findall(r"`sim ([^`]+)`", commands):
                assert cli.main(shlex.split(command)) == 0
            assert all(list(tmp_path.glob(f"*/{name}.png")) for name in re.findall("`([^`]+)`", names))
    told = {name for names, _ in others for name in re.findall("`([^`]+)`", names)}
    told |= {*re.findall(r"/([a-z-]+)\.png`", GALLERY), *re.findall(r"--figure ([a-z-]+)", GALLERY)}
    assert {*FIGURES, *SWEPT} <= told


def test_the_picture_of_the_page_is_what_a_browser_shows(workplace, monkeypatch, browser):
    if not (workplace / "recorded").exists():
        carried_out("map", workplace, monkeypatch)
    carried_out("report", workplace, monkeypatch)
    page = browser.new_page(viewport=WINDOW)
    page.goto((workplace / "recorded/report.html").as_uri())
    page.locator("#maps canvas").first.wait_for()
    page.wait_for_timeout(500)
    player, legend = (page.locator(each).bounding_box() for each in ("#player", "#map-legend"))
    height = legend["y"] + legend["height"] - player["y"]
    clip = {"x": player["x"] - 8, "y": player["y"] - 8, "width": player["width"] + 16, "height": height + 16}
    shot = page.screenshot(clip=clip, full_page=True)
    page.close()
    with Image.open(io.BytesIO(shot)) as image:
        assert_shown("report", image.convert("RGB"), far=12.0)  # another instant is 25 off
