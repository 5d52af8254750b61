# Everything comes from Debian 12 packages; tools/packages.txt lists them.

find_package(Threads REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(SYSTEMD REQUIRED IMPORTED_TARGET libsystemd)
pkg_check_modules(ELF REQUIRED IMPORTED_TARGET libelf)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(CURL REQUIRED IMPORTED_TARGET libcurl)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
set(Boost_USE_STATIC_LIBS ON)
find_package(Boost 1.81 REQUIRED COMPONENTS context filesystem system)

# spdlog is header-only, as one file includes it. fmt is not: compiled in each file that includes it, which
# most do, it takes three to six seconds more of each.
add_library(atlas_spdlog INTERFACE)
target_compile_definitions(atlas_spdlog INTERFACE SPDLOG_FMT_EXTERNAL)
target_link_libraries(atlas_spdlog INTERFACE fmt::fmt Threads::Threads)

add_library(atlas_doctest_main STATIC ${CMAKE_SOURCE_DIR}/tests/support/doctest_main.cpp)
target_include_directories(atlas_doctest_main PRIVATE ${CMAKE_SOURCE_DIR})
target_link_libraries(atlas_doctest_main PRIVATE atlas_flags)
