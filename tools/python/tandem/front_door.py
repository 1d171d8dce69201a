"""The `tandem` command of a pip installation: starts the programs in bin/, after preparing data that they do not read."""

import os
import sys

from tandem.safe_start import start_outside_of_the_current_folder

start_outside_of_the_current_folder()

import runpy  # noqa: E402
from importlib import metadata, util  # noqa: E402
from pathlib import Path  # noqa: E402

PREFIX = Path(__file__).resolve().parent
PROGRAM = PREFIX / "bin/tandem"
TOOLS = PREFIX / "share/tandem/tools"
BUILT_WITH = PREFIX / "share/tandem/torch_version.txt"
NEEDS = "jinja2", "pyarrow", "tokenizers", "transformers"  # of prepare


def die(text):
    print(f"error: {text}", file=sys.stderr)
    sys.exit(2)


def check_torch():
    """The programs load the environment's LibTorch, and another version has other symbols."""
    built = BUILT_WITH.read_text(encoding="utf-8").strip()
    try:
        found = metadata.version("torch").split("+")[0]
    except metadata.PackageNotFoundError:
        die(f"[install] tandem was built with torch {built}, and this environment has none; pip install torch=={built}")
    if found != built:
        die(f"[install] tandem was built with torch {built}, and this environment has {found}; pip install --force-reinstall "
            "--no-deps tandem from its sources, or install that torch")


def run_module(module, *arguments):
    """One of tools/, as ./tandem of the source tree runs it."""
    missing = [name for name in NEEDS if util.find_spec(name) is None]
    if missing and module != "prepare.for_training":  # which needs none, and starts `tandem prepare` for what does
        die(f"[install] this needs {', '.join(missing)}; pip install 'tandem[prepare]' from its sources brings them")
    sys.path.insert(0, str(TOOLS))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__")


def has_data(arguments):
    return any(argument.startswith(("--dataset_name", "--eval_dataset")) for argument in arguments)


def main():
    command, *arguments = sys.argv[1:] or ["--help"]
    if command == "fetch":
        sys.argv = ["fetch", *arguments]
        runpy.run_path(str(TOOLS / "fetch.py"), run_name="__main__")
        return
    if command == "prepare":
        run_module("prepare", *arguments)
        return
    check_torch()
    os.environ.setdefault("TANDEM_PYTHON", sys.executable)  # of --resume and convert, for files of torch
    if command == "train" and has_data(arguments):
        run_module("prepare.for_training", str(PREFIX / "bin/finetune_zero3"), *arguments)
    elif command in {"inspect", "launch"} and has_data(arguments):
        run_module("prepare.for_training", str(PROGRAM), command, *arguments)
    elif command == "generate" and "--chat" in arguments:
        run_module("prepare.chat", str(PROGRAM), command, *arguments)
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as ./tandem: idle compute threads give their core back at once
    os.execv(PROGRAM, [str(PROGRAM), command, *arguments])
