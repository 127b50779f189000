#include "result_files.hpp"

#include "base/error.hpp"
#include "common/atomic_file.hpp"

namespace ds4::steer {

Result<void> check_writable(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) DS4_TRY(cli::AtomicFile::create(path));
  return {};
}

Result<void> write_result(const std::vector<ResultFile>& files) {
  std::vector<cli::AtomicFile> open;
  for (const ResultFile& file : files) {
    DS4_ASSIGN(auto target, cli::AtomicFile::create(file.path));
    DS4_TRY(target.write(file.bytes));
    open.push_back(std::move(target));
  }
  for (cli::AtomicFile& file : open) DS4_TRY(file.commit());
  return {};
}

std::string stem_of(const std::string& name, std::string_view first, std::string_view second) {
  for (const std::string_view extension : {first, second}) {
    if (name.size() > extension.size() && name.ends_with(extension))
      return name.substr(0, name.size() - extension.size());
  }
  return name;
}

}  // namespace ds4::steer
