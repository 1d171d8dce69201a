# Compiles CASE and compares the outcome with its first line: "// error: <text>" or "// compiles". A second line
# "// flag: <one>" is given to the compiler.
file(STRINGS ${CASE} lines LIMIT_COUNT 1)
file(STRINGS ${CASE} flag REGEX "^// flag: ")
string(REPLACE "// flag: " "" flag "${flag}")
if(NOT ASIO STREQUAL "/usr/include")  # naming the compiler's own folder again would change its search order
  set(asio_option -isystem ${ASIO})
endif()
execute_process(
  COMMAND ${COMPILER} -std=c++20 -fsyntax-only ${flag} -DASIO_STANDALONE -DASIO_NO_DEPRECATED -I${ROOT} ${asio_option} ${CASE}
  RESULT_VARIABLE code ERROR_VARIABLE errors)
if(lines STREQUAL "// compiles")
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "the control does not compile:\n${errors}")
  endif()
elseif(lines MATCHES "^// error: (.*)$")
  set(expected "${CMAKE_MATCH_1}")
  if(code EQUAL 0)
    message(FATAL_ERROR "${CASE} compiles, and must not")
  endif()
  string(FIND "${errors}" "${expected}" found)
  if(found EQUAL -1)
    message(FATAL_ERROR "refused, but not for the reason \"${expected}\":\n${errors}")
  endif()
else()
  message(FATAL_ERROR "${CASE}: the first line says what to expect")
endif()
