"""The documentation as a site: it builds strictly, and all that its pages lead to is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.support.paths import ROOT

pytest.importorskip("material", reason="the site needs qpdsl[docs]")

pytestmark = pytest.mark.unshipped
_LED = re.compile(r"""<(\w+)[^>]*?\s(?:href|src)=["']?([^"'\s>]+)""")
_ANCHOR = re.compile(r"""\sid=["']?([^"'\s>]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return folder


@cache
def text(page: Path) -> str:
    return page.read_text("utf-8")


@cache
def anchors(page: Path) -> set[str]:
    return {unescape(found) for found in _ANCHOR.findall(text(page))}


def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]
    assert len(pages) > 100
    for page in pages:
        for tag, led in _LED.findall(text(page)):
            if led.startswith(("http:", "https:")):
                # A page may name another site, and loads nothing from it.
                assert tag == "a", (page, led)
                continue
            place, _, anchor = unquote(unescape(led)).partition("#")
            target = (page.parent / place).resolve() if place else page
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), (page, led)
            assert not anchor or target.suffix != ".html" or anchor in anchors(target), (page, led)


def test_programs_and_results_are_pages_too(site: Path) -> None:
    shown = text(site / "source" / "programs" / "idioms" / "search" / "puct.qp" / "index.html")
    assert "search puct" in unescape(re.sub("<[^>]+>", "", shown))
    assert 'href="../../source/programs/idioms/search/puct.qp/"' in text(site / "start" / "idioms" / "index.html")
    assert (site / "source" / "benchmarks" / "results" / "index.html").is_file()


def test_the_site_names_no_machine(site: Path) -> None:
    for page in (*site.rglob("*.html"), site / "search" / "search_index.json"):
        assert str(ROOT) not in text(page) and not re.search(r"/(?:root|home|Users)/\w", text(page)), page
