# Writes OUTPUT, a C++ source with the bytes of FILES (paths separated by |) as an array each.
string(REPLACE "|" ";" files "${FILES}")
set(arrays)
set(table)
foreach(file IN LISTS files)
  get_filename_component(name "${file}" NAME_WE)
  file(READ "${file}" bytes HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(APPEND arrays "constexpr unsigned char ${name}_bytes[] = {${bytes}};\n")
  string(APPEND table
    "  if (name == \"${name}\") return {reinterpret_cast<const char*>(${name}_bytes), sizeof ${name}_bytes};\n")
endforeach()
file(WRITE "${OUTPUT}" "// Made by the build.
#include \"suite.hpp\"

namespace ds4::eval {
namespace {
${arrays}}  // namespace

std::string_view embedded_suite(std::string_view name) {
${table}  return {};
}

}  // namespace ds4::eval
")
