# Packs of GPU platforms: which compiler builds them, and the same sources as emulated packs for tests.
#
# atlas_add_gpu_pack(PLATFORM MODULES file... [INSTRUCTIONS module/kernel=instruction...])
# builds one file a module in lib/atlas/kernels/PLATFORM, with a report of registers and spills beside
# the build's intermediate files. A spill without an excuse (kernels/spills.txt) fails the build, and so
# does an instruction that is not there. A module is a .cu or .hip file.

# nvcc 13 knows sm_121a; its folder has ptxas.
find_program(ATLAS_NVCC nvcc HINTS /usr/local/cuda/bin)
set(ATLAS_NVCC_STATE "skipped: no nvcc (CUDA toolkit 13)")
if(ATLAS_NVCC)
  execute_process(COMMAND ${ATLAS_NVCC} --version OUTPUT_VARIABLE nvcc_text ERROR_QUIET)
  string(REGEX MATCH "release ([0-9]+)\\.([0-9]+)" nvcc_release "${nvcc_text}")
  if(nvcc_release AND CMAKE_MATCH_1 GREATER_EQUAL 13)
    set(ATLAS_NVCC_STATE "")
  else()
    set(ATLAS_NVCC_STATE "skipped: ${ATLAS_NVCC} is not of CUDA toolkit 13 or later")
  endif()
endif()
# clang 19 is the first in Debian 12 that knows gfx1151. Headers and device libraries of ROCm are not
# needed: the device layer brings what it uses.
find_program(ATLAS_HIP_CLANG NAMES clang++-19 clang++-20 clang++-21)
find_program(ATLAS_HIP_LLD NAMES ld.lld-19 ld.lld-20 ld.lld-21)
set(ATLAS_HIP_STATE "")
if(NOT ATLAS_HIP_CLANG OR NOT ATLAS_HIP_LLD)
  set(ATLAS_HIP_STATE "skipped: no clang++-19 with lld-19")
endif()

# Sets in the caller: form, define, flags, extension, state.
macro(atlas_gpu_platform platform)
  if(platform STREQUAL "h200")
    set(form cuda)
    set(define ATLAS_ARCH_H200)
    set(architecture 90a)
  elseif(platform STREQUAL "gb10")
    set(form cuda)
    set(define ATLAS_ARCH_GB10)
    set(architecture 121a)
  elseif(platform STREQUAL "strix-hip")
    set(form hip)
    set(define ATLAS_ARCH_STRIX_HIP)
    set(architecture gfx1151)
  else()
    message(FATAL_ERROR "atlas_add_gpu_pack: no platform '${platform}'")
  endif()
  if(form STREQUAL "cuda")
    set(extension cubin)
    set(state "${ATLAS_NVCC_STATE}")
  else()
    set(extension hsaco)
    set(state "${ATLAS_HIP_STATE}")
  endif()
endmacro()

# One module as FOLDER/NAME.cubin or .hsaco, whose path `result` gets. `ARGN`: module/kernel=instruction, of
# which those of other modules are left out. The platform's compiler is there.
function(atlas_gpu_module platform source folder result)
  atlas_gpu_platform(${platform})
  get_filename_component(module ${source} NAME_WE)
  set(file ${folder}/${module}.${extension})
  set(work ${CMAKE_CURRENT_BINARY_DIR}/${platform})
  file(MAKE_DIRECTORY ${folder} ${work})
  list(FILTER ARGN INCLUDE REGEX "^${module}/")
  list(TRANSFORM ARGN REPLACE "^${module}/" "")
  list(JOIN ARGN "|" instructions)
  add_custom_command(OUTPUT ${file}
    COMMAND ${CMAKE_COMMAND} -DFORM=${form} -DSOURCE=${source} -DOUTPUT=${file} -DWORK=${work}/${module}
      -DPLATFORM=${platform} -DSPILLS=${CMAKE_SOURCE_DIR}/kernels/spills.txt
      -DARCHITECTURE=${architecture} -DDEFINE=${define} -DROOT=${CMAKE_SOURCE_DIR}
      -DNVCC=${ATLAS_NVCC} -DCLANG=${ATLAS_HIP_CLANG} "-DINSTRUCTIONS=${instructions}"
      -P ${CMAKE_SOURCE_DIR}/cmake/build_gpu_module.cmake
    DEPENDS ${source} ${CMAKE_SOURCE_DIR}/cmake/build_gpu_module.cmake ${CMAKE_SOURCE_DIR}/kernels/spills.txt
    DEPFILE ${work}/${module}.d
    COMMENT "Building ${module}.${extension} for ${platform}"
    VERBATIM)
  set(${result} ${file} PARENT_SCOPE)
endfunction()

function(atlas_add_gpu_pack platform)
  cmake_parse_arguments(PACK "" "" "MODULES;INSTRUCTIONS" ${ARGN})
  atlas_gpu_platform(${platform})
  list(TRANSFORM PACK_MODULES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set_property(GLOBAL PROPERTY ATLAS_PACK_MODULES_${platform} ${PACK_MODULES})
  if(NOT ATLAS_TARGETS STREQUAL "all" AND NOT platform IN_LIST ATLAS_TARGETS)
    set(state "skipped: not in ATLAS_TARGETS")
  endif()
  if(state)
    atlas_note_platform(${platform} "${state}")
    return()
  endif()

  set(files "")
  set(names "")
  foreach(source ${PACK_MODULES})
    get_filename_component(name ${source} NAME_WE)
    list(APPEND names ${name})
    atlas_gpu_module(${platform} ${source} ${CMAKE_BINARY_DIR}/lib/atlas/kernels/${platform} file
      ${PACK_INSTRUCTIONS})
    list(APPEND files ${file})
  endforeach()
  # For tools that must know whether a pack is whole.
  string(REPLACE ";" "\n" lines "${names}")
  file(WRITE ${CMAKE_BINARY_DIR}/kernels/${platform}/modules.txt "${lines}\n")
  # What a module of another name left behind would bring its kernels a second time.
  file(GLOB built ${CMAKE_BINARY_DIR}/lib/atlas/kernels/${platform}/*.${extension})
  list(REMOVE_ITEM built ${files})
  if(built)
    file(REMOVE ${built})
  endif()
  foreach(wanted ${PACK_INSTRUCTIONS})
    string(REGEX REPLACE "/.*" "" module ${wanted})
    if(NOT module IN_LIST names)
      message(FATAL_ERROR "pack ${platform}: '${wanted}' names no module of it")
    endif()
  endforeach()
  string(REPLACE "-" "_" target atlas_kernels_${platform})
  add_custom_target(${target} ALL DEPENDS ${files})
  set_property(GLOBAL APPEND PROPERTY ATLAS_GPU_PACKS ${platform})
  set_property(GLOBAL APPEND PROPERTY ATLAS_GPU_PACK_TARGETS ${target})
  install(FILES ${files} DESTINATION lib/atlas/kernels/${platform})
  atlas_note_platform(${platform} "built")
endfunction()

# The modules of a platform as a shared object for the host, whose kernels the emulator runs:
# tests/emulated/PLATFORM.so. Needs no compiler of a vendor.
function(atlas_add_emulated_pack platform)
  atlas_gpu_platform(${platform})
  get_property(modules GLOBAL PROPERTY ATLAS_PACK_MODULES_${platform})
  string(REPLACE "-" "_" target atlas_emulated_${platform})
  set_source_files_properties(${modules} PROPERTIES LANGUAGE CXX)
  add_library(${target} MODULE ${modules})
  set_target_properties(${target} PROPERTIES PREFIX "" SUFFIX ".so" OUTPUT_NAME ${platform}
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/emulated)
  target_compile_definitions(${target} PRIVATE ATLAS_EMULATED=1 ${define}=1)
  target_link_libraries(${target} PRIVATE atlas_flags atlas_kernels_common atlas_simt)
endfunction()
