# tandem_coroutine_fault(OUTPUT): says why this compiler must not build coroutines; empty where it may. Installed, too.
#
# Clang has held since version 19, with which all tests run. Another compiler is asked itself: coroutine_check.cpp is compiled and
# run once. So a release with a fault is refused by the fault, and one without is not refused by its number.
set(TANDEM_COROUTINE_SOURCE ${CMAKE_CURRENT_LIST_DIR}/coroutine_check.cpp)

function(tandem_coroutine_fault output)
  set(compiler "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
  set(fault "")
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 19)
      set(fault "tandem needs clang 19 or later, and this compiler is ${compiler}")
    endif()
  elseif(NOT CMAKE_CROSSCOMPILING)
    if(NOT "${TANDEM_COROUTINES_CHECKED}" STREQUAL "${CMAKE_CXX_COMPILER} ${compiler}")
      try_run(ran compiled ${CMAKE_BINARY_DIR}/coroutine_check SOURCES ${TANDEM_COROUTINE_SOURCE}
        CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON RUN_OUTPUT_VARIABLE shape)
      string(STRIP "${shape}" shape)
      set(TANDEM_COROUTINES_FAULT "" CACHE INTERNAL "")
      if(NOT compiled)
        set(TANDEM_COROUTINES_FAULT "${compiler} does not compile coroutines of C++20" CACHE INTERNAL "")
      elseif(NOT ran EQUAL 0)
        set(TANDEM_COROUTINES_FAULT "${compiler} destroys temporaries of co_await wrongly (${shape})" CACHE INTERNAL "")
      endif()
      set(TANDEM_COROUTINES_CHECKED "${CMAKE_CXX_COMPILER} ${compiler}" CACHE INTERNAL "")
    endif()
    set(fault "${TANDEM_COROUTINES_FAULT}")
  endif()
  set(${output} "${fault}" PARENT_SCOPE)
endfunction()
