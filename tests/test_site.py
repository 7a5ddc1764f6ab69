"""The site builds without warnings; its links, pictures, formulas and search work without network."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import pfl_core
from pfl_core import notebooks
from pfl_core.registry import METHODS

for module in ("sphinx", "myst_nb", "sphinx_book_theme", "sphinx_copybutton", "sphinx-mathjax-offline"):
    pytest.importorskip(module, reason="the extra `site` is not installed; `make site` does it")

ROOT = Path(__file__).parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Page(HTMLParser):
    """The anchors, links and files of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.ids, self.links, self.files = path, set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif "src" in values:
            self.files.append(values["src"])
        elif tag == "link" and values.get("rel") in ("stylesheet", "preload", "icon"):
            self.files.append(values["href"])

    def target(self, link: str) -> Path:
        path = unquote(urlsplit(link).path)
        return (self.path.parent / path).resolve() if path else self.path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new site, made as `make site` does."""
    folder = tmp_path_factory.mktemp("site")
    (command,) = re.findall(r"-m (sphinx .*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    words = [word.replace("build/site", folder.as_posix()) for word in command.split()]
    done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path.resolve(): Page(path) for path in sorted(site.rglob("*.html")) if "_static" not in path.parts}


@pytest.fixture
def browser() -> Iterator:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; `make site` does it")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=["--disable-background-networking"])
        yield chromium.new_page()
        chromium.close()


def test_every_notebook_and_method_has_its_place(site, pages):
    assert [name for name in notebooks.names() if not (site / f"notebooks/{name}.html").exists()] == []
    modules = {name for page in pages.values() for name in page.ids if name.startswith("module-pfl_core.")}
    assert {f"module-{module}" for module in METHODS.values()} <= modules


def test_every_public_name_is_in_the_api_reference(site):
    text = (site / "docs/api/core.html").read_text(encoding="utf-8")
    assert [name for name in pfl_core.__all__ if not re.search(rf'href="[^"]*#[\w.]+\.{name}"', text)] == []


def test_no_internal_link_is_broken(site, pages):
    broken = []
    for page in pages.values():
        for link in page.links:
            target = page.target(link)
            anchor = unquote(urlsplit(link).fragment)
            if urlsplit(link).scheme or link == "#":
                continue
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].ids):
                broken.append(f"{page.path.relative_to(site)}: {link}")
    assert broken == []


def test_pictures_scripts_and_styles_are_files_of_the_site(site, pages):
    missing = [
        f"{page.path.relative_to(site)}: {file}"
        for page in pages.values()
        for file in page.files
        if not file.startswith("data:") and (urlsplit(file).netloc or not page.target(file).is_file())
    ]
    assert missing == []


def test_links_to_files_and_folders_lead_to_their_pages(site, pages):
    """The README's folders; a method's file; a figure."""

    def links(page: str) -> list[str]:
        return pages[(site / page).resolve()].links

    assert {"docs/gallery.html", "tests/README.html"} <= set(links("README.html"))
    assert "../../docs/api/methods/ditto.html#module-pfl_core.algorithms.ditto" in links(
        "pfl_core/algorithms/README.html"
    )
    assert "../../docs/gallery.html#pfedgate-efficiency" in links("notebooks/pfedgate/README.html")


def test_the_gallery_has_every_figure_once(site, pages):
    presets = ("paper", "real", "quick")
    figures = {(path.parent.name, path.stem) for preset in presets for path in ROOT.glob(f"figures/{preset}/*/*.png")}
    anchors = {f"{paper}-{name}".replace("_", "-") for paper, name in figures}
    gallery = pages[(site / "docs/gallery.html").resolve()]
    assert anchors <= gallery.ids
    assert sum("_images/" in file for file in gallery.files) == len(figures)


def test_a_docstring_is_plain_text(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "extensions"))
    from docstrings import to_rst

    text = "A *b* c_ of ``x_`` and `y`.\n\n    θ ← θ − η g\n\n- one\n- two\n\nArgs:\n    n: first\n        line."
    assert to_rst(text.splitlines()) == [
        *("A \\*b\\* c\\_ of ``x_`` and ``y``.", "", ""),
        *(".. code-block:: none", "   :class: formula", "", "   θ ← θ − η g", ""),
        *("", "- one", "- two", ""),
        *("Arguments:", "", "- n: first", "      line.", ""),
    ]


def test_pictures_and_formulas_appear_in_a_browser(site, pages, browser):
    problems, requests = [], []
    browser.on("request", lambda request: requests.append(request.url))
    browser.on("pageerror", lambda error: problems.append(f"{browser.url}: {error}"))
    formulas = 0
    for path, page in pages.items():
        html = path.read_text(encoding="utf-8")
        if "_modules" in path.parts or not ("<img" in html or 'class="math' in html):
            continue
        browser.goto(path.as_uri())
        found = browser.evaluate(LOOK)
        name = page.path.relative_to(site)
        problems += [f"{name}: {text}" for text in found["broken"]]
        formulas += found["formulas"]
        if found["drawn"] < found["formulas"]:
            problems.append(f"{name}: {found['drawn']} of {found['formulas']} formulas are drawn")
    assert problems == []
    assert formulas > 50
    assert {urlsplit(url).scheme for url in requests} <= {"file", "data"}


LOOK = """async () => {
    const images = [...document.querySelectorAll("main img")];
    images.forEach(image => { image.loading = "eager"; });
    await Promise.all(images.map(image => image.decode().catch(() => null)));
    const broken = images.filter(image => !image.naturalWidth).map(image => `picture ${image.src}`);
    const formulas = document.querySelectorAll(".math").length;
    if (formulas) await MathJax.startup.promise;
    document.querySelectorAll("mjx-merror").forEach(error => broken.push(`formula ${error.textContent}`));
    return {broken, formulas, drawn: document.querySelectorAll(".math mjx-container").length};
}"""


def test_search_finds_fedselect(site, browser):
    browser.goto((site / "search.html").as_uri() + "?q=FedSelect")
    browser.wait_for_selector("#search-results li a")
    found = browser.eval_on_selector_all("#search-results li a", "links => links.map(link => link.href)")
    assert any("notebooks/fedselect/" in link for link in found)
    assert all(Path(unquote(urlsplit(link).path)).is_file() for link in found)
