# How plugins and CPU kernel packs are built: the same two functions in this tree and, installed as
# part of the package AtlasSdk, in anyone else's. They expect the targets atlas_flags, atlas_abi,
# atlas_sdk and atlas_kernels_common.

# The folder that holds plugins/ and kernels/: this source tree, or the package's include folder.
function(atlas_sdk_root result)
  get_target_property(root atlas_abi INTERFACE_INCLUDE_DIRECTORIES)
  set(${result} ${root} PARENT_SCOPE)
endfunction()

# A shared object without prefix, hidden but for what `exports` (a version script) names.
function(atlas_sdk_module name exports directory)
  set_target_properties(${name} PROPERTIES
    PREFIX "" SUFFIX ".so" LIBRARY_OUTPUT_DIRECTORY ${directory}
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
    POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    LINK_DEPENDS ${exports})
  # An undefined symbol is found by whoever links the file, not by whoever loads it.
  target_link_options(${name} PRIVATE -Wl,--version-script=${exports} -Wl,-z,defs)
endfunction()

# A plugin is one shared object that exports only its entry symbol.
# atlas_add_plugin(NAME SOURCES file... [LIBRARIES target...] [OUTPUT_DIRECTORY folder])
# OUTPUT_DIRECTORY: lib/atlas/plugins of the build unless given.
function(atlas_add_plugin name)
  cmake_parse_arguments(PLUGIN "" "OUTPUT_DIRECTORY" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT PLUGIN_OUTPUT_DIRECTORY)
    set(PLUGIN_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/atlas/plugins)
  endif()
  atlas_sdk_root(root)
  add_library(${name} MODULE ${PLUGIN_SOURCES})
  atlas_sdk_module(${name} ${root}/plugins/sdk/exports.map ${PLUGIN_OUTPUT_DIRECTORY})
  target_link_libraries(${name} PRIVATE atlas_flags atlas_sdk atlas_kernels_common ${PLUGIN_LIBRARIES})
endfunction()

# A CPU kernel pack is one shared object that exports the kernels' symbols and their digests.
# atlas_add_cpu_pack(NAME SOURCES file... [LIBRARIES target...] [PLUGIN name] [OUTPUT_DIRECTORY folder])
# PLUGIN: the pack belongs to that plugin and goes into the folder beside it where the host looks;
# its kernels' names begin with the plugin's name and an underscore. Otherwise it goes to
# lib/atlas/kernels/cpu of the build.
function(atlas_add_cpu_pack name)
  cmake_parse_arguments(PACK "" "PLUGIN;OUTPUT_DIRECTORY" "SOURCES;LIBRARIES" ${ARGN})
  if(PACK_PLUGIN AND NOT PACK_OUTPUT_DIRECTORY)
    get_target_property(beside ${PACK_PLUGIN} LIBRARY_OUTPUT_DIRECTORY)
    set(PACK_OUTPUT_DIRECTORY ${beside}/${PACK_PLUGIN}.kernels/cpu)
  elseif(NOT PACK_OUTPUT_DIRECTORY)
    set(PACK_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/atlas/kernels/cpu)
  endif()
  atlas_sdk_root(root)
  add_library(${name} MODULE ${PACK_SOURCES})
  atlas_sdk_module(${name} ${root}/kernels/cpu/exports.map ${PACK_OUTPUT_DIRECTORY})
  target_link_libraries(${name} PRIVATE atlas_flags atlas_kernels_common ${PACK_LIBRARIES})
endfunction()
