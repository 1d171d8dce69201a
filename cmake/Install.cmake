# `cmake --install`: headers under include/tandem/, the libraries, and find_package(tandem COMPONENTS ...) for those who
# embed them. Each layer is one component with an export of its own, so that the runtime's mentions no LibTorch.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(TANDEM_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/tandem)
set(TANDEM_INSTALLED_COMPONENTS "" CACHE INTERNAL "")

# tandem_install(COMPONENT targets... [FOLDER name] [ROOMS ...]): the component tandem::COMPONENT out of the static libraries
# `targets`. Its headers are installed as include/tandem/FOLDER (default: the component's name); ROOMS: of these folders alone.
function(tandem_install layer)
  cmake_parse_arguments(install "" FOLDER ROOMS ${ARGN})
  set(targets ${install_UNPARSED_ARGUMENTS})
  if(NOT TANDEM_INSTALL)
    return()
  endif()
  if(NOT install_FOLDER)
    set(install_FOLDER ${layer})
  endif()
  foreach(target ${targets})
    string(REGEX REPLACE "^tandem_" "" name ${target})
    set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
    target_include_directories(${target} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  endforeach()
  install(TARGETS ${targets} EXPORT tandem_${layer} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT tandem_${layer} NAMESPACE tandem:: FILE tandem-${layer}.cmake DESTINATION ${TANDEM_CMAKE_DIR})
  # Outside, "runtime/x.hpp" could be another project's: the installed headers name each other "tandem/runtime/x.hpp".
  set(stage ${PROJECT_BINARY_DIR}/install_headers/${layer}/${install_FOLDER})
  install(CODE "set(FROM [[${CMAKE_CURRENT_SOURCE_DIR}]])\nset(TO [[${stage}]])\nset(ROOMS [[${install_ROOMS}]])\n\
include([[${PROJECT_SOURCE_DIR}/cmake/StageHeaders.cmake]])")
  install(DIRECTORY ${stage} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tandem)
  if(layer STREQUAL "runtime")  # <tandem/runtime.hpp>
    install(FILES ${stage}/runtime.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tandem)
  endif()
  set(TANDEM_INSTALLED_COMPONENTS ${TANDEM_INSTALLED_COMPONENTS} ${layer} CACHE INTERNAL "")
endfunction()

# tandem_install_programs(targets...): into bin/. Moved, or installed by pip, they find the LibTorch of the environment:
# bin/ is site-packages/tandem/bin then.
function(tandem_install_programs)
  set_target_properties(${ARGN} PROPERTIES INSTALL_RPATH "$ORIGIN/../../torch/lib")
  install(TARGETS ${ARGN} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

# The programs start this for files of torch (models/foreign/converter.hpp).
if(TANDEM_TORCH)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/tools/convert DESTINATION ${CMAKE_INSTALL_DATADIR}/tandem/tools
    FILES_MATCHING PATTERN "*.py" PATTERN __pycache__ EXCLUDE)
  install(FILES ${PROJECT_SOURCE_DIR}/tools/prepare/__init__.py ${PROJECT_SOURCE_DIR}/tools/prepare/errors.py
    DESTINATION ${CMAKE_INSTALL_DATADIR}/tandem/tools/prepare)
  install(FILES ${PROJECT_SOURCE_DIR}/tools/run_module.py DESTINATION ${CMAKE_INSTALL_DATADIR}/tandem/tools)
endif()

# What the `tandem` command of a pip installation runs beside the programs (tools/python/tandem/front_door.py).
if(SKBUILD)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/tools/prepare DESTINATION ${CMAKE_INSTALL_DATADIR}/tandem/tools
    FILES_MATCHING PATTERN "*.py" PATTERN "*.jinja" PATTERN __pycache__ EXCLUDE)
  install(FILES ${PROJECT_SOURCE_DIR}/tools/fetch.py DESTINATION ${CMAKE_INSTALL_DATADIR}/tandem/tools)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/torch_version.txt CONTENT "${TandemTorch_VERSION}\n")
  install(FILES ${PROJECT_BINARY_DIR}/torch_version.txt DESTINATION ${CMAKE_INSTALL_DATADIR}/tandem)
endif()

# Last in the top CMakeLists.txt: what find_package(tandem) reads.
function(tandem_install_config)
  if(NOT TANDEM_INSTALL)
    return()
  endif()
  file(RELATIVE_PATH TANDEM_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  if(LIBURING_FOUND)
    set(TANDEM_PC_URING " liburing")
  endif()
  configure_file(${PROJECT_SOURCE_DIR}/cmake/tandem-runtime.pc.in ${PROJECT_BINARY_DIR}/tandem-runtime.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/tandem-runtime.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/tandemConfig.cmake.in
    ${PROJECT_BINARY_DIR}/tandemConfig.cmake INSTALL_DESTINATION ${TANDEM_CMAKE_DIR})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/tandemConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  set(find_modules cmake/FindAsio.cmake cmake/CoroutineCheck.cmake cmake/coroutine_check.cpp)
  if(engine IN_LIST TANDEM_INSTALLED_COMPONENTS)
    list(APPEND find_modules cmake/FindTandemTorch.cmake)
  endif()
  install(FILES ${PROJECT_BINARY_DIR}/tandemConfig.cmake ${PROJECT_BINARY_DIR}/tandemConfigVersion.cmake ${find_modules}
    DESTINATION ${TANDEM_CMAKE_DIR})
endfunction()
