"""Sphinx's settings for the pages as a site, built by tools/docs_site.py.

The source folder is the whole tree: README.md, CONTRIBUTING.md, CHANGELOG.md, docs/ and the records of bench/results/ are read
where they lie, as CommonMark with GitHub's anchors, so that a page reads alike here and in the repository. The order of the
navigation is that of docs/README.md, the index.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INDEX = "docs/README"
RECORDS = "bench/results/*"

project = "Tandem"
author = "the Tandem project"
copyright = author  # noqa: A001 - Sphinx's name for it
html_title = "Tandem"

root_doc = "README"
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "docs/start/*.md", "docs/howto/*.md", "bench/results/*.md"]
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 6
myst_fence_as_directive = ["mermaid"]
suppress_warnings = ["myst.header"]  # a page may go from its title to a heading of the third level

html_theme = "furo"
templates_path = ["."]
html_sidebars = {"**": [f"sidebar/{part}.html" for part in ("brand", "search", "scroll-start", "navigation")] + ["api.html", "sidebar/scroll-end.html"]}
html_theme_options = {"source_view_link": "", "top_of_page_buttons": []}
html_copy_source = False
html_show_sphinx = False


def section_of(line):
    """The title of a `## heading`, or None."""
    found = re.match(r"## (.*)", line)
    return found and found.group(1)


def sections_of_index(text):
    """[(title of a section, [document of each page that it links to first])] of the index."""
    sections, seen = [], set()
    for line in text.split("\n"):
        if title := section_of(line):
            sections.append((title, []))
        for link in re.findall(r"\]\(([^)#\s]+)\.md(?:#[^)]*)?\)", line):
            document = (ROOT / "docs" / link).resolve().relative_to(ROOT).as_posix()
            if sections and document not in seen:
                seen.add(document)
                sections[-1][1].append(document)
    return sections


def toctree(documents, caption=None, glob=False):
    options = [":hidden:", *([f":caption: {caption}"] if caption else []), *([":glob:", ":reversed:"] if glob else [])]
    return "\n".join(["", "```{toctree}", *options, "", *documents, "```", ""])


def add_navigation(app, document, source):
    """Appends the hidden tables of contents: to README the sections of the index, to the index the records."""
    if document == root_doc:
        sections = sections_of_index((ROOT / f"{INDEX}.md").read_text(encoding="utf-8"))
        source[0] += toctree([f"/{INDEX}"])
        for title, documents in sections:
            source[0] += toctree([f"/{one}" for one in documents], title)
        listed = {one for _, documents in sections for one in documents}
        rest = [f"/{one}" for one in ("CONTRIBUTING", "CHANGELOG") if one not in listed]
        source[0] += toctree(rest, "The project") if rest else ""
    elif document == "docs/speed":
        source[0] += toctree([f"/{RECORDS}"], glob=True)


def setup(app):
    app.connect("source-read", add_navigation)
    return {"parallel_read_safe": True}
