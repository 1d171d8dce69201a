"""Tandem, installed by pip: the programs lie in bin/, headers and libraries for C++ projects in include/ and lib/."""

from pathlib import Path

PREFIX = Path(__file__).resolve().parent


def cmake_prefix() -> str:
    """For -DCMAKE_PREFIX_PATH of projects that embed tandem."""
    return str(PREFIX)
