"""Before ./tandem train, inspect and launch: data that the program does not read itself becomes a token file in the cache.

The program is then run with that file in the data's place. The cache's key is everything that the file depends on: the
contents of the data, of the tokenizer's files, of the templates and of this code, and the flags. Nothing beyond Python
itself is imported: `./tandem prepare` installs what it needs.
"""

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from prepare import cache, configs, files, formats, mixture
from prepare.errors import Refused, UserError, exit_code_of, say

SCRIPT = Path(__file__).resolve().parents[2] / "tandem"  # of the source tree; pip installs the command itself
FRONT_DOOR = [str(SCRIPT)] if SCRIPT.is_file() else [sys.executable, "-P", "-m", "tandem"]
# Flags that no program knows, with the value that asks for nothing.
ONLY_PREPARES = {"--dataset_format": "auto", "--chat_template": None, "--dataset_config": None, "--columns": None, "--sample_by": None, "--skip_refused": None}
TRAINER = "finetune_zero3"
SWITCH = ""  # the value of a flag that has none
BOTH = ("--loss_on", "--append_eos", "--max_length")
DATA = ("--dataset_name", "--eval_dataset")
RECIPE = {"--loss_on": "all", "--append_eos": "off"}  # of deepspeed_example: trainer/finetune/flags.cpp
TOKENIZER_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
                   "tokenizer.model", "chat_template.jinja", "additional_chat_templates/*.jinja")


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
        others = ["--dataset_config_name"] if flag == "--dataset_config" else []
        parser.add_argument(flag, *others, dest=flag, **({"action": "store_const", "const": SWITCH} if flag == "--skip_refused" else {}))
    known, others = parser.parse_known_args(arguments)
    return {flag: value for flag, value in vars(known).items() if value is not None}, others


def is_read_natively(name):
    """Whether the program reads it, or is to say what is wrong with it: a token file, or instructions in one file."""
    if name.endswith(".tokens"):
        return True
    if not files.is_file(name) and has_configs(name):
        return False
    try:
        found = files.data_files(name)
    except UserError:
        return "," not in name and ":" not in name
    if len(found) > 1 or found[0].suffix not in {".json", ".jsonl"}:
        return False
    try:
        with contextlib.closing(files.records(found[0])) as records:
            first = next((record for record in records if not isinstance(record.value, Refused)), None)
    except UserError:
        return True
    return first is None or formats.detect(first) == "alpaca"


def has_configs(name):
    """Whether a data set's README.md lists configs, among which ./tandem prepare chooses."""
    try:
        return configs.has_configs(files.data_folder(name))
    except UserError:
        return False


def files_that_decide(name):
    """Returns the files of a data set; with configs, all that it has."""
    if files.is_file(name) or not has_configs(name):
        return files.data_files(name)
    folder = files.data_folder(name)
    return [folder / "README.md", *files.data_below(folder)]


def texts_that_decide(model, flags):
    """The files of the tokenizer and the templates."""
    folder = files.tokenizer_folder(model)
    found = [path for pattern in TOKENIZER_FILES for path in sorted(folder.glob(pattern))]
    template = flags.get("--chat_template", "")
    return [*found, Path(template)] if files.is_file(template) else found


def key_of(name, model, flags):
    """The hash of all that a token file follows from: contents, never names or times."""
    data = [path for part in mixture.parse(name) for path in files_that_decide(part.name)]
    pairs = [path.with_suffix(ending) for path in data if path.suffix in files.PAIRS for ending in sorted(files.PAIRS)]
    data += [path for path in pairs if files.is_file(path)]
    code = sorted(path for pattern in ("*.py", "templates/*.jinja") for path in Path(__file__).parent.glob(pattern))
    contents = [[str(path) if path in data else path.name, cache.hash_of(path)] for path in (*data, *texts_that_decide(model, flags), *code)]
    return hashlib.sha256(json.dumps([name, contents, sorted(flags.items())]).encode()).hexdigest()[:16]


def prepared(name, model, flags):
    """The token file's path; made now unless it is there, whole and this user's own."""
    key = key_of(name, model, flags)
    stem = "".join(c if c.isalnum() or c in "._-" else "-" for c in Path(name).name)[:60]
    path = cache.own_folder() / f"{stem}-{key}.tokens"
    fault = cache.fault_of(path)
    if fault is None:
        say(f"prepare  {name}: {path} (made earlier)", sys.stderr)
        return str(path)
    if fault:
        say(f"prepare  {name}: {path} {fault}, so it is made anew", sys.stderr)
    command = [*FRONT_DOOR, "prepare", "--model_name", model, "--dataset_name", name, "--output", str(path)]
    done = subprocess.run([*command, *words(flags)], stdout=subprocess.PIPE, text=True, umask=cache.OTHERS)
    if done.returncode:
        sys.exit(done.returncode)
    if key_of(name, model, flags) == key:  # else the data changed meanwhile, and the next start makes it anew
        cache.seal(path)
    data, *others = done.stdout.splitlines()
    say(f"prepare  {name}: {path}, {data.removeprefix('data').strip()}", sys.stderr)
    for line in others:
        if not line.startswith("wrote "):
            say(line, sys.stderr)
    return str(path)


def check_flags(program, arguments):
    """Ends here where the trainer refuses its flags: preparing data may take long."""
    if Path(program).name == TRAINER:
        code = subprocess.run([program, *arguments, "--check_flags"], stdout=subprocess.DEVNULL).returncode
        if code:
            sys.exit(code)


def with_prepared_data(arguments, check=lambda arguments: None):
    """The program's arguments. `check` is called with them before data are prepared."""
    flags, others = parse(arguments)
    of_prepare = {flag: flags[flag] for flag in (*ONLY_PREPARES, *BOTH) if flag in flags}
    if flags.get("--recipe") == "deepspeed_example":
        of_prepare = {**RECIPE, **of_prepare}
    asks = any(flags.get(flag, usual) != usual for flag, usual in ONLY_PREPARES.items())

    def kept():
        return [*others, *words({flag: value for flag, value in flags.items() if flag not in ONLY_PREPARES})]

    foreign = [flag for flag in DATA if flag in flags and "--model_name" in flags and
               (not is_read_natively(flags[flag]) or asks and not flags[flag].endswith(".tokens"))]
    if foreign:
        check(kept())
    for flag in foreign:
        flags[flag] = prepared(flags[flag], flags["--model_name"], of_prepare)
    return kept()


def words(flags):
    return [word for flag, value in flags.items() for word in ((flag,) if value == SWITCH else (flag, value))]


def prepared_arguments(arguments, check=lambda arguments: None):
    try:
        return with_prepared_data(arguments, check)
    except NotUnderstood:
        return arguments


def command_of(program, arguments):
    """(the words before its arguments, the program that gets the data, its arguments). `launch` starts the trainer on this host;
    where it starts another program, or ranks on other hosts, whose caches have no such token file, the first is None."""
    if arguments[:1] != ["launch"]:
        return [], program, arguments
    at = arguments.index("--") + 1 if "--" in arguments else len(arguments)
    own, command = arguments[:at], arguments[at:]
    on_hosts = any(word.startswith(("--host", "-H")) for word in own)
    is_trainer = command and Path(command[0]).name == TRAINER and not on_hosts
    return ([*own, command[0]], command[0], command[1:]) if is_trainer else (None, program, arguments)


def typed_flags(given, found):
    """For the trainer's reports: the flags that were typed in another way than it gets them."""
    before, after = parse(given)[0], parse(found)[0]
    return [f"--typed={flag}={value}" for flag, value in before.items() if after.get(flag) != value]


def run():
    program, *given = sys.argv[1:]
    before, reader, arguments = command_of(program, given)
    if before is not None:
        found = prepared_arguments(arguments, lambda changed: check_flags(reader, changed))
        told = typed_flags(arguments, found) if Path(reader).name == TRAINER and found != arguments else []
        given = [*before, *found, *told]
    sys.stdout.flush()
    os.execv(program, [program, *given])


if __name__ == "__main__":
    sys.exit(exit_code_of(run))
