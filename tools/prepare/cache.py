"""The folder of token files that ./tandem train makes: this user's own, and each file used only if it is whole.

Beside X.tokens lies X.tokens.sha256, written by rename when the token file is complete. A token file that belongs to
another user, that others may read or write, or whose content is not what its hash says, is not used.
"""

import hashlib
import os
import stat
import sys
from pathlib import Path

from prepare.errors import UserError, say

OTHERS = 0o077  # the permissions that neither the folder nor its files give


def base_folder():
    return Path(os.environ.get("TANDEM_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tandem"))


def own_folder():
    """The folder, made if it is not there; beside one that is another user's, one by the number of this user."""
    for folder in (base_folder() / "tokens", base_folder() / f"tokens-{os.geteuid()}"):
        os.makedirs(folder.parent, exist_ok=True)
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass
        owners = {os.lstat(folder).st_uid, os.stat(folder).st_uid}
        if owners == {os.geteuid()} and folder.is_dir():
            if os.stat(folder).st_mode & OTHERS:
                os.chmod(folder, 0o700)
            return folder
        say(f"prepare  {folder} is not used: it is no folder of this user", sys.stderr)
    raise UserError(f"[prepare] {base_folder()} has no folder that is this user's alone; choose another place by TANDEM_CACHE")


def hash_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def opened(path):
    """(file, None) of a file of this user alone; (None, the reason) of another. FileNotFoundError: there is none."""
    try:
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK))
    except FileNotFoundError:
        raise
    except OSError:
        return None, "is a link or cannot be read"
    state = os.fstat(file.fileno())
    for is_so, fault in ((not stat.S_ISREG(state.st_mode), "is no file"), (state.st_uid != os.geteuid(), "belongs to another user"),
                         (state.st_mode & OTHERS, "is open to other users")):
        if is_so:
            file.close()
            return None, fault
    return file, None


def seal_of(path):
    return path.with_name(f"{path.name}.sha256")


def fault_of(path):
    """Why the token file cannot be used: None if it can, "" if there is none."""
    try:
        file, fault = opened(path)
    except FileNotFoundError:
        return ""
    if fault:
        return fault
    with file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    try:
        file, fault = opened(seal_of(path))
    except FileNotFoundError:
        return "was not completed, or its data changed meanwhile"
    if fault:
        return f"has a hash that {fault}"
    with file:
        return None if file.read(80).strip() == found.encode() else "is not what its hash says"


def seal(path):
    """Writes the hash of a complete token file."""
    beside = seal_of(path)
    temporary = beside.with_name(f"{beside.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with open(temporary, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600)) as file:
        file.write(hash_of(path) + "\n")
    os.replace(temporary, beside)
