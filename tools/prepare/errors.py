"""How the commands end: a record that cannot be used, input that is wrong, and the one place that says so.

Whatever is raised becomes one line on standard error and an exit code: 2 where the user's input is wrong, 1 where the
machine (memory, disk) or Tandem itself is at fault. Text of others, such as names, members and other libraries' words,
is escaped here and nowhere else.
"""

import errno
import os
import sys
import traceback

MOST_LINE_CHARACTERS = 2000
# The path that the user gave is the reason of these.
PATH_ERRORS = {errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL}


class UserError(Exception):
    """One line, `[where] what; what to do`: exit code 2."""


class Refused(Exception):
    """The reason why one record cannot be used. Its reader says which record it is."""


class Ended(BaseException):
    """A signal asked this process to end; the argument is its number."""


def first_line(error):
    """Returns the first line of another library's error, without its paragraphs."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def escaped(text):
    """`text` as one line without control characters, half surrogates and marks that change the direction of text."""
    if len(text) > MOST_LINE_CHARACTERS:
        kept = MOST_LINE_CHARACTERS // 2
        text = f"{text[:kept]} [...] {text[-kept:]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(text, file=None):
    """Prints one line."""
    print(escaped(text), file=file or sys.stdout)


def place_of(error):
    """Where an error that nobody expected was raised: the last line of our own code."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if os.path.dirname(__file__) in frame.filename]
    return f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""


def verdict(error):
    """(exit code, the line)"""
    if isinstance(error, UserError):
        return 2, str(error)
    if isinstance(error, KeyboardInterrupt):
        return 130, ""
    if isinstance(error, Ended):
        return 128 + error.args[0], ""
    if isinstance(error, MemoryError):
        return 1, f"[memory] {first_line(error) if str(error) else 'the memory that this process may have is used up'}; give it more, or split the data"
    if isinstance(error, ImportError):
        return 1, f"[install] a package does not load: {first_line(error)}; see that ./tandem setup has installed it, and that there is memory"
    if isinstance(error, OSError):
        code = 2 if error.errno in PATH_ERRORS else 1
        return code, f"[prepare] {error.strerror or first_line(error)}: {os.fsdecode(error.filename or 'output')}; {'check the path' if code == 2 else 'free space or check the disk'}"
    return 1, f"[prepare] {type(error).__name__}: {first_line(error)}{place_of(error)}; this is a fault of tandem prepare, please report it with the data"


def exit_code_of(work):
    """Returns the result of work(); an exception becomes the exit code, with a line on standard error."""
    try:
        code = work()
        sys.stdout.flush()
        return code
    except SystemExit:
        raise
    except BaseException as error:  # Rust's panics are no Exceptions
        code, text = verdict(error)
        if text:
            say(f"error: {text}", sys.stderr)
        return code
