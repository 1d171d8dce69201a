"""Runs a module of tools/: `python -I tools/run_module.py MODULE ARGUMENTS...`.

-I keeps the current folder and PYTHONPATH out of the search for modules: the current folder holds data, and a json.py
among data is not code of this program.
"""

import os
import runpy
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
