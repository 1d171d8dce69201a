"""Bounds of what foreign data may ask for: sizes of records and batches, memory, the time of a template.

Each is far beyond what training data has. Data beyond a bound is refused by name, so that a file of some kilobytes
cannot take all memory of a machine, or all time.
"""

import contextlib
import os
import re
import resource
import signal
import threading
from pathlib import Path

from prepare.errors import Refused, UserError

MOST_RECORD_CHARACTERS = 1 << 28  # of a line, a JSON value, a row of csv, a paragraph
MOST_TEXT_CHARACTERS = 1 << 25  # of a text that is tokenised as one
MOST_CHAT_CHARACTERS = 1 << 28  # of all beginnings of one chat together
MOST_RECORD_TOKENS = 1 << 27
MOST_DEPTH = 100  # of lists and objects in one another
BATCH_CHARACTERS = 1 << 22  # of what is tokenised at a time
# Packed files and tables may unpack to this, and to that many times their own size: no text of a person packs so well.
FREE_UNPACKED_BYTES = 1 << 30
MOST_UNPACKED_RATIO = 256
SMALL_FILE_BYTES = 1 << 24  # files up to this are unpacked once to see it, before time goes into their records
TEMPLATE_S = 30.0  # of processor time, which a busy or a sleeping machine does not lengthen, for one rendering
TEMPLATE_BYTES = 1 << 31  # beyond what the process has when it begins
MOST_TEMPLATE_CHARACTERS = 1 << 24
TOKENIZER_BYTES_PER_BYTE = 100  # of memory, as measured for words; other scripts take up to three times as much


class Unpacked:
    """Counts the bytes that a file unpacks to."""

    def __init__(self, path):
        self.path = path
        self.size = path.stat().st_size
        self.left = FREE_UNPACKED_BYTES + MOST_UNPACKED_RATIO * self.size

    def add(self, count):
        self.left -= count
        if self.left < 0:
            raise UserError(f"[prepare] {self.path} has {self.size} bytes and unpacks to more than {(FREE_UNPACKED_BYTES + MOST_UNPACKED_RATIO * self.size) >> 20} MB; give the data unpacked, if that is meant")


BRACKETS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{}]', re.DOTALL)
SCALAR = re.compile(r"[^,\]}\s]*")


class OutOfTime(BaseException):
    """No library between the timer and deadline() may take it for its own."""


def is_deep(text):
    """Whether lists and objects of a JSON text lie in one another beyond the bound."""
    if text.count("[") + text.count("{") <= MOST_DEPTH:
        return False
    depth = 0
    for match in BRACKETS.finditer(text):
        mark = match[0]
        depth += (mark in "[{") - (mark in "]}")
        if depth > MOST_DEPTH:
            return True
    return False


def end_of_value(text, begin):
    """The end of the JSON value that begins there, which need not be valid; None: it goes on behind the text."""
    if text[begin] not in '[{"':
        end = SCALAR.match(text, begin).end()
        return end if end < len(text) else None
    depth = 0
    for match in BRACKETS.finditer(text, begin):
        mark = match[0]
        if mark == '"':
            return None
        depth += (mark in "[{") - (mark in "]}")
        if depth <= 0:
            return match.end()
    return None


TOO_DEEP = f"its lists and objects lie more than {MOST_DEPTH} deep in one another"


def too_long():
    return Refused(f"it has more than {MOST_RECORD_CHARACTERS} characters; split it")


def weight(value):
    """About how many characters a record holds."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(weight, value.values()))
    if isinstance(value, list):
        return sum(map(weight, value)) if value and isinstance(value[0], (str, dict, list)) else 8 * len(value)
    return 8 * getattr(value, "size", 1)


def groups(texts):
    """Lists of texts, in order, of at most BATCH_CHARACTERS each, or of a single text."""
    group, size = [], 0
    for text in texts:
        if group and size + len(text) > BATCH_CHARACTERS:
            yield group
            group, size = [], 0
        group.append(text)
        size += len(text)
    if group:
        yield group


def address_space():
    """Bytes that this process has mapped."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def read_number(path):
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def memory_left():
    """Bytes that this process may still take, by its limits and by what the machine has; None: not known."""
    found = []
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        found.append(limit - address_space())
    for most, used in (("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
                       ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes")):
        if (limit := read_number(most)) is not None and (taken := read_number(used)) is not None:
            found.append(limit - taken)
    with contextlib.suppress(OSError):
        available = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
        if available:
            found.append(1024 * int(available[1]))
    return min(found, default=None)


def check_room_to_tokenise(text):
    """A tokenizer that finds no memory ends the process, so a long text needs its room before."""
    if len(text) > MOST_TEXT_CHARACTERS:
        raise Refused(f"its text has {len(text)} characters, at most {MOST_TEXT_CHARACTERS} are tokenised as one record; split it")
    if len(text) > BATCH_CHARACTERS:
        needed, left = TOKENIZER_BYTES_PER_BYTE * len(text), memory_left()
        if left is not None and needed > left:
            raise MemoryError(f"to tokenise a text of {len(text)} characters takes about {needed >> 20} MB of memory, and {left >> 20} MB are left")


@contextlib.contextmanager
def template_bounds(what):
    """A template's code is a stranger's: it gets a time and an amount of memory. UserError: it took more."""
    if threading.current_thread() is not threading.main_thread():  # signals reach no other
        yield
        return

    def end(*_):
        raise OutOfTime

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = address_space() + TEMPLATE_BYTES
    is_ours = soft == resource.RLIM_INFINITY or most < soft
    before = signal.signal(signal.SIGPROF, end)
    try:
        if is_ours:
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))
        signal.setitimer(signal.ITIMER_PROF, TEMPLATE_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except OutOfTime:
        raise UserError(f"[chat_template] {what} does not end within {TEMPLATE_S:g} s of processor time for one record; correct the template") from None
    except MemoryError:
        if not is_ours:
            raise
        raise UserError(f"[chat_template] {what} takes more than {TEMPLATE_BYTES >> 20} MB of memory for one record; correct the template") from None
    finally:
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
