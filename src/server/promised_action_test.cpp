#include "server/promised_action.hpp"

#include <gtest/gtest.h>

#include <string>

namespace ds4::server {
namespace {

TEST(PromisesAction, InEnglish) {
  for (const char* text : {
           "Let me look at the file.",
           "The test fails. Let me check main.cpp",
           "Now I’ll run the tests.",
           "I see. Okay, now let me quickly read src/server/answer.cpp…",
           "**Next, I will update the parser.**",
           "Done with the first part.\n\nI'm going to fix the second one!",
           "I'll start by exploring the code...",
           "Here is the change:",
           "First, let's see what is there.\n",
           "Let me use the search tool.",
           "I will look at your project first.",
       }) {
    EXPECT_TRUE(promises_action(text)) << text;
  }
}

TEST(PromisesAction, InChinese) {
  for (const char* text : {"让我查看一下这个文件。", "测试失败了。接下来，我来修复它", "好的，我先运行测试…",
                           "下面是修改：", "现在让我检查配置。"}) {
    EXPECT_TRUE(promises_action(text)) << text;
  }
}

TEST(PromisesAction, NotWhenInDoubt) {
  for (const char* text : {
           "",
           "   ",
           "The answer is 42.",
           "Let me know if you need anything else.",
           "Let me explain how it works. It is simple.",
           "Let me look at it. It is fine, nothing to do.",
           "I will be here.",
           "I'll update it once you send the file.",
           "I'll run it if you want.",
           "I'll wait for your answer.",
           "Shall I run the tests? Let me know.",
           "Should I fix it? I will check?",
           "I have updated the file.",
           "You can run the tests with make.",
           "I'll address this later.",
           "如果需要，我会修复它。",
           "我已经修改了文件。",
           "让我知道您的想法。",
           "要我查看一下吗？",
           "I read: it works",
           "I'll get back to you.",
           "I will use metric units from now on.",
           "I need to see the log to help you.",
           "```\nkey:\n```",
       }) {
    EXPECT_FALSE(promises_action(text)) << text;
  }
}

TEST(PromisesAction, OnlyTheEndOfALongTextCounts) {
  EXPECT_TRUE(promises_action(std::string(5000, 'x') + ".\nLet me check it."));
  EXPECT_FALSE(promises_action("Let me check it.\n" + std::string(5000, 'x')));
}

}  // namespace
}  // namespace ds4::server
