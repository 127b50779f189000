# Shared compile settings, and one helper that turns a folder of src/ into a static library
# plus a unit-test program made of the *_test.cpp files that stand beside the code.

add_library(ds4_settings INTERFACE)
target_include_directories(ds4_settings INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>)
target_compile_options(ds4_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow
  -Wno-missing-field-initializers>)
if(DS4_WERROR)
  target_compile_options(ds4_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
# Results must not depend on whether the compiler happened to fuse a multiply and an add.
target_compile_options(ds4_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(DS4_SANITIZE)
  target_compile_options(ds4_settings INTERFACE -fsanitize=${DS4_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  if(DS4_SANITIZE MATCHES thread)
    # The sanitizer does not know fences; Asio's stand beside mutexes that order the same things.
    target_compile_definitions(ds4_settings INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
  endif()
  target_link_options(ds4_settings INTERFACE -fsanitize=${DS4_SANITIZE})
  target_compile_definitions(ds4_settings INTERFACE DS4_SANITIZED)  # for tests of limits that a sanitizer needs for itself
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # Highway converts NaN to integers, as the instructions do.
    target_compile_options(ds4_settings INTERFACE -fsanitize-ignorelist=${PROJECT_SOURCE_DIR}/cmake/sanitizer_ignorelist.txt)
  endif()
endif()
if(DS4_FUZZ)
  target_compile_options(ds4_settings INTERFACE -fsanitize=fuzzer-no-link)  # coverage of the code under test
endif()

# ds4_tests(TARGET LABEL label SOURCES ... LIBS ...): one GoogleTest program, one ctest entry per case.
# FIXTURE nano_checkpoint: runs after the nano model was unpacked and converted; DS4_NANO_DIR is where (tests/fixtures).
function(ds4_tests name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT;FIXTURE" "SOURCES;LIBS" ${ARGN})
  if(NOT DS4_TESTS OR NOT ARG_SOURCES)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} ds4_settings GTest::gtest_main GTest::gmock)
  if(DS4_SANITIZE)
    target_compile_options(${name} PRIVATE -O0)  # what is looked at are the libraries; this compiles twice as fast
  endif()
  if(ARG_LABEL MATCHES "^(unit|hostile)$")  # those that run with sanitizers
    if(NOT TARGET ds4_unit_and_hostile_tests)
      add_custom_target(ds4_unit_and_hostile_tests)
    endif()
    add_dependencies(ds4_unit_and_hostile_tests ${name})
  endif()
  set(source_dir "${PROJECT_SOURCE_DIR}")
  set(nano_dir "${PROJECT_BINARY_DIR}/nano")
  if(DS4_TEST_ROOT)
    set(source_dir "${DS4_TEST_ROOT}")
    set(nano_dir "${DS4_TEST_ROOT}/nano")
  endif()
  target_compile_definitions(${name} PRIVATE DS4_SOURCE_DIR="${source_dir}")
  set(fixture)
  if(ARG_FIXTURE)
    set(fixture FIXTURES_REQUIRED ${ARG_FIXTURE})
    target_compile_definitions(${name} PRIVATE DS4_NANO_DIR="${nano_dir}")
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${ARG_TIMEOUT} ${fixture})
endfunction()

# ds4_layer(NAME DIR dir [DEPS ...] [PROGRAMS_ONLY]): library ds4_NAME from DIR/*.cpp, tests ds4_NAME_test from
# DIR/*_test.cpp, and with DS4_FUZZ one libFuzzer program ds4_X_fuzz per DIR/X_fuzz.cpp.
# PROGRAMS_ONLY: only our programs use it, so it is not part of the installed library.
function(ds4_layer name)
  cmake_parse_arguments(ARG "PROGRAMS_ONLY" "DIR" "DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${ARG_DIR}/*.cpp")
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  set(fuzzers ${sources})
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "_(test|bench|fuzz)\\.cpp$")
  if(sources)
    add_library(ds4_${name} STATIC ${sources})
    target_link_libraries(ds4_${name} PUBLIC ${ARG_DEPS} PRIVATE $<BUILD_INTERFACE:ds4_settings>)
    if(NOT ARG_PROGRAMS_ONLY)
      set_property(GLOBAL APPEND PROPERTY DS4_LAYER_LIBRARIES ds4_${name})
    endif()
  else()
    add_library(ds4_${name} INTERFACE)
    target_link_libraries(ds4_${name} INTERFACE ${ARG_DEPS})
  endif()
  ds4_tests(ds4_${name}_test LABEL unit SOURCES ${tests} LIBS ds4_${name})
  if(DS4_FUZZ)
    foreach(source ${fuzzers})
      get_filename_component(stem "${source}" NAME_WE)
      add_executable(ds4_${stem} ${source})
      target_link_libraries(ds4_${stem} PRIVATE ds4_${name} ds4_settings)
      target_compile_options(ds4_${stem} PRIVATE -fsanitize=fuzzer)
      target_link_options(ds4_${stem} PRIVATE -fsanitize=fuzzer)
    endforeach()
  endif()
endfunction()
