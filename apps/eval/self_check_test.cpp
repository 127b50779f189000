// The self-test itself: it runs, it is large, and it can fail.
#include "self_check.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "extract.hpp"

namespace ds4::eval {
namespace {

TEST(SelfCheck, Passes) {
  const SelfCheck result = run_self_check();
  for (const std::string& failure : result.failures) ADD_FAILURE() << failure;
  EXPECT_GE(result.cases, 150u);
}

TEST(SelfCheck, NamesAreUnique) {
  std::set<std::string> names;
  for (const auto cases : {choice_cases(), number_cases(), text_cases()}) {
    for (const ExtractorCase& c : cases) {
      EXPECT_TRUE(names.insert(std::to_string(static_cast<int>(c.kind)) + c.name).second) << c.name;
    }
  }
}

}  // namespace
}  // namespace ds4::eval
