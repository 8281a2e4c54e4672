"""The page of ``kernelweld report`` in a browser, where this machine has one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kernelweld.cli.html.page import page as written


def beside(name: str) -> ModuleType:
    """A module of this folder, which is no package."""
    spec = spec_from_file_location(f"report_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


browser = beside("browser")
synthetic = beside("test_report").synthetic


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    executable = browser.installed()
    if executable is None:
        pytest.skip(f"there is none of {', '.join(browser.NAMES)} on this machine")
    with browser.chromium(executable, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "r.html"
    path.write_text(written(synthetic()), encoding="utf-8")
    return path


CONTRAST = """
(() => {
  const number = (text) => text.match(/[\\d.]+/g).map(Number);
  const channel = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      const scale = colour.startsWith("color(") ? 255 : 1;
      const shown = number(colour).map((c, i) => i < 3 ? c * scale : c);
      if (shown.length < 4 || shown[3] > 0.9) return shown;
    }
    return [255, 255, 255];
  };
  const worst = {};
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || ["SCRIPT", "STYLE"].includes(element.tagName)) continue;
    const pair = [number(getComputedStyle(element).color), behind(element)].map(light).sort((a, b) => b - a);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (ratio < 4.5) worst[`${element.tagName}.${element.className}`] = ratio;
  }
  return worst;
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_it_fits_and_complains_of_nothing(page: Any, file: Path, width: int, scheme: str) -> None:
    milliseconds = page.open(file, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.complaints == []
    assert {url for url in page.loads if not url.startswith(("file:", "about:"))} == set()
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") is (scheme == "dark")
    assert page.evaluate(CONTRAST) == {}, "text of less than 4.5 to 1"
    if "PYTEST_XDIST_WORKER" not in os.environ:  # the machine is this test's own
        assert milliseconds < 3000


def test_the_filter(page: Any, file: Path) -> None:
    page.open(file, 1280)
    typed = (
        "(text) => { const box = document.getElementById('filter'); box.value = text;"
        " box.dispatchEvent(new Event('input')); return document.getElementById('filtered').textContent; }"
    )
    shown = "[...document.querySelectorAll('[data-filter]')].filter((item) => !item.hidden).length"
    assert page.evaluate("!document.querySelector('.filter').hidden")
    assert (page.evaluate(f"({typed})('RMS_norm cubed')"), page.evaluate(shown)) == ("1 of 2", 1)
    assert (page.evaluate(f"({typed})('nowhere')"), page.evaluate(shown)) == ("0 of 2", 0)
    assert (page.evaluate(f"({typed})('')"), page.evaluate(shown)) == ("", 2)


def test_launches_by_keyboard(page: Any, file: Path) -> None:
    page.open(file, 400)
    stops = page.evaluate(
        "[...document.querySelectorAll('.block')].filter((one) => one.tabIndex === 0).length"
    )
    assert stops == page.evaluate("document.querySelectorAll('.strip').length")
    page.evaluate("document.querySelectorAll('#kind-A .block')[1].focus()")
    page.press("ArrowRight")
    focused = "document.activeElement"
    assert page.evaluate(f"{focused} === document.querySelectorAll('#kind-A .block')[2]")
    assert page.evaluate(f"getComputedStyle({focused}.querySelector('.tip')).opacity") == "1"
    assert "rms_norm" in page.evaluate(f"{focused}.textContent")
    page.press("Enter")
    assert page.evaluate("location.hash") == "#weld-1"
    page.evaluate("document.querySelectorAll('#kind-A .block')[1].focus()")
    page.press("End")
    assert page.evaluate(f"{focused} === [...document.querySelectorAll('#kind-A .block')].at(-1)")


def test_equal_layers_are_marked_and_the_scheme_is_chosen(page: Any, file: Path) -> None:
    page.open(file, 1280, "light")
    page.evaluate("document.querySelector('.cells a').focus()")
    assert page.evaluate("document.querySelectorAll('.cells .same').length") == 3
    paper = "getComputedStyle(document.body).backgroundColor"
    light, click = page.evaluate(paper), "document.getElementById('scheme').click()"
    for expected in ("light", "dark"):
        page.evaluate(click)
        assert page.evaluate("document.documentElement.dataset.scheme") == expected
        assert (page.evaluate(paper) == light) is (expected == "light")
    page.evaluate(click)
    assert page.evaluate("document.getElementById('scheme').textContent") == "Scheme: auto"
