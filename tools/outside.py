"""The files outside of a test run's own folders: a listing before the run, and the differences after it.

Looked at are the home folder (four levels), the temporary folder and /dev/shm (two levels), and the tree. Left out are
the build folder, what ./tandem sets up, and caches of compilers and package managers, which belong to the environment.
A folder of many files is no problem: a listing holds names, sizes and times, and reads no content."""
import os
from pathlib import Path

LEVELS = {"home": 4, "temporary": 2, "shared memory": 2, "tree": 32}
# The environment's own: compilers, package managers, shells.
ENVIRONMENT = {".cache/ccache", ".ccache", ".cache/pip", ".cache/clangd", ".config/pip", ".bash_history", ".python_history",
               ".cache/mesa_shader_cache", ".dbus", ".local/share/recently-used.xbel"}
OF_THE_TREE = {"build", ".venv", ".cache", ".git", "runs"}
# Names by which a test's own work is told from that of other programs, where others run beside it.
OURS = ("tandem", "torch", "own-", "hugging", "wandb", "triton", "trainer", "deepspeed")


def roots(tree):
    """The folders that are looked at, by what they are."""
    temporary = Path(os.environ.get("TMPDIR") or "/tmp")
    found = {"home": Path(os.environ.get("HOME") or "/nonexistent"), "temporary": temporary,
             "shared memory": Path("/dev/shm"), "tree": Path(tree)}
    return {kind: root.resolve() for kind, root in found.items() if root.is_dir()}


def listing(tree, own=()):
    """{path: (size, time of the last change)} of everything outside. `own`: folders of the run itself."""
    where = roots(tree)
    skipped = {str(Path(one).resolve()) for one in own} | {str(where["tree"] / name) for name in OF_THE_TREE}
    if "home" in where:
        skipped |= {str(where["home"] / name) for name in ENVIRONMENT}
    seen = {}
    for kind, root in where.items():
        others = {str(one) for other, one in where.items() if other != kind}
        walk(str(root), LEVELS[kind], skipped | others, seen)
    return seen


def walk(folder, levels, skipped, seen):
    try:
        entries = list(os.scandir(folder))
    except OSError:  # of another user, or gone meanwhile
        return
    for entry in entries:
        if entry.path in skipped or entry.name == "__pycache__":
            continue
        try:
            status = entry.stat(follow_symlinks=False)
            is_folder = entry.is_dir(follow_symlinks=False)
        except OSError:
            continue
        if status.st_uid != os.geteuid() and os.geteuid() != 0:
            continue
        # A folder's time changes with its entries, which are listed themselves.
        seen[entry.path] = "folder" if is_folder else (status.st_size, status.st_mtime_ns)
        if is_folder and levels > 1:
            walk(entry.path, levels - 1, skipped, seen)


def changes(before, after):
    """Lines that say what is new, gone or changed."""
    lines = [f"new      {path}" for path in after if path not in before]
    lines += [f"gone     {path}" for path in before if path not in after]
    lines += [f"changed  {path}" for path in after if path in before and after[path] != before[path]]
    return sorted(lines)


def is_ours(line, tree):
    """Whether a test may have done this, by a name below the folders that are looked at: on a machine with other programs
    others change files, too."""
    path = line.split(None, 1)[1]
    inside = max((os.path.relpath(path, root) for root in roots(tree).values() if path.startswith(f"{root}/")), key=lambda name: -len(name),
                 default=path)
    return any(part.startswith(OURS) for part in inside.lower().lstrip(".").replace("/.", "/").split("/"))
