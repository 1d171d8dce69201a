"""read deepspeed|universal|pytorch PATH: prints the index. write FOLDER: makes a universal checkpoint of what comes on the standard input.

Whatever goes wrong is one line on standard error: exit code 2 where the checkpoint is at fault, 1 where the machine is.
"""

import ctypes
import os
import resource
import signal
import sys
import traceback
import warnings

from prepare.errors import UserError, escaped, first_line

PR_SET_PDEATHSIG = 1
# A pickle of a few bytes may ask for any amount of memory. Mapped files do not count here.
MOST_DATA_BYTES = 4 << 30
MOST_FILES = 1 << 16  # of a run's ranks


def bound_resources():
    """Limits this process's memory, and lets it open every file of a large run."""
    with open("/proc/self/status", encoding="ascii") as status:
        used = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (min(used + MOST_DATA_BYTES, soft if soft >= 0 else sys.maxsize), hard))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(MOST_FILES, hard if hard >= 0 else sys.maxsize)), hard))


def run(command, *arguments):
    try:
        import torch
    except (ImportError, OSError) as error:
        raise UserError(f"[import] {sys.executable} has no torch that loads ({first_line(error)}); ./tandem setup installs one, or set "
                        "TANDEM_PYTHON to a Python that has torch") from None
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # it ends with the one that asks for it
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if command == "write":
        from convert.write_universal import write

        write(*arguments, sys.stdin.buffer)
        print("written", flush=True)
        return
    bound_resources()
    kind, path = arguments
    from convert import deepspeed, pytorch_bin, universal

    found = {"deepspeed": deepspeed, "universal": universal, "pytorch": pytorch_bin}[kind].read(path)
    sys.stdout.buffer.write(found.index(path))
    sys.stdout.buffer.flush()


def main():
    try:
        run(*sys.argv[1:])
        return 0
    except UserError as error:
        code, line = 2, str(error)
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        reason, path = error.strerror or first_line(error), os.fsdecode(error.filename or sys.argv[-1])
        code, line = 2, f"[import] {path} cannot be read ({reason}); check the path and its permissions"
        if sys.argv[1] == "write":
            code, line = 1, f"[convert] {path} cannot be written ({reason}); free space or check the disk"
    except MemoryError as error:
        code, line = 1, f"[import] {sys.argv[-1]} needs more memory than there is ({first_line(error)}); give it more"
    except Exception as error:
        code = 2
        place = traceback.extract_tb(error.__traceback__)[-1]
        line = (f"[import] {sys.argv[-1]} cannot be read: {type(error).__name__}: {first_line(error)} ({os.path.basename(place.filename)}:{place.lineno}); "
                "copy the checkpoint again, or report this")
    print(escaped(f"error: {line}"), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
