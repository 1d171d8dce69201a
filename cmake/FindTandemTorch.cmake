# LibTorch out of a torch wheel, as the imported target tandem::torch. Used by the tree and, for the components engine and
# models, by an installed tandem's config file.
# The wheel is found without importing it (that costs seconds and loads its libraries), and find_package(Torch) is not
# used: the CUDA wheel's own files demand a CUDA toolkit and rewrite the project's CUDA flags.
# Order: -DTANDEM_TORCH_DIR=..., beside a tandem that pip installed, the project's .venv, then python3 of the PATH. `pip
# install .` takes the torch of the environment that it installs into; the isolated one that it builds in has none.
if(SKBUILD AND Python_EXECUTABLE)
  execute_process(COMMAND ${Python_EXECUTABLE} -c
      "import os, sysconfig; d = os.path.join(sysconfig.get_path('platlib'), 'torch'); print(d if os.path.isdir(d) else '')"
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(TANDEM_TORCH_DIR "${found}" CACHE PATH "The torch package folder of a Python environment" FORCE)
  unset(TANDEM_TORCH_LIBRARY CACHE)
  if(NOT found)
    message(FATAL_ERROR "no torch in this Python environment, beside which tandem is to be installed; pip install it first")
  endif()
endif()
get_filename_component(beside ${CMAKE_CURRENT_LIST_DIR}/../../../../torch ABSOLUTE)
if(NOT TANDEM_TORCH_DIR AND EXISTS ${beside}/lib/libtorch_cpu.so)
  set(TANDEM_TORCH_DIR ${beside} CACHE PATH "The torch package folder of a Python environment" FORCE)
endif()
if(NOT TANDEM_TORCH_DIR)
  foreach(python "${PROJECT_SOURCE_DIR}/.venv/bin/python" python3)
    execute_process(
      COMMAND ${python} -c "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(s.origin) if s else '')"
      OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(found)
      set(TANDEM_TORCH_DIR "${found}" CACHE PATH "The torch package folder of a Python environment" FORCE)
      break()
    endif()
  endforeach()
endif()
find_file(TANDEM_TORCH_LIBRARY libtorch_cpu.so PATHS "${TANDEM_TORCH_DIR}/lib" NO_DEFAULT_PATH)
mark_as_advanced(TANDEM_TORCH_LIBRARY)
if(TANDEM_TORCH_LIBRARY)
  file(STRINGS "${TANDEM_TORCH_DIR}/version.py" line REGEX "^__version__" LIMIT_COUNT 1)
  string(REGEX REPLACE "^[^0-9]*([0-9.]+).*$" "\\1" TandemTorch_VERSION "${line}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TandemTorch REQUIRED_VARS TANDEM_TORCH_LIBRARY VERSION_VAR TandemTorch_VERSION
  REASON_FAILURE_MESSAGE "LibTorch not found: run ./tandem setup, or pass -DTANDEM_TORCH_DIR=<site-packages>/torch")
if(NOT TandemTorch_FOUND OR TARGET tandem::torch)
  return()
endif()

add_library(tandem::torch INTERFACE IMPORTED)
# The wheel's include folder also holds copies of other libraries' headers (fmt in another version than Debian's), which
# would win over the system's. So we look through a folder of links to LibTorch's own headers.
set(torch_headers ${PROJECT_BINARY_DIR}/torch_include)
file(MAKE_DIRECTORY ${torch_headers})
foreach(entry ATen c10 caffe2 torch)
  file(CREATE_LINK ${TANDEM_TORCH_DIR}/include/${entry} ${torch_headers}/${entry} SYMBOLIC)
endforeach()
target_include_directories(tandem::torch SYSTEM INTERFACE
  ${torch_headers} ${torch_headers}/torch/csrc/api/include)
# --no-as-needed: operators register themselves by static initialisers, so no symbol refers to these libraries.
target_link_libraries(tandem::torch INTERFACE
  -Wl,--no-as-needed ${TANDEM_TORCH_DIR}/lib/libtorch_cpu.so ${TANDEM_TORCH_DIR}/lib/libc10.so -Wl,--as-needed)
# The wheel's own nvidia-* libraries are found by its RPATH when it is loaded, not when we link.
target_link_options(tandem::torch INTERFACE
  LINKER:--allow-shlib-undefined LINKER:-rpath,${TANDEM_TORCH_DIR}/lib)
