#!/usr/bin/env python3
"""The numbers of whole runs against DeepSpeed, torch and Transformers: number_drill.py, whose flags these are.

The standard library has a module of this file's name, which torch and others import. To a program that begins in this
folder, as the other drills do, this file is then that module.
"""

import importlib.util
import sys
import sysconfig
from pathlib import Path


def stand_aside(name):
    """Puts the standard library's module in this one's place."""
    spec = importlib.util.spec_from_file_location(name, Path(sysconfig.get_path("stdlib")) / "numbers.py")
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


if __name__ == "__main__":
    from number_drill import main

    sys.exit(main())
else:
    stand_aside(__name__)
