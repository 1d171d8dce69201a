"""Finds the folder that a name stands for in the hub's cache, and the files of a folder of data that are trained on.

The program finds the same: models/hub/hub_paths.cpp and models/hub/training_files.cpp.
"""

import os
import re
from pathlib import Path

from prepare.errors import UserError

SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test", "eval": "test", "evaluation": "test",
          "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation"}


def path_in(variable):
    """An environment variable that is set to something, with the home and the variables in it, or None."""
    value = os.environ.get(variable)
    return Path(os.path.expandvars(os.path.expanduser(value))) if value else None


def cache():
    """As huggingface_hub has it, which looks for variables in HF_HOME and in the path below it."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if path_in(variable):
            return path_in(variable)
    home = path_in("HF_HOME") or (path_in("XDG_CACHE_HOME") or Path(os.path.expanduser("~/.cache"))) / "huggingface"
    return Path(os.path.expandvars(home / "hub"))


def id_and_revision(name):
    """A hub id and the revision behind it, "org/name@v1.0"; without one ""."""
    at = name.find("@", 1)
    return (name, "") if at < 0 or at + 1 == len(name) else (name[:at], name[at + 1:])


def commit_of(repository, revision):
    """The commit that refs/ names so (a branch, a tag, "refs/pr/1"), or None."""
    below = os.path.normpath(revision)
    if below.startswith(("/", "..")):
        return None
    try:
        words = (repository / "refs" / below).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError):
        return None
    return words[0] if words and "/" not in words[0] else None


def snapshot(kind, name):
    """The folder of a repository ("models" or "datasets") that stands for the revision behind its name; without one for
    its main branch, and where there is no such branch the only whole one, or the newest of them. None: there is none."""
    name, revision = id_and_revision(name)
    repository = cache() / f"{kind}--{name.replace('/', '--')}"
    room = kind.removesuffix("s")
    fetch = f"download it (./tandem fetch {room} {name}{'@' if revision else ''}{revision})"

    def is_whole(folder):
        return (folder / "config.json").is_file() if kind == "models" else folder.is_dir()

    def whole(folder):
        if not is_whole(folder):
            raise UserError(f"[prepare] the download of {name} is not whole ({folder} has no config.json); {fetch}")
        return folder

    commit = commit_of(repository, revision or "main")
    if commit and (repository / "snapshots" / commit).is_dir():
        return whole(repository / "snapshots" / commit)
    there = list((repository / "snapshots").glob("*"))
    if not revision:
        return max((path for path in there if is_whole(path)), key=lambda path: path.stat().st_mtime, default=None)
    found = [path for path in there if path.name == revision] or [path for path in there if path.name.startswith(revision)]
    if len(found) == 1:
        return whole(found[0])
    if not repository.is_dir():
        return None
    many = "several that begin as" if found else "no"
    raise UserError(f"[prepare] {name} has {many} revision {revision} in the cache ({repository}); {fetch}")


def is_hidden(path):
    """Notebooks, archives and downloads leave copies under such names; `datasets` reads none of them."""
    return any(part.startswith((".", "__")) for part in Path(path).parts)


def split_of(path):
    """The split that the words of a path name, or None; the last word counts."""
    words = [SPLITS[word] for word in re.findall(r"[a-z]+", str(path).lower()) if word in SPLITS]
    return words[-1] if words else None


def training(folder, found):
    """Those of the files found in a folder that are trained on: of the split train, or else of no split."""
    splits = {path: split_of(path.relative_to(folder)) for path in found}
    return [path for path in found if splits[path] == "train"] or [path for path in found if splits[path] is None]


def shards_of(found):
    """(folder, name) -> {number of shards -> those that are there} of files called as "train-00000-of-00002.parquet"."""
    shards = {}
    for path in found:
        named = re.fullmatch(r"(.*?)-(\d{5})-of-(\d{5})\b.*", path.name)
        if named:
            shards.setdefault((path.parent, named[1]), {}).setdefault(int(named[3]), set()).add(int(named[2]))
    return shards


def check_splits(found, name):
    """UserError: the files are of several splits, as "train_sft" and "train_gen", which are no parts of one."""
    stems = {}
    for folder, stem in shards_of(found):
        stems.setdefault(folder, []).append(stem)
    several = next((names for names in stems.values() if len(names) > 1), None)
    if several:
        raise UserError(f"[prepare] dataset {name} has several splits to train on: {', '.join(sorted(several))}; name the files of one, with commas between them")


def notes_of_shards(found):
    """Lines about shards that are missing, or that two writings left."""
    for (folder, stem), counts in shards_of(found).items():
        whole = " and ".join(str(count) for count in sorted(counts))
        if len(counts) > 1:
            yield f"{folder} has shards of two writings of {stem}, in {whole} parts; all of them are read"
        elif len(there := next(iter(counts.values()))) < (count := next(iter(counts))):
            yield f"{folder} has {len(there)} of the {count} shards of {stem}; the others are not there"
