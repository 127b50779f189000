// Notices that an answer says what will be done next, where the doing should follow.
#pragma once

#include <string_view>

namespace ds4::server {

/// Whether the text of an answer that has ended announces an action of its author ("Let me look at the
/// file.", "我来查看一下", a colon at the end). English and Chinese. When in doubt it does not: offers,
/// questions, conditions and what was done are no promises.
bool promises_action(std::string_view content);

}  // namespace ds4::server
