"""Links of the pages to files and folders of the repository, as links to pages of the site.

A module or package leads to its section of the API reference, a figure to its place in the gallery, a folder to its
README. Other files, such as CITATION.cff, are downloads. A picture leads to itself, at its full size.
"""

from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform


class RepositoryLinks(SphinxTransform):
    """Runs before Sphinx copies linked files, i.e. when a page has been read."""

    default_priority = 400

    def apply(self) -> None:
        for link in list(self.document.findall(addnodes.download_reference)) + list(
            self.document.findall(addnodes.pending_xref)
        ):
            if link.get("reftype") == "myst" and link["refdomain"] is None:
                _, path = self.env.relfn2path(link["reftarget"], self.env.docname)
                target = self.target(Path(path))
                if target:
                    link.replace_self(addnodes.pending_xref("", *link.children, refdoc=self.env.docname, **target))

    def target(self, path: Path) -> dict[str, object]:
        """The attributes of a link to the page about a path of the repository; empty if no page is about it."""
        place = path.relative_to(self.env.srcdir) if path.is_relative_to(self.env.srcdir) else path
        if place.parts[:1] == ("pfl_core",) and (path.suffix == ".py" or (path / "__init__.py").exists()):
            module = place.with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
            return dict(refdomain="py", reftype="mod", reftarget=module, refexplicit=True, refwarn=True)
        if place.parts[:1] == ("figures",) and path.exists():
            anchor = "-".join(place.with_suffix("").parts[2:]).replace("_", "-") if path.suffix == ".png" else None
            return page("docs/gallery", anchor)
        if path.is_dir() and self.env.path2doc(str(path / "README.md")) in self.env.found_docs:
            return page(self.env.path2doc(str(path / "README.md")))
        return {}


def page(name: str, anchor: str | None = None) -> dict[str, object]:
    return dict(refdomain="doc", reftype="myst", reftarget=name, reftargetid=anchor, refexplicit=True)


def link_pictures(app: Sphinx, page: nodes.document) -> None:
    """Sphinx links a picture to its file if the page gives it a size."""
    for image in page.findall(nodes.image):
        if "width" not in image:
            image.setdefault("scale", 100)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(RepositoryLinks)
    app.connect("doctree-read", link_pictures)
    return {"parallel_read_safe": True}
