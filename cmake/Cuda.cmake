# CUDA parts compile wherever nvcc is found and run wherever a GPU is; without a toolkit the no_cuda sources stand in.
# .cu files are C++17, free of coroutines and of LibTorch; g++ is only nvcc's host compiler here.
find_program(TANDEM_NVCC nvcc HINTS /usr/local/cuda/bin ENV CUDA_HOME PATH_SUFFIXES bin)
option(TANDEM_CUDA "Compile the CUDA parts" ON)
if(TANDEM_CUDA AND TANDEM_NVCC AND NOT TANDEM_SANITIZE)
  set(CMAKE_CUDA_COMPILER ${TANDEM_NVCC})
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
    set(ours_to_choose TRUE)
  endif()
  find_program(TANDEM_CUDA_HOST g++)
  set(CMAKE_CUDA_HOST_COMPILER ${TANDEM_CUDA_HOST})
  enable_language(CUDA)
  if(ours_to_choose AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
    list(APPEND CMAKE_CUDA_ARCHITECTURES 100-real)
  endif()
  find_package(CUDAToolkit REQUIRED)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)  # tools/gpu_kernels.py
  set(TANDEM_HAVE_CUDA ON)
  message(STATUS "CUDA: ${TANDEM_NVCC}")
else()
  set(TANDEM_HAVE_CUDA OFF)
  message(STATUS "CUDA: no nvcc found, CPU-only build")
endif()

# NCCL is opened at run time; its header, where it is found, checks at compile time what we wrote down of it.
set(TANDEM_HAVE_NCCL OFF)
if(TANDEM_HAVE_CUDA)
  file(GLOB wheel_nccl ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/nccl/include)
  find_path(TANDEM_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${wheel_nccl})
  mark_as_advanced(TANDEM_NCCL_INCLUDE)
  if(TANDEM_NCCL_INCLUDE)
    set(TANDEM_HAVE_NCCL ON)
    message(STATUS "NCCL: ${TANDEM_NCCL_INCLUDE}/nccl.h")
  else()
    message(STATUS "NCCL: no nccl.h found, no collectives between GPUs")
  endif()
endif()

# tandem_kernels(LAYER ELSE source KERNELS sources...): a layer's kernels, or without a CUDA toolkit the source that says so
# behind the same header.
function(tandem_kernels layer)
  cmake_parse_arguments(arg "" "ELSE" "KERNELS" ${ARGN})
  if(TANDEM_HAVE_CUDA)
    tandem_cuda_library(${layer}_device ${arg_KERNELS})
  else()
    add_library(tandem_${layer}_device STATIC ${arg_ELSE})
    target_include_directories(tandem_${layer}_device PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
    target_link_libraries(tandem_${layer}_device PUBLIC fmt::fmt)
  endif()
  target_link_libraries(tandem_${layer} PUBLIC tandem_${layer}_device)
endfunction()

# tandem_cuda_library(NAME sources...): a static library tandem_NAME of .cu files, and of .cpp files that call CUDA. The
# project's own compile options are clang's and would reach nvcc through the directory, so .cu files get only the few they
# need. tools/gpu_kernels.py calls nvcc: a kernel that spills does not compile.
function(tandem_cuda_library name)
  add_library(tandem_${name} STATIC ${ARGN})
  get_directory_property(options COMPILE_OPTIONS)
  list(TRANSFORM options REPLACE "^(.+)$" "$<$<COMPILE_LANGUAGE:CXX>:\\1>")
  set_target_properties(tandem_${name} PROPERTIES
    COMPILE_OPTIONS "${options};$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-fPIC,-Wall>"
    COMPILE_DEFINITIONS ""
    CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
    CUDA_COMPILER_LAUNCHER "${Python3_EXECUTABLE};${PROJECT_SOURCE_DIR}/tools/gpu_kernels.py;compile")
  set(kernels ${ARGN})
  list(FILTER kernels INCLUDE REGEX "\\.cu$")
  set_source_files_properties(${kernels} PROPERTIES OBJECT_DEPENDS ${PROJECT_SOURCE_DIR}/tools/gpu_kernels.py)
  target_include_directories(tandem_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_link_libraries(tandem_${name} PUBLIC CUDA::cudart)
endfunction()
