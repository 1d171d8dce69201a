"""The runtime as a Conan package: `conan create .` builds runtime/ alone, and a project that requires it calls
find_package(tandem COMPONENTS runtime).

The libraries that the runtime uses are the system's (tools/packages.txt), as they are for every other build of it; Conan says which
of them are missing.
"""

import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import load
from conan.tools.system.package_manager import Apt


class TandemRuntime(ConanFile):
    name = "tandem-runtime"
    description = "An actor-model asynchronous runtime on C++20 coroutines"
    package_type = "static-library"
    settings = "os", "compiler", "build_type", "arch"
    exports_sources = "CMakeLists.txt", "cmake/*", "runtime/*"
    test_package_folder = "tests/install/conan"

    def set_version(self):
        self.version = re.search(r"project\(tandem VERSION ([0-9.]+)", load(self, os.path.join(self.recipe_folder, "CMakeLists.txt")))[1]

    def layout(self):
        cmake_layout(self)

    def validate(self):
        check_min_cppstd(self, 20)

    def system_requirements(self):
        Apt(self).install(["libasio-dev", "liburing-dev", "libhwloc-dev", "libfmt-dev", "zlib1g-dev", "pkg-config"])

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables.update({"TANDEM_LAYERS": "runtime", "TANDEM_TORCH": False, "TANDEM_TESTS": False,
                                          "TANDEM_BENCH": False, "TANDEM_CUDA": False})
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        self.cpp_info.set_property("cmake_find_mode", "none")  # the package's own tandemConfig.cmake is found
        self.cpp_info.builddirs = ["lib/cmake/tandem"]
