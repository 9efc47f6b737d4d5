"""The site: it builds without a warning, needs no network, and a browser shows it."""

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import geomano_hpc
from tests.support.browser import browser

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow(90)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make docs` builds it, once for all pytest workers."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "site").exists():
            build(shared / "site", shared / "view")
    return shared / "site"


def build(site: Path, view: Path) -> None:
    """A dead link, a script of the gallery that fails or any other warning is an error."""
    # Not measured for coverage, which would double the time. The API page reads the package in the view.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "COV"))}
    environment |= {"NO_MKDOCS_2_WARNING": "1", "GEOMANO_VIEW": str(view)}
    unfinished = site.with_name("unfinished_site")
    for command in (
        ["make", "view", f"VIEW={view}"],
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(unfinished)],
    ):
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    unfinished.rename(site)


def test_no_page_fetches_anything(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        fetched = re.findall(r"<(?:script|img|iframe|source)[^>]*?\ssrc=\"?([^\s\">]+)", page.read_text())
        fetched += re.findall(r"<link[^>]*?\shref=\"?([^\s\">]+)", page.read_text())
        assert fetched, page
        assert not [address for address in fetched if re.match(r"(https?:)?//", address)], page


def test_api_page_describes_every_public_name(site: Path) -> None:
    text = (site / "api.html").read_text()
    for name in geomano_hpc.__all__:
        if not name.startswith("__"):
            assert f'id="geomano_hpc.{name}"' in text, name


def test_gallery_shows_what_its_scripts_made(site: Path) -> None:
    scripts = sorted((ROOT / "docs" / "examples").glob("*.py"))
    assert len(scripts) == 4
    for script in scripts:
        picture = site / "gallery" / f"{script.stem}.png"
        assert picture.stat().st_size > 20_000
        page = (site / "gallery" / f"{script.stem}.html").read_text()
        assert f'src="{picture.name}"' in page
        assert re.search(r"relative L2 error .*0\.\d+", page), "what the script printed"


LOADED = "new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', done))"
SEARCH = """
document.querySelector("[data-md-toggle=search]").click();
const query = document.querySelector(".md-search__input");
query.value = "requeue";
query.dispatchEvent(new Event("keyup", {bubbles: true}));
"""


@pytest.mark.browser
def test_browser_shows_and_searches_the_site_as_files(site: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as page:
        for domain in ("Network", "Log", "Runtime"):
            page.call(f"{domain}.enable")
        page.open(f"file://{site}/model.html")
        page.wait_for("Algorithm 1, line by line")
        sums = page.call("Runtime.evaluate", expression="document.querySelectorAll('math munderover').length")
        page.open(f"file://{site}/index.html")
        page.wait_for("Your own cluster", "Initializing search")
        page.call("Runtime.evaluate", expression=LOADED, awaitPromise=True)
        page.call("Runtime.evaluate", expression=SEARCH)
        page.wait_for("matching documents")
    assert sums["result"]["value"] >= 2, "equations are MathML"
    bad = ("Network.loadingFailed", "Runtime.exceptionThrown", "Log.entryAdded")
    assert not [event for event in page.events if event["method"] in bad]
