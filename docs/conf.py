"""Settings of the site: README, notebooks with the outputs that they carry, other pages, figures, API reference.

`make site` builds it. The source folder is the repository, so relative links between pages work as they are.
"""

import sys
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent), str(DOCS / "extensions")]

from pfl_core import __version__  # noqa: E402

project = "pfl-companion"
author = "The pfl-companion contributors"
project_copyright = author
release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx-mathjax-offline",
    "sphinx_copybutton",
    "docstrings",
    "gallery",
    "links",
    "module_pages",
]
root_doc = "README"
include_patterns = [
    "*.md",
    "data/README.md",
    "data/paper/criteria.md",
    "docs/**",
    "figures/README.md",
    "notebooks/**",
    "pfl_core/algorithms/README.md",
    "tests/README.md",
    "tests/benchmarks/README.md",
]
exclude_patterns = [".*", "build", "site", "docs/contents.md", "data/runs", "**/.ipynb_checkpoints", "**.partial.ipynb"]
templates_path = ["templates"]

myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 4
myst_dmath_double_inline = True
nb_execution_mode = "off"
nb_merge_streams = True
nb_ipywidgets_js = {}  # no widgets; the default loads scripts from other sites

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
smartquotes = False  # docstrings quote values
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"

html_theme = "sphinx_book_theme"
html_title = "Personalized federated learning, paper by paper"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "index.html"}  # forwards to the front page
html_theme_options = {
    "home_page_in_toc": True,
    "show_toc_level": 2,
    "use_fullscreen_button": False,
    "navbar_persistent": [],
}
# Pages of source code have no list of all pages, which takes a third of the build.
html_sidebars = {"_modules/**": ["navbar-logo.html", "search-button-field.html"]}
copybutton_exclude = ".linenos, .gp, .go"


def add_contents(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append the site's table of contents to the front page, and to a paper's page that of its notebooks."""
    folder = DOCS.parent / docname.removesuffix("/README")
    if docname == root_doc:
        source[0] += "\n" + (DOCS / "contents.md").read_text(encoding="utf-8")
    elif folder.parent.name == "notebooks" and folder.is_dir():
        pages = ["Results <RESULTS>"] if (folder / "RESULTS.md").exists() else []
        for path in sorted(folder.glob("0*.ipynb")):
            pages.append(f"{path.stem[3:].replace('_', ' ').capitalize()} <{path.stem}>")
        source[0] += "\n```{toctree}\n:hidden:\n\n" + "\n".join(pages) + "\n```\n"


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_contents)
