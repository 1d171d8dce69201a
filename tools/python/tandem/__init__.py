"""Tandem, installed by pip: the programs lie in bin/, headers and libraries for C++ projects in include/ and lib/."""

import os  # nothing beyond it: the command looks to its own start first (safe_start.py)


def cmake_prefix() -> str:
    """For -DCMAKE_PREFIX_PATH of projects that embed tandem."""
    return os.path.dirname(os.path.realpath(__file__))
