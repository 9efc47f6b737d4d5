"""The HTML page in a real browser."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from geomano_hpc.launch import Study
from geomano_hpc.report.study_report import write_report
from tests.support.browser import Page, browser
from tests.support.written_runs import write_study


def evaluate(page: Page, expression: str) -> Any:
    found = page.call("Runtime.evaluate", expression=f"JSON.stringify({expression})", returnByValue=True)
    return json.loads(found["result"]["value"])


@pytest.fixture
def report(tmp_path: Path) -> Path:
    axes = {"model.depth": list(range(1, 41))}
    study = Study(name="many", about="forty depths", recipe="darcy", axes=axes, seeds=[0, 1], tables=["scalability"])
    write_study(study, tmp_path / "many", failed={5: "RuntimeError: <b>out</b> of memory"}, pending={7: ""})
    write_report([tmp_path / "many"])
    return tmp_path / "many" / "report" / "report.html"


@pytest.mark.browser
def test_page_is_whole_sorts_filters_and_fits_any_window(report: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "report.html"  # alone, without the files beside it
    moved.parent.mkdir()
    moved.write_text(report.read_text())
    with browser(tmp_path / "profile") as page:
        page.open(moved.as_uri())
        text = page.wait_for("forty depths", "78 of 80 runs are done", "RuntimeError: <b>out</b> of memory")
        assert "0.01050 ± 0.00071 †" in text
        loaded = "document.readyState === 'complete' && [...document.images].every(image => image.complete)"
        end = time.monotonic() + 120
        while not evaluate(page, loaded):
            assert time.monotonic() < end, "the page does not load"
            time.sleep(0.1)
        assert evaluate(page, "[...document.images].map(image => image.naturalWidth > 300)") == [True] * 2
        assert evaluate(page, "performance.getEntriesByType('resource').filter(r => !r.name.startsWith('data:'))") == []
        assert (
            evaluate(page, "[...document.querySelectorAll('td.best')].map(cell => cell.textContent)")
            == ["0.01050 ± 0.00071 †"] * 2
        )

        rows = "[...document.querySelectorAll('#variants tbody tr')]"
        click = "document.querySelectorAll('#variants th')[1].click()"
        first = f"{rows}[0].cells[0].textContent"
        assert evaluate(page, f"({click}, {first})") == "depth 1"
        assert evaluate(page, f"({click}, {first})") == "depth 40"
        search = "document.querySelector('#variants .filter')"
        typed = f"({search}.value = 'failed', {search}.dispatchEvent(new Event('input')))"
        assert evaluate(page, f"({typed}, {rows}.filter(row => !row.hidden).map(row => row.cells[0].textContent))") == [
            "depth 3"
        ]

        for width in (360, 1400):
            page.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
            assert evaluate(page, "document.documentElement.scrollWidth") <= width
        shown: dict[str, str] = {}
        for scheme, background in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 24, 30)")):
            page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            assert evaluate(page, "getComputedStyle(document.body).backgroundColor") == background
            end = time.monotonic() + 60
            while (source := evaluate(page, "document.images[0].currentSrc")) in shown.values():
                assert time.monotonic() < end, "the picture stays the same"  # it is changed a moment later
                time.sleep(0.1)
            shown[scheme] = source
