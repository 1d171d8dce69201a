# Stand-alone Asio (headers only) as asio::asio. Used by the tree and by an installed tandem's config file.
find_path(ASIO_INCLUDE_DIR asio.hpp)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Asio REQUIRED_VARS ASIO_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "asio.hpp not found: install libasio-dev, or pass -DASIO_INCLUDE_DIR=<folder>")
mark_as_advanced(ASIO_INCLUDE_DIR)
if(Asio_FOUND AND NOT TARGET asio::asio)
  add_library(asio::asio INTERFACE IMPORTED)
  set_target_properties(asio::asio PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${ASIO_INCLUDE_DIR}"
    INTERFACE_COMPILE_DEFINITIONS "ASIO_STANDALONE;ASIO_NO_DEPRECATED")
endif()
