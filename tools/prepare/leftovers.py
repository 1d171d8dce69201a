"""The file that a token file is written into before it has its name, and those that ended processes left behind.

The writer holds a lock on it as long as it lives, however it ends: a file of that name without one is nobody's work.
"""

import contextlib
import fcntl
import os
import re
import stat


def temporary_path(path):
    return path.with_name(f".{path.name[:200]}.{os.getpid()}.part")


def remove_leftovers(path):
    """Removes what processes that are gone left beside `path`."""
    pattern = re.compile(rf"\.{re.escape(path.name[:200])}\.[0-9]+\.part")
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            if pattern.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    remove_unlocked(entry.path)


def remove_unlocked(path):
    """OSError: a process holds its lock, or it is another user's."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
    finally:
        os.close(descriptor)


def create(path):
    """The locked file, open for writing; it is new, and no link is followed."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return os.fdopen(descriptor, "wb")
        os.close(descriptor)  # another process took it for a leftover before it was locked
