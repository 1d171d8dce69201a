"""No module of the current folder is imported: that folder holds data, and a json.py among data is not code of ours.

`python -m tandem` puts the current folder before all others, and so does an empty entry of PYTHONPATH. This module
imports nothing that Python itself has not imported before.
"""

import os
import sys


def start_outside_of_the_current_folder():
    """Begins the process anew, with the same arguments, if Python looks for modules in the current folder."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    absolute = [entry for entry in entries if os.path.isabs(entry)]
    is_first = not sys.flags.safe_path and sys.path[0] in {"", os.getcwd()}
    if not is_first and (absolute == entries or entries == [""]):
        return
    os.environ["PYTHONPATH"] = os.pathsep.join(absolute)
    os.execv(sys.executable, [sys.executable, "-P", *sys.orig_argv[1:]])
