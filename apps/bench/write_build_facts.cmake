# Writes OUTPUT, a header with what is known about a build. Runs in every build, since the commit changes without
# CMake being run again; the file is touched only when its content changes.
set(commit unknown)
find_program(git git)
if(git)
  execute_process(COMMAND ${git} -C ${SOURCE_DIR} describe --always --dirty --abbrev=12 --exclude=*
    OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(commit ${described})
  endif()
endif()
file(WRITE ${OUTPUT}.new "// Made by the build.
#pragma once

namespace ds4::bench::facts {

inline constexpr const char* commit = \"${commit}\";
inline constexpr const char* compiler = \"${COMPILER}\";
inline constexpr const char* build_type = \"${BUILD_TYPE}\";
inline constexpr bool cuda = ${CUDA};

}  // namespace ds4::bench::facts
")
file(COPY_FILE ${OUTPUT}.new ${OUTPUT} ONLY_IF_DIFFERENT)
