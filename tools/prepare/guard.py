"""Runs work in a process of its own, so that even what no code can catch ends as one line and exit code 1.

A library that finds no memory aborts the process, a panic prints paragraphs, the kernel kills what takes too much. The
process that waits here says so in one line, passes signals on, and leaves nothing behind.
"""

import ctypes
import os
import signal
import sys

from prepare.errors import Ended, escaped, exit_code_of

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MOST_SAID_BYTES = 1 << 16
PR_SET_PDEATHSIG = 1


def end(number, _):
    """So that files are removed on the way out; a second signal does not disturb that."""
    for other in FORWARDED:
        signal.signal(other, signal.SIG_IGN)
    raise Ended(number)


def run_child(work, said):
    """Never returns."""
    code = 1
    try:
        os.dup2(said, 2)
        os.close(said)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        for number in FORWARDED:
            signal.signal(number, end)
        code = exit_code_of(work)
        sys.stderr.flush()
    except SystemExit as ended:
        sys.stdout.flush()
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    finally:
        os._exit(code)


def read_all(descriptor):
    """The text that comes until its end, the last part of it where it is long."""
    said = b""
    while block := os.read(descriptor, MOST_SAID_BYTES):
        said = (said + block)[-MOST_SAID_BYTES:]
    return said.decode(errors="backslashreplace")


def guarded(work, clean_up):
    """The exit code of work(), which returns one or raises; clean_up() is called where it could not do so itself."""
    said, writer = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(said)
        run_child(work, writer)
    os.close(writer)
    for number in FORWARDED:
        signal.signal(number, lambda number, _: os.kill(child, number))
    text = read_all(said)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0:
        sys.stderr.write(text)
        return 0
    lines = [line for line in text.splitlines() if line.strip()]
    error = next((line for line in reversed(lines) if line.startswith("error: ")), None)
    if status < 0:
        clean_up()
        name = signal.Signals(-status).name
        why = f": {lines[0]}" if lines else ""
        error = f"error: [memory] prepare was ended by {name}{why}; most likely memory was used up: give it more, or split the data"
    if error is not None:
        print(escaped(error), file=sys.stderr)
    elif status not in {130, 143, 129}:
        print(escaped(f"error: [prepare] ended with exit code {status}: {lines[0] if lines else 'it said nothing'}; please report it with the data"), file=sys.stderr)
    return 1 if status < 0 else status
