# Component `sdk` of the installation: headers below include/atlas, and the package AtlasSdk.
include(CMakePackageConfigHelpers)

set(ATLAS_SDK_INCLUDE_DIR ${CMAKE_INSTALL_INCLUDEDIR}/atlas)
set(ATLAS_SDK_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/AtlasSdk)

# Headers keep their paths, so that `#include "plugins/abi/..."` reads alike in and out of the tree.
foreach(folder plugins/abi plugins/sdk kernels/common)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/${folder}/ DESTINATION ${ATLAS_SDK_INCLUDE_DIR}/${folder}
    COMPONENT sdk FILES_MATCHING PATTERN "*.h" PATTERN "*.map")
endforeach()
install(FILES ${CMAKE_SOURCE_DIR}/kernels/cpu/kernel.h ${CMAKE_SOURCE_DIR}/kernels/cpu/exports.map
  DESTINATION ${ATLAS_SDK_INCLUDE_DIR}/kernels/cpu COMPONENT sdk)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/AtlasSdkConfig.cmake.in
  ${CMAKE_BINARY_DIR}/sdk/AtlasSdkConfig.cmake
  INSTALL_DESTINATION ${ATLAS_SDK_PACKAGE_DIR} PATH_VARS ATLAS_SDK_INCLUDE_DIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/sdk/AtlasSdkConfigVersion.cmake
  COMPATIBILITY SameMajorVersion)
install(FILES
    ${CMAKE_BINARY_DIR}/sdk/AtlasSdkConfig.cmake
    ${CMAKE_BINARY_DIR}/sdk/AtlasSdkConfigVersion.cmake
    ${CMAKE_CURRENT_LIST_DIR}/AtlasSdkFunctions.cmake
  DESTINATION ${ATLAS_SDK_PACKAGE_DIR} COMPONENT sdk)
