"""What a name stands for in the hub's cache, and which files of a folder of data are trained on.

The program finds the same: models/hub/hub_paths.cpp and models/hub/training_files.cpp.
"""

import os
import re
from pathlib import Path

from prepare.errors import UserError

SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test", "eval": "test", "evaluation": "test",
          "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation"}


def path_in(variable):
    """An environment variable that is set to something, or None."""
    value = os.environ.get(variable)
    return Path(os.path.expanduser(value)) if value else None


def cache():
    """As huggingface_hub has it."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if path_in(variable):
            return path_in(variable)
    home = path_in("HF_HOME") or (path_in("XDG_CACHE_HOME") or Path(os.path.expanduser("~/.cache"))) / "huggingface"
    return home / "hub"


def main_revision(repository):
    """The revision that refs/main names, or None."""
    try:
        words = (repository / "refs" / "main").read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError):
        return None
    return words[0] if words and "/" not in words[0] else None


def snapshot(kind, name):
    """The folder of a repository ("models" or "datasets") that its main branch stands for; without such a branch the
    only whole one, or the newest of them. None: there is none."""
    repository = cache() / f"{kind}--{name.replace('/', '--')}"

    def is_whole(folder):
        return (folder / "config.json").is_file() if kind == "models" else folder.is_dir()

    revision = main_revision(repository)
    if revision:
        folder = repository / "snapshots" / revision
        if is_whole(folder):
            return folder
        if folder.is_dir():
            raise UserError(f"[prepare] the download of {name} is not whole ({folder} has no config.json); finish it (./tandem fetch model {name})")
    found = [path for path in (repository / "snapshots").glob("*") if is_whole(path)]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def split_of(path):
    """The split that the words of a path name, or None; the last word counts."""
    words = [SPLITS[word] for word in re.findall(r"[a-z]+", str(path).lower()) if word in SPLITS]
    return words[-1] if words else None


def training(folder, found):
    """Those of the files found in a folder that are trained on: of the split train, or else of no split."""
    splits = {path: split_of(path.relative_to(folder)) for path in found}
    return [path for path in found if splits[path] == "train"] or [path for path in found if splits[path] is None]
