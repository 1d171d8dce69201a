"""Before ./tandem train and inspect: data that the program does not read itself becomes a token file in the cache.

The program is then run with that file in the data's place. The cache's key is everything that the file depends on: the
data's files by size and time, the tokenizer's and the templates' contents, the flags. Nothing beyond Python itself is
imported: `./tandem prepare` installs what it needs.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from prepare import files, formats, mixture
from prepare.errors import UserError

SCRIPT = Path(__file__).resolve().parents[2] / "tandem"  # of the source tree; pip installs the command itself
FRONT_DOOR = [str(SCRIPT)] if SCRIPT.is_file() else [sys.executable, "-P", "-m", "tandem"]
KEY_VERSION = 1  # of what prepare makes of the same input
# Flags that no program knows, with the value that asks for nothing.
ONLY_PREPARES = {"--dataset_format": "auto", "--chat_template": None, "--sample_by": None, "--skip_refused": None}
SWITCH = ""  # the value of a flag that has none
BOTH = ("--loss_on", "--append_eos", "--max_length")
DATA = ("--dataset_name", "--eval_dataset")
RECIPE = {"--loss_on": "all", "--append_eos": "off"}  # of deepspeed_example: examples/support/finetune_flags.cpp
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "additional_chat_templates/*.jinja")


class NotUnderstood(Exception):
    """Flags that the program is to judge."""


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise NotUnderstood(message)


def parse(arguments):
    """(flag -> value of those that matter here, the others in their order)."""
    parser = Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--model_name", "--model_name_or_path", dest="--model_name")
    parser.add_argument("--max_length", "--max_seq_length", dest="--max_length")
    parser.add_argument("--recipe", dest="--recipe")
    for flag in (*DATA, *ONLY_PREPARES, "--loss_on", "--append_eos"):
        parser.add_argument(flag, dest=flag, **({"action": "store_const", "const": SWITCH} if flag == "--skip_refused" else {}))
    known, others = parser.parse_known_args(arguments)
    return {flag: value for flag, value in vars(known).items() if value is not None}, others


def is_read_natively(name):
    """Whether the program reads it, or is to say what is wrong with it: a token file, or instructions in one file."""
    if name.endswith(".tokens"):
        return True
    try:
        found = files.data_files(name)
    except UserError:
        return "," not in name and ":" not in name
    if len(found) > 1 or found[0].suffix not in {".json", ".jsonl"}:
        return False
    first = next(files.records(found[0]), None)
    return first is None or formats.detect(first) == "alpaca"


def cache_folder():
    base = os.environ.get("TANDEM_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tandem")
    return Path(base) / "tokens"


def state_of(path):
    state = path.stat()
    return [str(path.resolve()), state.st_size, state.st_mtime_ns]


def cached_file(name, model, flags):
    """Where the token file of this data lies, or will."""
    folder = files.model_folder(model)
    data = [state_of(path) for part in mixture.parse(name) for path in files.data_files(part.name)]
    texts = [path for pattern in TOKENIZER_FILES for path in sorted(folder.glob(pattern))]
    template = Path(flags.get("--chat_template", ""))
    if template.is_file():
        texts.append(template)
    contents = [hashlib.sha256(path.read_bytes()).hexdigest() for path in texts]
    key = hashlib.sha256(json.dumps([KEY_VERSION, name, data, contents, sorted(flags.items())]).encode()).hexdigest()[:16]
    stem = "".join(c if c.isalnum() or c in "._-" else "-" for c in Path(name).name)[:60]
    return cache_folder() / f"{stem}-{key}.tokens"


def prepared(name, model, flags):
    """The token file's path; made now unless it is there."""
    path = cached_file(name, model, flags)
    if path.is_file():
        print(f"prepare  {name}: {path} (made earlier)", file=sys.stderr)
        return str(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [*FRONT_DOOR, "prepare", "--model_name", model, "--dataset_name", name, "--output", str(path)]
    done = subprocess.run([*command, *words(flags)], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    print(f"prepare  {name}: {path}, {done.stdout.splitlines()[0].removeprefix('data').strip()}", file=sys.stderr)
    return str(path)


def with_prepared_data(arguments):
    """The program's arguments."""
    flags, others = parse(arguments)
    of_prepare = {flag: flags[flag] for flag in (*ONLY_PREPARES, *BOTH) if flag in flags}
    if flags.get("--recipe") == "deepspeed_example":
        of_prepare = {**RECIPE, **of_prepare}
    asks = any(flags.get(flag, usual) != usual for flag, usual in ONLY_PREPARES.items())
    for flag in DATA:
        if flag in flags and "--model_name" in flags and (not is_read_natively(flags[flag]) or asks and not flags[flag].endswith(".tokens")):
            flags[flag] = prepared(flags[flag], flags["--model_name"], of_prepare)
    kept = {flag: value for flag, value in flags.items() if flag not in ONLY_PREPARES}
    return [*others, *words(kept)]


def words(flags):
    return [word for flag, value in flags.items() for word in ((flag,) if value == SWITCH else (flag, value))]


def main():
    program, *arguments = sys.argv[1:]
    try:
        arguments = with_prepared_data(arguments)
    except NotUnderstood:
        pass
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: [prepare] {error.strerror or error}: {error.filename}; free space or choose another TANDEM_CACHE", file=sys.stderr)
        return 1
    sys.stdout.flush()
    os.execv(program, [program, *arguments])


if __name__ == "__main__":
    sys.exit(main())
