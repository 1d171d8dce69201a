# The tree's files name each other "runtime/task.hpp"; who embeds the libraries writes <tandem/runtime/task.hpp>. Both are
# found in the build, too (examples and the pages' snippets read as they will outside).
set(TANDEM_INCLUDE_LINKS ${PROJECT_BINARY_DIR}/include)
file(MAKE_DIRECTORY ${TANDEM_INCLUDE_LINKS}/tandem)
foreach(layer runtime actors engine models trainer)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${layer} ${TANDEM_INCLUDE_LINKS}/tandem/${layer} SYMBOLIC)
endforeach()
file(CREATE_LINK ${PROJECT_SOURCE_DIR}/runtime/runtime.hpp ${TANDEM_INCLUDE_LINKS}/tandem/runtime.hpp SYMBOLIC)

# tandem_library(NAME [ROOMS folders...] LINK targets...): a layer of the project, made of the sources in its folder (and
# sub-folders), or in some of them alone.
# A file that lies in the folder belongs to the library; *.cu are left to cmake/Cuda.cmake.
function(tandem_library name)
  cmake_parse_arguments(arg "" "" "LINK;EXCLUDE;ROOMS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  if(arg_ROOMS)
    list(JOIN arg_ROOMS "|" rooms)
    list(FILTER sources INCLUDE REGEX "^${CMAKE_CURRENT_SOURCE_DIR}/(${rooms})/")
  endif()
  foreach(pattern ${arg_EXCLUDE})
    list(FILTER sources EXCLUDE REGEX "${pattern}")
  endforeach()
  add_library(tandem_${name} STATIC ${sources})
  add_library(tandem::${name} ALIAS tandem_${name})
  target_include_directories(tandem_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<BUILD_INTERFACE:${TANDEM_INCLUDE_LINKS}>)
  target_compile_features(tandem_${name} PUBLIC cxx_std_20)
  target_link_libraries(tandem_${name} PUBLIC ${arg_LINK})
  tandem_unity(tandem_${name})
endfunction()

# tandem_simd(NAME): the library's kernels are compiled for AVX-512, AVX2 and without SIMD. A CPU of the years between is not
# worth the time that two more passes over every kernel cost each build. (Other processors than x86-64 have not been tried.)
function(tandem_simd name)
  set(unused "HWY_SSSE3|HWY_SSE4")
  if(TANDEM_SANITIZE MATCHES thread)  # which meet in the same places whatever the width
    string(APPEND unused "|HWY_AVX3")
  endif()
  target_compile_definitions(tandem_${name} PRIVATE "HWY_DISABLED_TARGETS=(${unused})")
  # Checks of every pointer between inlined intrinsics take minutes to compile (270 s instead of 17 for one file). Reads
  # and writes out of bounds are found without them, and arithmetic stays checked.
  if(TANDEM_SANITIZE MATCHES undefined)
    file(GLOB_RECURSE kernels ${CMAKE_CURRENT_SOURCE_DIR}/kernels/*.cpp ${CMAKE_CURRENT_BINARY_DIR}/kernels/*.cpp)
    set_source_files_properties(${kernels} PROPERTIES
      COMPILE_OPTIONS -fno-sanitize=null,alignment,pointer-overflow,object-size)
  endif()
endfunction()

# tandem_tests(NAME [BY_SUITE] LINK targets...): one GoogleTest binary out of tests/NAME/. ctest runs each test in a process
# of its own; BY_SUITE, but for the long ones, each suite: loading LibTorch takes a quarter of a second, most tests less.
function(tandem_tests name)
  cmake_parse_arguments(arg "BY_SUITE" "" "LINK" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/compile_fail/")  # compiled by their tests, not by the build
  if(NOT sources)
    return()
  endif()
  add_executable(test_${name} ${sources})
  target_link_libraries(test_${name} PRIVATE ${arg_LINK} tandem_test_main)
  add_dependencies(test_${name} in_own_folder)
  # Half of the time to compile them; what they test is optimised.
  target_compile_options(test_${name} PRIVATE -O0)
  # A fifth of the time to compile them with UBSan, and ASan finds what these lead to. Alignment is checked where frames of
  # coroutines are tested.
  if(TANDEM_SANITIZE MATCHES undefined)
    target_compile_options(test_${name} PRIVATE -fno-sanitize=null,pointer-overflow,object-size,vptr)
    if(NOT name MATCHES "^(runtime|docs)$")
      target_compile_options(test_${name} PRIVATE -fno-sanitize=alignment)
    endif()
  endif()
  if(NOT TANDEM_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
    target_compile_options(test_${name} PRIVATE -g0)
  endif()
  tandem_unity(test_${name})
  tandem_discover_tests(test_${name} ${name} ${arg_BY_SUITE})
endfunction()

# tandem_discover_tests(TARGET LABEL BY_SUITE): its tests for ctest. Those of TANDEM_LONG_TESTS (tests/long_tests.cmake) are labelled
# LABEL.long and begin first, and `./tandem test --quick` leaves them out. (One label each: gtest_discover_tests splits lists of labels.)
function(tandem_discover_tests target label by_suite)
  string(JOIN ":" long ${TANDEM_LONG_TESTS})
  set(never "")
  if(TANDEM_SANITIZE MATCHES thread)
    string(JOIN ":" never ${TANDEM_ONE_THREAD_TESTS})
  endif()
  if(by_suite)
    set(suites ${CMAKE_CURRENT_BINARY_DIR}/${target}_suites.cmake)
    add_custom_command(TARGET ${target} POST_BUILD VERBATIM COMMAND ${CMAKE_COMMAND} -D BINARY=$<TARGET_FILE:${target}>
      -D OUTPUT=${suites} -D FILTER=${long} -D LABEL=${label} -D TIMEOUT=600 -P ${PROJECT_SOURCE_DIR}/cmake/DiscoverSuites.cmake)
    # Not there before the target is built, and a layer's tests are run with others unbuilt.
    file(CONFIGURE OUTPUT ${target}_include.cmake CONTENT "include([==[${suites}]==] OPTIONAL)\n" @ONLY)
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${CMAKE_CURRENT_BINARY_DIR}/${target}_include.cmake)
  else()
    gtest_discover_tests(${target} DISCOVERY_TIMEOUT 60 TEST_FILTER "-${long}:${never}" TEST_LIST ${target}_short
      PROPERTIES TIMEOUT 300 LABELS ${label} ENVIRONMENT GOMP_SPINCOUNT=10000)
  endif()
  gtest_discover_tests(${target} DISCOVERY_TIMEOUT 60 TEST_FILTER "${long}-${never}" TEST_LIST ${target}_long
    PROPERTIES TIMEOUT 300 LABELS ${label}.long COST 10 ENVIRONMENT GOMP_SPINCOUNT=10000)
endfunction()

# tandem_add_test(NAME COMMAND ARGUMENTS...): a test that is no GoogleTest binary, in folders of its own. Exit code 77 says
# that it was skipped.
function(tandem_add_test name)
  add_test(NAME ${name} COMMAND in_own_folder ${ARGN})
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
endfunction()

# tandem_bench(NAME LINK targets...): the Google Benchmark binary bench_NAME out of bench/NAME/.
function(tandem_bench name)
  cmake_parse_arguments(arg "" "" "LINK" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(bench_${name} ${sources})
  target_link_libraries(bench_${name} PRIVATE ${arg_LINK} benchmark::benchmark)
  tandem_unity(bench_${name})
endfunction()

# tandem_reuse_pch(FROM programs...): the headers of the library tandem_FROM, parsed once, serve programs as well. Those are
# then compiled like the library: position independent code, not the executable's kind of it.
function(tandem_reuse_pch from)
  foreach(program ${ARGN})
    target_compile_options(${program} PRIVATE -fPIC)
    target_precompile_headers(${program} REUSE_FROM tandem_${from})
  endforeach()
endfunction()
