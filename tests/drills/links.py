#!/usr/bin/env python3
"""Links, pipes, folders and files of others where a run has its own names.

At each path below the output folder that a run makes, replaces or removes, something else is put: a link to a file, to a
folder or to nothing, a file with a second name, a pipe, a folder, a file. Then the demo trains, goes on or begins again there.
Beside the output folder lies a tree of others, which the links lead to: afterwards every name and byte of it must be as it was,
and so must be what has a name inside of the output folder that is not the run's. Each case has to end in time, with the exit
code that belongs to it, and where that is 6 or 2 with one line that says why.

    tests/drills/links.py [--quick] [--bin BIN]

`--quick`: a case of each kind of path. The last line of the output is the summary, one JSON object; exit code 1 where something
is wrong.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from drill import default_bin, demo_flags, scratch

LIMIT_S = 120
NONCE = "0123456789abcdef"
REPORTS = ["metrics.jsonl", "summary.json", "notes.txt", "report.html", "resolved_config.json", "config_keys.txt",
           "memory_plan.json"]
LINKS = ["link to a file", "link to a folder", "link to nothing"]
MOVED = "link to where it was moved"
KINDS = [*LINKS, "second name", "pipe", "folder", "file"]
# Names that begin like ours.
OTHERS = ["checkpoints/step-00000002.tmp-mine", "checkpoints/step-00000002.tmp-old", "model.old", "model.tmp-20261128",
          ".summary.json.tmp-7-0"]


def put(kind, path, beside):
    if kind == MOVED:
        shutil.move(path, beside / path.name)
        path.symlink_to(beside / path.name)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if kind in LINKS:
        path.symlink_to({"link to a file": beside / "thesis.tex", "link to a folder": beside / "folder"}.get(kind, beside / "none"))
    elif kind == "second name":
        os.link(beside / "thesis.tex", path)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        (path / "within").mkdir(parents=True)
        (path / "within/notes.txt").write_text("of another")
    else:
        path.write_text("of another")


def tree(folder):
    """Returns every name in the folder with its kind and content, but without times."""
    found = {}
    for path in sorted([folder, *folder.rglob("*")]) if folder.exists() or folder.is_symlink() else []:
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = "-> " + os.readlink(path)
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = "folder" if path.is_dir() else "other"
    return found


def cases():
    """(path, kind, how the run begins, exit code)."""
    for name in REPORTS:
        for kind in KINDS:
            refused = kind in ("pipe", "folder") or (name == "metrics.jsonl" and kind in LINKS)
            yield name, kind, "train", 2 if refused else 0
    for lock in ("run.lock", "checkpoints/run.lock"):
        for kind in KINDS:
            yield lock, kind, "train", 0 if kind == "file" else 2
    for kind in KINDS:
        yield "model", kind, "train", 0 if kind == "folder" else 2
        yield "checkpoints", kind, "train", 0 if kind in ("folder", "link to a folder") else 2
        # Something has a checkpoint's name, and no run begins over that.
        yield "checkpoints/step-00000002", kind, "train", 2
        # An older one is the newest whole one, or the newest is none.
        yield "checkpoints/step-00000002", kind, "resume", 0
        # The run comes to save a step whose place is taken by what is no checkpoint.
        yield "checkpoints/step-00000004", kind, "resume", 6
        yield "checkpoints/step-00000006", kind, "resume", 6
        for name in ("manifest.json", "state.json", "config.json"):
            yield f"checkpoints/step-00000004/{name}", kind, "resume", 0
    # A whole checkpoint, or a file of one, by way of a link: an older one is the newest whole one.
    for name in ("", "/manifest.json", "/state.json", "/master-00001-of-00001.safetensors"):
        # The link stays, and is in the way of the save of its step.
        yield f"checkpoints/step-00000004{name}", MOVED, "resume", 0 if name else 6
    for kind in KINDS:
        yield "checkpoints/step-00000002/within", kind, "resume", 0
        yield f"checkpoints/step-00000002.tmp-{NONCE}", kind, "resume", 0
        yield f"checkpoints/step-00000002.tmp-old-{NONCE}", kind, "resume", 0
        yield f"model.tmp-{NONCE}", kind, "train", 0
        yield f".summary.json.tmp-{NONCE}", kind, "train", 0
        yield "earlier-1", kind, "again", 0
    for name in OTHERS:
        for kind in KINDS:
            yield name, kind, "resume" if name.startswith("checkpoints") else "train", 0


def quick():
    """A case of each kind of path: its links that lead to a folder, and its pipes."""
    seen = set()
    for case in cases():
        name, kind, how, _ = case
        sort = "report" if name in REPORTS[1:] else "other" if name in OTHERS else name
        if kind in ("link to a folder", "pipe", MOVED) and (sort, kind, how) not in seen:
            seen.add((sort, kind, how))
            yield case


def flags(output, steps, *more):
    return demo_flags(output, steps, ("--max_length", 48, "--save_every", 2, *more))


def train(options, *arguments):
    return subprocess.run([str(options.bin / "finetune_zero3"), *map(str, arguments)], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False)


def begun(options, folder):
    """The output folder of a run that has ended behind step 4, and kept its checkpoints."""
    done = train(options, *flags(folder, 4, "--keep", 9))
    if done.returncode != 0:
        sys.exit(f"no run to begin with:\n{done.stdout}{done.stderr}")


def try_case(options, case, place, prepared):
    name, kind, how, expected = case
    shutil.rmtree(place, ignore_errors=True)
    beside, output = place / "beside", place / "output"
    (beside / "folder/deep").mkdir(parents=True)
    (beside / "thesis.tex").write_text("precious")
    (beside / "folder/deep/id_rsa").write_text("precious")
    if how == "train":
        output.mkdir()
    else:
        shutil.copytree(prepared, output)
    put(kind, output / name, beside)
    stays = name in OTHERS or (how == "resume" and name.endswith(("step-00000002", "step-00000004", "step-00000006")))
    kept = [beside, *([output / name] if stays else [])]
    before = [tree(one) for one in kept]
    more = {"train": ["--keep", 1], "resume": ["--keep", 1, "--resume", "auto"], "again": ["--keep", 9]}[how]
    try:
        done = train(options, *flags(output, 8, *more))
    except subprocess.TimeoutExpired:
        return ["it hangs"]
    wrong = []
    after = [tree(one) for one in kept]
    if name == "checkpoints" and kind == "link to a folder":  # where the user has led them
        after[0] = {path: what for path, what in after[0].items() if "step-" not in path}
    for old, new in zip(before, after):
        wrong += [f"{path} was {what}, and is {new.get(path, 'gone')}" for path, what in old.items() if new.get(path) != what]
        wrong += [f"{path} has come" for path in new.keys() - old.keys()]
    if done.returncode != expected:
        wrong.append(f"exit code {done.returncode}, not {expected}: {done.stderr.strip()[-300:]}")
    lines = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    if expected == 2 and (len(lines) != 1 or len(done.stderr.splitlines()) != 1):
        wrong.append(f"not one line: {done.stderr.strip()[-300:]}")
    if kind == MOVED and ("resume   after step 2" not in done.stdout or "link" not in done.stdout):
        wrong.append(f"it does not go on from step 2, with a line of the link: {done.stdout[-300:]}")
    if expected == 6 and " is not saved, and the run goes on" not in done.stderr:
        wrong.append("no line says what failed")
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, default=default_bin())
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    tried = faults = 0
    with scratch() as place:
        prepared = Path(place) / "prepared"
        begun(options, prepared)
        for case in quick() if options.quick else cases():
            wrong = try_case(options, case, Path(place) / "case", prepared)
            tried += 1
            faults += 1 if wrong else 0
            for line in wrong:
                print(f"{case[0]} is a {case[1]}, {case[2]}: {line}", flush=True)
    print(json.dumps({"cases": tried, "faults": faults}))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
