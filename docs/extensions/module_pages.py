"""The directive ``modules``: a section with the API reference of each module in its list."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective


class Modules(SphinxDirective):
    has_content = True

    def run(self) -> list[nodes.Node]:
        text = "\n\n".join(f"{name}\n{'-' * len(name)}\n\n.. automodule:: {name}" for name in self.content if name)
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def keep_python_modules(app: Sphinx, env: BuildEnvironment) -> None:
    """Drop modules without Python source ("builtins"): the index of sources would link to pages that do not exist."""
    sources = env._viewcode_modules
    for name in [name for name, source in sources.items() if not source]:
        del sources[name]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("env-updated", keep_python_modules)
    app.add_directive("modules", Modules)
    return {"parallel_read_safe": True}
