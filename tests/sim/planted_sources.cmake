# Sets PLANTED_SOURCES to what of runtime/, actors/ and engine/ includes the planted bugs: the simulator's tests have objects of their own
# of these, in place of the libraries'.
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND)
  execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/planted_sources.py OUTPUT_VARIABLE PLANTED_SOURCES
    COMMAND_ERROR_IS_FATAL ANY)
  file(WRITE ${PROJECT_BINARY_DIR}/planted_sources.txt "${PLANTED_SOURCES}")
  string(REGEX MATCHALL "[^\n]+" PLANTED_SOURCES "${PLANTED_SOURCES}")
  list(TRANSFORM PLANTED_SOURCES PREPEND ${PROJECT_SOURCE_DIR}/)
  set(TANDEM_UNITY_APART ${PLANTED_SOURCES})
endif()
