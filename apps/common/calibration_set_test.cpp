#include "common/calibration_set.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace ds4::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::string marker(calibration_marker);

TEST(CalibrationSet, PromptsLieBetweenMarkers) {
  EXPECT_THAT(calibration_prompts("\n\n" + marker + " a-1 code think x =====\nfirst\nprompt\n\n" + marker +
                                  " b =====\n  second\t\r\n" + marker + "\r\nthird"),
              ElementsAre("first\nprompt", "second", "third"));
}

TEST(CalibrationSet, ATextWithoutMarkersIsOnePrompt) {
  EXPECT_THAT(calibration_prompts(" one\n\ntwo \n"), ElementsAre("one\n\ntwo"));
  EXPECT_THAT(calibration_prompts(" \n"), IsEmpty());
  EXPECT_THAT(calibration_prompts(""), IsEmpty());
}

TEST(CalibrationSet, EmptyPromptsAndWhatComesBeforeTheFirstMarkerAreLeftOut) {
  EXPECT_THAT(
      calibration_prompts("a preface\n" + marker + "\n \n" + marker + "\n" + marker + " 3\nx\n" + marker),
      ElementsAre("x"));
}

TEST(CalibrationSet, MarkersBeginALine) {
  EXPECT_THAT(calibration_prompts(marker + "\nsay " + marker + "\n " + marker + "\nend"),
              ElementsAre("say " + marker + "\n " + marker + "\nend"));
}

}  // namespace
}  // namespace ds4::cli
