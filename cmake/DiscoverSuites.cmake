# Lists the suites of a GoogleTest binary as tests of ctest, one process for each suite: run behind its link by
# tandem_discover_suites (cmake/Targets.cmake). -D BINARY=... OUTPUT=... FILTER=... LABEL=... TIMEOUT=...
execute_process(COMMAND ${BINARY} --gtest_list_tests --gtest_filter=-${FILTER}
  OUTPUT_VARIABLE listed RESULT_VARIABLE status ERROR_VARIABLE errors TIMEOUT 60)
if(NOT status EQUAL 0)
  file(REMOVE ${OUTPUT} ${BINARY})  # so that the next build looks again
  message(FATAL_ERROR "${BINARY} --gtest_list_tests: ${status}\n${errors}")
endif()
string(REGEX REPLACE "[ \t]*#[^\n]*" "" listed "${listed}")  # parameters
string(REGEX MATCHALL "(^|\n)[A-Za-z0-9_/]+\\.(\n|$)" suites "${listed}")
set(text "")
foreach(suite ${suites})
  string(REGEX REPLACE "[.\n]" "" suite "${suite}")
  string(APPEND text "add_test([==[${suite}]==] ${BINARY} [==[--gtest_filter=${suite}.*-${FILTER}]==])\n"
    "set_tests_properties([==[${suite}]==] PROPERTIES LABELS ${LABEL} TIMEOUT ${TIMEOUT} ENVIRONMENT GOMP_SPINCOUNT=10000)\n")
endforeach()
file(WRITE ${OUTPUT} "${text}")
