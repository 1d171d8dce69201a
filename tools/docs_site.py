#!/usr/bin/env python3
"""Builds the pages as a site in build/docs/site, by Sphinx with docs/site/conf.py; warnings are errors.

usage: docs_site.py [--serve [--port N]]

A warning is, among others, a link to a page, a heading or a file that is not there, and a page that no section of the index
names. An API reference in build/docs/html (`./tandem docs`) becomes the site's api/. `--serve` then serves the site on
127.0.0.1 until it is interrupted. Exit 77, with one line, where Sphinx is not installed.
"""

import argparse
import functools
import http.server
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "docs"
NEEDED = ("sphinx", "myst_parser", "furo", "sphinxcontrib.mermaid")
SKIPPED = 77


def missing():
    def is_there(module):
        try:
            return importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:  # of a package around it
            return False

    return [module for module in NEEDED if not is_there(module)]


def build(out):
    """Sphinx's exit status; the site lies in `out`/site."""
    has_api = (out / "html" / "index.html").exists()
    command = [sys.executable, "-m", "sphinx", "--builder", "html", "--fail-on-warning", "--keep-going", "--quiet", "--jobs", "auto",
               "-D", f"html_context.has_api={1 if has_api else ''}"]
    status = subprocess.run([*command, "-c", ROOT / "docs" / "site", "-d", out / "doctrees", ROOT, out / "site"], check=False).returncode
    if status == 0:
        (out / "site" / "index.html").write_text('<meta http-equiv="refresh" content="0; url=README.html">\n', encoding="utf-8")
        if has_api:
            shutil.copytree(out / "html", out / "site" / "api", dirs_exist_ok=True)
    return status


def serve(folder, port):
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"docs: http://127.0.0.1:{server.server_address[1]}/, until Ctrl-C", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--serve", action="store_true")
    flags.add_argument("--port", type=int, default=8000, help="0: a free one")
    flags.add_argument("--out", type=Path, default=OUT, help="the folder that gets site/ (%(default)s)")
    flags = flags.parse_args()
    if lacking := missing():
        print(f"docs_site: skipped, because {', '.join(lacking)} is not installed; ./tandem setup test installs it")
        return SKIPPED
    status = build(flags.out)
    if status == 0:
        print(f"docs: {flags.out / 'site' / 'index.html'}", flush=True)
        if flags.serve:
            serve(flags.out / "site", flags.port)
    return status


if __name__ == "__main__":
    sys.exit(main())
