import os
import sys
from pathlib import Path

from prepare.guard import guarded
from prepare.leftovers import remove_leftovers


def run():
    from prepare.command import main  # in the process that is guarded: it loads libraries

    return main()


def clean_up():
    arguments = sys.argv[1:]
    for flag, value in zip(arguments, [*arguments[1:], ""]):
        name, mark, given = flag.partition("=")
        if name == "--output":
            remove_leftovers(Path(given if mark else value))


os.environ.setdefault("RUST_BACKTRACE", "0")
sys.exit(guarded(run, clean_up))
