"""The configs of a data set, as its README.md lists them (`configs:` between the lines ---), and the files of one.

As `datasets` does: the one that is asked for; without that the only one, or the one that is the default. Training
uses a config's files of the split train. Several configs and none chosen is an error that names them.
"""

import re
from pathlib import Path

from prepare.errors import UserError, first_line

MOST_CHARACTERS = 1 << 22
DEFAULT = "default"


def front_matter(folder):
    """The text between the first two lines of ---; empty: there is none."""
    try:
        with open(Path(folder) / "README.md", encoding="utf-8-sig") as file:
            text = file.read(MOST_CHARACTERS)
    except (OSError, UnicodeDecodeError):
        return ""
    found = re.match(r"---[ \t]*\n(.*?)\n---[ \t]*(\n|$)", text, re.DOTALL)
    return found[1] + "\n" if found else ""


def has_configs(folder):
    """By the text alone, so that it is told without a package."""
    return re.search(r"^configs[ \t]*:", front_matter(folder), re.MULTILINE) is not None


def listed(folder):
    """name -> its object, in the order of the file."""
    import yaml

    try:
        found = yaml.safe_load(front_matter(folder))["configs"] or []
    except (yaml.YAMLError, TypeError, KeyError) as error:
        raise UserError(f"[prepare] {folder}/README.md: its configs are no YAML: {first_line(error)}; correct the file or name a data file") from None
    if not isinstance(found, list) or not all(isinstance(item, dict) and isinstance(item.get("config_name"), str) for item in found):
        raise UserError(f'[prepare] {folder}/README.md: its configs are no list of objects with a "config_name"; correct the file or name a data file')
    return {item["config_name"]: item for item in found}


def chosen(folder, name, wanted):
    """(name, object) of the config that is asked for, or of the one that counts without that."""
    found = listed(folder)
    usual = [key for key, item in found.items() if len(found) == 1 or item.get("default") is True] or [key for key in found if key == DEFAULT]
    config = wanted if wanted is not None else usual[0] if len(usual) == 1 else None
    if config not in found:
        what = f"has no config {wanted}" if wanted is not None else "has several configs"
        raise UserError(f"[prepare] dataset {name} {what}; choose one by --dataset_config: {', '.join(found) or '(README.md lists none)'}")
    return config, found[config]


def patterns(name, config, item):
    """Returns the patterns of the split train's files; None: the config lists no files."""
    given = item.get("data_files")
    if given is None:
        return None
    if isinstance(given, dict):
        given = [{"split": split, "path": path} for split, path in given.items()]
    given = [given] if isinstance(given, str) else given
    if not isinstance(given, list) or not all(isinstance(one, (str, dict)) for one in given):
        raise UserError(f'[prepare] dataset {name}: "data_files" of its config {config} is no list; correct README.md or name a data file')
    splits = [("train", one) if isinstance(one, str) else (one.get("split", "train"), one.get("path")) for one in given]
    paths = [path for split, path in splits if split == "train"]
    found = [text for path in paths for text in (path if isinstance(path, list) else [path])]
    if not found:
        raise UserError(f"[prepare] dataset {name}: its config {config} has no split train, but {', '.join(str(split) for split, _ in splits) or 'no file'}; name a data file")
    outside = next((text for text in found if not isinstance(text, str) or text.startswith("/") or ".." in Path(text).parts), None)
    if outside is not None:
        raise UserError(f"[prepare] dataset {name}: its config {config} has the path {outside}, which is none below its folder; name a data file")
    return found


def files_of(folder, name, wanted):
    """(the config's name, the files that it lists for training or None, the folder that it stands for)."""
    config, item = chosen(folder, name, wanted)
    place = item.get("data_dir")
    if place is not None and (not isinstance(place, str) or place.startswith("/") or ".." in Path(place).parts):
        raise UserError(f"[prepare] dataset {name}: its config {config} has the data_dir {place}, which is none below its folder; name a data file")
    base = folder / (place or ".")
    found = patterns(name, config, item)
    if found is None:
        return config, None, base
    paths = []
    for pattern in found:
        of_pattern = sorted(path for path in base.glob(pattern) if path.is_file() or path.is_symlink() and not path.exists())
        if not of_pattern:
            raise UserError(f"[prepare] dataset {name}: its config {config} asks for {pattern}, and no such file is in {base}; download the data set whole")
        paths += [path for path in of_pattern if path not in paths]
    return config, paths, base
