#!/usr/bin/env python3
"""The code on the pages is the code that the tests compile and run.

A page's block is tied to its source by the line above it:

    <!-- tests/docs/actors.cpp: counter -->
    ```cpp
    ...
    ```

and equals what stands in that file between `// [counter]` and `// [/counter]`, without the common indentation. In the
pages below every ```cpp block must be tied. On all pages relative links lead to a file and a heading that are there, prose
keeps to 100 columns, and the words are those of tools/tidy.py. docs/README.md, the index, links to every page of docs/, and each
page opens with a sentence. README.md has at most 200 lines. docs/environment.md has every variable that the programs read, and
bench/suites.txt a line for every suite.
Prints each breach, exit 1 if there is one; --update writes
the blocks.
"""

import re
import sys
import textwrap
from pathlib import Path

import tidy

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["docs/runtime.md"]
BLOCK = re.compile(r"^(?:<!-- (?P<file>\S+): (?P<name>\w+) -->\n)?```cpp\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$")
MAX_COLUMNS = 100
README_LINES = 200
INDEX = "docs/README.md"
VARIABLES = "docs/environment.md"
SUITES = "bench/suites.txt"
READ_BY = ("runtime", "actors", "engine", "models", "trainer", "examples", "tools")
READS = re.compile(r'"((?:TANDEM|SLURM|OMPI|TORCHELASTIC|HF|XDG|LOCAL|MASTER|OMP|GOMP|ONEDNN|LRU|NO)_[A-Z_]+|RANK|WORLD_SIZE|TERM|HOME)"')


def headings(text):
    """The anchors of a page, as GitHub makes them of its headings."""
    titles = re.findall(r"^#+ +(.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(line):
    return [inline or reference for inline, reference in LINK.findall(line)]


def index_faults(pages):
    """Pages that the index leaves out, pages that do not open with a sentence, and a README that has grown."""
    index = ROOT / INDEX
    linked = {(index.parent / link.partition("#")[0]).resolve() for line in index.read_text(encoding="utf-8").split("\n") for link in links(line)}
    for page in pages:
        name, lines = page.relative_to(ROOT), page.read_text(encoding="utf-8").split("\n")
        if name.parts[0] == "docs" and page != index and page not in linked:
            yield f"{name}: {INDEX} does not link to this page"
        if not (lines[0].startswith("# ") and len(lines) > 2 and lines[1] == "" and re.match(r"[A-Z`*\[](?!``)", lines[2])):
            yield f"{name}:1: a page begins with its title, an empty line, and a sentence that says what the page answers"
        if name == Path("README.md") and len(lines) - 1 > README_LINES:
            yield f"{name}: {len(lines) - 1} lines, at most {README_LINES}; move what is not for a stranger to a page of docs/"


def page_faults(page):
    """Dead links, wide lines and wrong words of one page."""
    text = page.read_text(encoding="utf-8")
    name, code = page.relative_to(ROOT), False
    for number, line in enumerate(text.split("\n"), 1):
        code ^= line.lstrip().startswith("```")
        if not code and len(line) > MAX_COLUMNS and not line.startswith(("|", "![")):
            yield f"{name}:{number}: {len(line)} columns, at most {MAX_COLUMNS}"
        for fault in tidy.wrong_words(line):
            yield f"{name}:{number}: {fault}"
        for link in [] if code else links(line):
            if re.match(r"\w+:", link):
                continue
            file, _, anchor = link.partition("#")
            target = (page.parent / file).resolve() if file else page
            if not target.exists():
                yield f"{name}:{number}: no {file}, to which it links"
            elif anchor and anchor not in headings(target.read_text(encoding="utf-8")):
                yield f"{name}:{number}: {file or name} has no heading #{anchor}"


def variables_without_words():
    """Environment variables that C++ reads and their page does not name."""
    named = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", (ROOT / VARIABLES).read_text(encoding="utf-8")))
    sources = [path for part in READ_BY for path in sorted((ROOT / part).rglob("*.cpp"))]
    for path in sources:
        for name in sorted(set(READS.findall(path.read_text(encoding="utf-8"))) - named):
            yield f"{path.relative_to(ROOT)}: reads {name}, which {VARIABLES} does not name"


def suites_without_words():
    listed = {line.split()[0] for line in (ROOT / SUITES).read_text(encoding="utf-8").splitlines()}
    built = set(re.findall(r"tandem_bench\((\w+) ", (ROOT / "bench/CMakeLists.txt").read_text(encoding="utf-8")))
    built |= set(re.findall(r"suite == (\w+)", (ROOT / "tandem").read_text(encoding="utf-8")))  # tools of tools/bench/
    return [f"{SUITES}: {name} is {'not built' if name in listed else 'not there'}" for name in sorted(listed ^ built)]


def snippet(file, name):
    """The text between the marks, or None."""
    path = ROOT / file
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    found = re.search(rf"^[ ]*// \[{name}\][^\n]*\n(.*?)^[ ]*// \[/{name}\]$", text, re.MULTILINE | re.DOTALL)
    return textwrap.dedent(found.group(1)) if found else None


def main():
    update = sys.argv[1:] == ["--update"]
    if sys.argv[1:] and not update:
        print(__doc__.splitlines()[0], "\nusage: docs_in_step.py [--update]", file=sys.stderr)
        return 2
    problems = []

    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")

        def check(block):
            where = f"{page}:{text.count(chr(10), 0, block.start()) + 1}"
            if block["file"] is None:
                problems.append(f"{where}: a code block that no test compiles; put it into tests/docs and name it")
                return block[0]
            code = snippet(block["file"], block["name"])
            if code is None:
                problems.append(f"{where}: {block['file']} has no snippet [{block['name']}]")
                return block[0]
            if code != block["code"] and not update:
                problems.append(f"{where}: not what {block['file']} [{block['name']}] says; tools/docs_in_step.py --update")
            return f"<!-- {block['file']}: {block['name']} -->\n```cpp\n{code}```"

        wanted = BLOCK.sub(check, text)
        if update:
            (ROOT / page).write_text(wanted, encoding="utf-8")
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        problems += page_faults(page)
    problems += index_faults(pages)
    problems += [*variables_without_words(), *suites_without_words()]
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
