#!/usr/bin/env python3
"""The paths that a run touches: a record of its system calls.

The demo trains with checkpoints, a model, reports, a trace and optimizer state on NVMe, is resumed, and begins again over the
run that has ended; strace writes down every call that takes a path. Promised, and looked at in the record:

- what is made, written to, renamed or removed lies in the output folder, the cache, the NVMe folder, the temporary folder, or
  is the process's own in /proc, /dev or /dev/shm;
- within the output folder, its checkpoints (behind a link here) and the NVMe folder every such call, and every opening, goes
  from a folder's descriptor, and follows no link (O_NOFOLLOW, or RESOLVE_NO_SYMLINKS);
- files that docs/security.md calls private are made with 0600;
- no path of a tree beside is named at all.

    tests/drills/touched.py [--bin BIN]

The last line of the output is the summary, one JSON object; exit code 1 where something is wrong, 77 where there is no strace.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from drill import default_bin, demo_flags, scratch

LIMIT_S = 300
CALLS = {"open", "openat", "openat2", "creat", "mkdir", "mkdirat", "rename", "renameat", "renameat2", "unlink", "unlinkat",
         "rmdir", "link", "linkat", "symlink", "symlinkat", "mknod", "mknodat", "truncate", "bind"}
CALL = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)")
WRITES = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_TMPFILE")
# "FD<PATH>" or AT_FDCWD<PATH>, a comma, a name; or a name alone.
PLACE = re.compile(r'(?:(AT_FDCWD|\d+)(?:<([^>]*)>)?, )?"((?:[^"\\]|\\.)*)"')
OWN = ("/proc/", "/dev/", "/sys/")
PRIVATE = re.compile(r"/(run\.lock|\.room\.tmp-\w+|\.tandem\.tmp-\w+)$")


class Touch:
    """A call, with the places that it names."""

    def __init__(self, line):
        found = CALL.match(line)
        self.line, self.name, self.arguments, self.result = line, *found.groups()
        self.places = []  # (path, whether it is reached from a folder's descriptor)
        for folder, folder_path, name in PLACE.findall(self.arguments):
            by_descriptor = folder not in ("", "AT_FDCWD") and not name.startswith("/")
            self.places.append((os.path.normpath(os.path.join(folder_path or "/", name)), by_descriptor))

    @property
    def worked(self):
        return int(self.result) >= 0

    @property
    def changes(self):
        return WRITES.search(self.arguments) if self.name in ("open", "openat", "openat2") else True

    @property
    def follows(self):
        opens = self.name in ("open", "openat", "openat2", "creat", "truncate")
        return opens and not re.search(r"O_NOFOLLOW|RESOLVE_NO_SYMLINKS|O_EXCL", self.arguments)


def touches(record):
    """The calls of a record, with those that strace has cut in two put together."""
    begun = {}
    for line in record.read_text(errors="replace").splitlines():
        thread = line.split(" ", 1)[0]
        if line.endswith("<unfinished ...>"):
            begun[thread] = line.removesuffix("<unfinished ...>")
            continue
        resumed = re.match(r"^\d+ +<\.\.\. \w+ resumed>(.*)$", line)
        if resumed:
            line = begun.pop(thread, "") + resumed.group(1)
        found = CALL.match(line)
        if found and found.group(1) in CALLS:
            yield Touch(line)


def lies_in(path, folders):
    return any(path == str(folder) or path.startswith(f"{folder}/") for folder in folders)


def faults_of(touch, places):
    """`places`: the folders of the run."""
    within = [places["output"], places["far"], places["nvme"]]
    wrong = []
    for path, by_descriptor in touch.places:
        if lies_in(path, [places["beside"]]):
            wrong.append("names a path of others")
        if not touch.worked:
            continue
        if touch.changes and not lies_in(path, [*within, places["cache"], places["temporary"]]) and not path.startswith(OWN):
            wrong.append("touches what is not the run's")
        # The folder itself is found by its path, once; a socket has no call from a descriptor.
        itself = path in [str(folder) for folder in [*within, places["output"] / "checkpoints"]]
        if lies_in(path, within) and not itself and touch.name != "bind" and (not by_descriptor or touch.follows):
            wrong.append("goes by a path" if not by_descriptor else "follows a link")
        if "O_CREAT" in touch.arguments and PRIVATE.search(path) and not touch.arguments.rstrip().endswith("0600"):
            wrong.append("makes a private file for others")
        if "O_TMPFILE" in touch.arguments and not touch.arguments.rstrip().endswith("0600"):
            wrong.append("makes a private file for others")
    return wrong


def record(options, place, name, steps, *more):
    """Returns the record of a run of the demo; exits if the run fails."""
    written = place / f"{name}.strace"
    environment = dict(os.environ, HOME=str(place / "home"), XDG_CACHE_HOME=str(place / "cache"), TMPDIR=str(place / "temporary"),
                       XDG_RUNTIME_DIR=str(place / "temporary"), TANDEM_CACHE=str(place / "cache"))
    for folder in ("home", "cache", "temporary", "nvme"):
        (place / folder).mkdir(exist_ok=True)
    command = ["strace", "-f", "-qq", "-y", "-s", "4096", "--seccomp-bpf", "-e", "trace=" + ",".join(f"?{call}" for call in CALLS),
               "-o", written, options.bin / "finetune_zero3",
               *demo_flags(place / "output", steps, ("--max_length", 48, "--save_every", 2, *more))]
    done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, env=environment, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        sys.exit(f"{name} ended with {done.returncode}:\n{done.stdout}")
    return written


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, default=default_bin())
    options = parser.parse_args()
    tried = shutil.which("strace") and subprocess.run(["strace", "-f", "--seccomp-bpf", "-o", "/dev/null", "true"],
                                                      capture_output=True, check=False)
    if not tried or tried.returncode != 0:
        print("skipped: there is no strace here, or it may not trace")
        return 77
    runs = calls = 0
    wrong = Counter()
    with scratch() as folder:
        place = Path(folder).resolve()
        for name in ("output", "far", "beside"):
            (place / name).mkdir()
        (place / "beside/thesis.tex").write_text("precious")
        (place / "output/checkpoints").symlink_to(place / "far")  # as a user does who has another disk
        places = {name: place / name for name in ("output", "far", "nvme", "cache", "temporary", "beside")}
        state = ("--placement", "nvme", "--nvme_path", place / "nvme", "--keep", 1)
        for name, steps, more in (("train", 4, (*state, "--trace")),
                                  ("resume", 8, (*state, "--resume", "auto")), ("again", 2, ("--keep", 1))):
            runs += 1
            for touch in touches(record(options, place, name, steps, *more)):
                calls += 1
                for fault in faults_of(touch, places):
                    wrong[f"{name} {fault}: {touch.line.split(' ', 1)[1]}"] += 1
    for line, count in wrong.items():
        print(f"{count} x {line}")
    print(json.dumps({"runs": runs, "calls": calls, "faults": len(wrong)}))
    return 1 if wrong or calls == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
