# Language, warnings, sanitizers, linker: what every target of the project is compiled with.
# Clang 19 is what the presets choose and what all tests run with; the preset `gcc` builds the layers below LibTorch with g++ 14.
# Other compilers are asked for the one fault that would spoil everything.
include(${CMAKE_CURRENT_LIST_DIR}/CoroutineCheck.cmake)
tandem_coroutine_fault(tandem_fault)
if(tandem_fault)
  message(FATAL_ERROR "${tandem_fault}; ./tandem setup installs clang-19, and the presets choose it (cmake --preset release)")
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")

add_compile_options(-Wall -Wextra -Wno-unused-parameter
  # Same bits whatever the compiler decides to fuse: an FMA stands where we wrote one.
  -ffp-contract=off
  # Symmetric transfer between coroutines is a tail call only with this flag below -O2.
  -foptimize-sibling-calls
  # The frame of a coroutine is aligned as its variables ask (AVX-512 has variables of 64 bytes). g++ has no such flag: its frames
  # have the 64 bytes that each block of FrameRecycler has.
  $<$<CXX_COMPILER_ID:Clang>:-fcoro-aligned-allocation>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 14 sees writes beyond the end of std::string's own buffer that are not there, and calls the frame of a coroutine that
  # holds an object of an unnamed namespace a class that others could see.
  add_compile_options(-Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread -Wno-unknown-pragmas
    -Wno-subobject-linkage)
endif()
option(TANDEM_WERROR "A warning of the compiler is an error, as in ./tandem test" OFF)
if(TANDEM_WERROR)
  add_compile_options(-Werror)
endif()
add_compile_options(-Wno-missing-field-initializers $<$<CXX_COMPILER_ID:Clang>:-Wno-missing-designated-field-initializers>)
# __FILE__ and source_location name files as the tree does: await chains read alike everywhere, and an installed library
# does not carry the paths of the machine it was built on. Debug builds keep theirs in the debugger's tables.
add_compile_options(-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
if(NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  add_compile_options(-fdebug-prefix-map=${PROJECT_SOURCE_DIR}/= -fdebug-prefix-map=${PROJECT_BINARY_DIR}=.)
endif()

find_program(TANDEM_MOLD mold)
if(TANDEM_MOLD AND NOT TANDEM_SANITIZE)
  add_link_options(-fuse-ld=mold)
endif()
if(TANDEM_SANITIZE)
  add_compile_options(-fsanitize=${TANDEM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  if(TANDEM_SANITIZE MATCHES "undefined")
    cmake_path(RELATIVE_PATH PROJECT_SOURCE_DIR BASE_DIRECTORY ${PROJECT_BINARY_DIR} OUTPUT_VARIABLE tree)
    add_compile_options(-fsanitize-ignorelist=${tree}/cmake/sanitizer_ignore.txt)
  endif()
  add_link_options(-fsanitize=${TANDEM_SANITIZE})
endif()

# ccache finds an object again that another clone has compiled (cmake/compile.sh), so no command names where a tree lies but by
# paths below it, which ccache makes relative. CMake names the text of a precompiled header as well, which clang does not need.
find_program(TANDEM_CCACHE ccache)
if(TANDEM_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER sh ${PROJECT_SOURCE_DIR}/cmake/compile.sh ${PROJECT_SOURCE_DIR} ${TANDEM_CCACHE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    add_compile_options("SHELL:-Xclang -fno-pch-timestamp")
    set(CMAKE_CXX_COMPILE_OPTIONS_USE_PCH -Xclang -include-pch -Xclang <PCH_FILE>)
  endif()
endif()
