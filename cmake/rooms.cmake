# How the parts of Atlas are declared: rooms of the daemon, plugins, kernel packs, programs, tests.

# atlas_add_plugin and atlas_add_cpu_pack, which the SDK package brings to other trees too.
include(${CMAKE_CURRENT_LIST_DIR}/sdk/AtlasSdkFunctions.cmake)

# A room is one static library of daemon/<name>. Files are listed, never globbed.
function(atlas_add_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;ROOMS;LIBRARIES" ${ARGN})
  add_library(atlas_${name} STATIC ${ROOM_SOURCES})
  target_include_directories(atlas_${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(atlas_${name} PRIVATE atlas_flags ${ROOM_LIBRARIES})
  foreach(room ${ROOM_ROOMS})
    target_link_libraries(atlas_${name} PUBLIC atlas_${room})
  endforeach()
endfunction()

# A doctest program; `LABELS unit|conformance|daemon|slow`. Suites run as one process each.
function(atlas_add_test name)
  cmake_parse_arguments(TEST "" "TIMEOUT" "SOURCES;LIBRARIES;LABELS;ARGS" ${ARGN})
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 300)
  endif()
  if(CMAKE_CROSSCOMPILING_EMULATOR)
    math(EXPR TEST_TIMEOUT "12 * ${TEST_TIMEOUT}")  # emulated processors are slower by 10 to 30 times
  endif()
  if(name IN_LIST ATLAS_ASAN_TESTS)
    list(APPEND TEST_LABELS asan)
  endif()
  add_executable(${name} ${TEST_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(${name} PRIVATE atlas_flags atlas_doctest_main ${TEST_LIBRARIES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE
    ATLAS_SOURCE_DIR="${CMAKE_SOURCE_DIR}" ATLAS_BINARY_DIR="${CMAKE_BINARY_DIR}")
  add_test(NAME ${name} COMMAND ${name} ${TEST_ARGS})
  set_tests_properties(${name} PROPERTIES LABELS "${TEST_LABELS}" TIMEOUT ${TEST_TIMEOUT}
    SKIP_RETURN_CODE 77)
endfunction()

# Platforms are noted while configuring and listed at its end.
function(atlas_note_platform name state)
  set_property(GLOBAL APPEND PROPERTY ATLAS_PLATFORM_NOTES "${name}: ${state}")
endfunction()

function(atlas_report_platforms)
  get_property(notes GLOBAL PROPERTY ATLAS_PLATFORM_NOTES)
  message(STATUS "Platforms:")
  foreach(note ${notes})
    message(STATUS "  ${note}")
  endforeach()
endfunction()
