// A map from byte strings that finds the longest stored key which a text begins with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ds4::store {

/// Compressed radix tree. Keys may hold any bytes, also be empty. Not thread-safe.
template <class Value>
class RadixTree {
 public:
  struct Match {
    size_t length = 0;  // of the key
    const Value* value = nullptr;
  };

  /// Stores or replaces; true if the key is new.
  bool insert(std::string_view key, Value value) {
    Node* node = &root_;
    while (true) {
      if (key.empty()) {
        const bool fresh = !node->value;
        node->value = std::move(value);
        count_ += fresh ? 1 : 0;
        return fresh;
      }
      const auto place = node->find(key.front());
      if (place == node->children.end() || (*place)->label.front() != key.front()) {
        auto leaf = std::make_unique<Node>();
        leaf->label = key;
        leaf->value = std::move(value);
        node->children.insert(place, std::move(leaf));
        ++count_;
        return true;
      }
      const size_t common = common_prefix((*place)->label, key);
      if (common < (*place)->label.size()) split(*place, common);
      node = place->get();
      key.remove_prefix(common);
    }
  }

  const Value* find(std::string_view key) const {
    const Match match = longest_prefix(key);
    return match.length == key.size() ? match.value : nullptr;
  }

  /// The longest key that `text` begins with; no value if there is none.
  Match longest_prefix(std::string_view text) const {
    Match best;
    const Node* node = &root_;
    size_t length = 0;
    while (true) {
      if (node->value) best = {length, &*node->value};
      if (length == text.size()) return best;
      const auto place = node->find(text[length]);
      if (place == node->children.end() || !text.substr(length).starts_with((*place)->label)) return best;
      node = place->get();
      length += node->label.size();
    }
  }

  /// False if there is no such key.
  bool erase(std::string_view key) { return erase_below(root_, key); }

  size_t size() const { return count_; }

 private:
  struct Node {
    std::string label;  // empty at the root only
    std::optional<Value> value;
    std::vector<std::unique_ptr<Node>> children;  // by the first byte of their labels

    auto find(char byte) const { return lower_bound(children, byte); }
    auto find(char byte) { return lower_bound(children, byte); }

    template <class Children>
    static auto lower_bound(Children& all, char byte) {
      return std::lower_bound(all.begin(), all.end(), byte,
                              [](const auto& child, char wanted) { return child->label.front() < wanted; });
    }
  };

  static size_t common_prefix(std::string_view a, std::string_view b) {
    return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  }

  /// Puts a node between `child` and its parent, `length` bytes down its label.
  static void split(std::unique_ptr<Node>& child, size_t length) {
    auto upper = std::make_unique<Node>();
    upper->label = child->label.substr(0, length);
    child->label.erase(0, length);
    upper->children.push_back(std::move(child));
    child = std::move(upper);
  }

  bool erase_below(Node& node, std::string_view key) {
    if (key.empty()) {
      if (!node.value) return false;
      node.value.reset();
      --count_;
      return true;
    }
    const auto place = node.find(key.front());
    if (place == node.children.end() || !key.starts_with((*place)->label)) return false;
    if (!erase_below(**place, key.substr((*place)->label.size()))) return false;
    Node& child = **place;
    if (!child.value && child.children.empty()) {
      node.children.erase(place);
    } else if (!child.value && child.children.size() == 1) {
      std::unique_ptr<Node> only = std::move(child.children.front());
      only->label.insert(0, child.label);
      *place = std::move(only);
    }
    return true;
  }

  Node root_;
  size_t count_ = 0;
};

}  // namespace ds4::store
