# LibTorch out of the pinned torch wheel, as the imported target tandem::torch.
# The wheel is found without importing it (that costs seconds and loads its libraries), and find_package(Torch) is not
# used: the CUDA wheel's own files demand a CUDA toolkit and rewrite the project's CUDA flags.
# Order: -DTANDEM_TORCH_DIR=..., the project's .venv, then python3 of the PATH.
if(NOT TANDEM_TORCH_DIR)
  foreach(python "${PROJECT_SOURCE_DIR}/.venv/bin/python" python3)
    execute_process(
      COMMAND ${python} -c "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(s.origin) if s else '')"
      OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(found)
      set(TANDEM_TORCH_DIR "${found}" CACHE PATH "The torch package folder of a Python environment")
      break()
    endif()
  endforeach()
endif()
if(NOT EXISTS "${TANDEM_TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "LibTorch not found: run ./tandem setup, or pass -DTANDEM_TORCH_DIR=<site-packages>/torch")
endif()
message(STATUS "LibTorch: ${TANDEM_TORCH_DIR}")

add_library(tandem_torch INTERFACE)
add_library(tandem::torch ALIAS tandem_torch)
# The wheel's include folder also holds copies of other libraries' headers (fmt in another version than Debian's), which
# would win over the system's. So we look through a folder of links to LibTorch's own headers.
set(torch_headers ${PROJECT_BINARY_DIR}/torch_include)
file(MAKE_DIRECTORY ${torch_headers})
foreach(entry ATen c10 caffe2 torch)
  file(CREATE_LINK ${TANDEM_TORCH_DIR}/include/${entry} ${torch_headers}/${entry} SYMBOLIC)
endforeach()
target_include_directories(tandem_torch SYSTEM INTERFACE
  ${torch_headers} ${torch_headers}/torch/csrc/api/include)
# --no-as-needed: operators register themselves by static initialisers, so no symbol refers to these libraries.
target_link_libraries(tandem_torch INTERFACE
  -Wl,--no-as-needed ${TANDEM_TORCH_DIR}/lib/libtorch_cpu.so ${TANDEM_TORCH_DIR}/lib/libc10.so -Wl,--as-needed)
# The wheel's own nvidia-* libraries are found by its RPATH when it is loaded, not when we link.
target_link_options(tandem_torch INTERFACE
  LINKER:--allow-shlib-undefined LINKER:-rpath,${TANDEM_TORCH_DIR}/lib)
