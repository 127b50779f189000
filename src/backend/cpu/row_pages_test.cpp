#include "backend/cpu/row_pages.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace ds4::cpu {
namespace {

constexpr size_t row_bytes = 12;

// A row that says who wrote it and when; three words, so that a wrong stride shows.
void append(RowPages& pages, uint32_t value) {
  const uint32_t words[3] = {value, ~value, value * 3};
  pages.append(reinterpret_cast<const std::byte*>(words));
}

uint32_t value_at(const RowPages& pages, size_t row) {
  uint32_t words[3];
  std::memcpy(words, pages[row], sizeof(words));
  EXPECT_EQ(words[1], ~words[0]);
  EXPECT_EQ(words[2], words[0] * 3);
  return words[0];
}

std::vector<uint32_t> values(const RowPages& pages) {
  std::vector<uint32_t> out;
  for (size_t i = 0; i < pages.size(); ++i) out.push_back(value_at(pages, i));
  return out;
}

RowPages filled(uint32_t count) {
  RowPages pages(row_bytes);
  for (uint32_t i = 0; i < count; ++i) append(pages, i);
  return pages;
}

std::vector<uint32_t> counting(uint32_t count) {
  std::vector<uint32_t> out;
  for (uint32_t i = 0; i < count; ++i) out.push_back(i);
  return out;
}

constexpr uint32_t boundary_counts[] = {0, 1, 62, 63, 64, 65, 127, 128, 129, 200};

TEST(RowPages, KeepsRowsAcrossPages) {
  for (uint32_t count : boundary_counts) {
    const RowPages pages = filled(count);
    EXPECT_EQ(pages.size(), count);
    EXPECT_EQ(values(pages), counting(count));
    EXPECT_EQ(pages.memory_bytes(), (count + 63) / 64 * 64 * row_bytes) << count;
  }
}

TEST(RowPages, BranchesDoNotSeeEachOther) {
  for (uint32_t count : boundary_counts) {
    RowPages first = filled(count);
    RowPages second = first;
    for (uint32_t i = 0; i < 70; ++i) {
      append(first, 1000 + i);
      append(second, 2000 + i);
    }
    for (uint32_t i = 0; i < count; ++i) {
      ASSERT_EQ(value_at(first, i), i);
      ASSERT_EQ(value_at(second, i), i);
    }
    for (uint32_t i = 0; i < 70; ++i) {
      ASSERT_EQ(value_at(first, count + i), 1000 + i) << count;
      ASSERT_EQ(value_at(second, count + i), 2000 + i) << count;
    }
  }
}

TEST(RowPages, ACheckpointStaysAsItWas) {
  for (uint32_t count : boundary_counts) {
    RowPages live = filled(count);
    const RowPages checkpoint = live;
    for (uint32_t i = 0; i < 100; ++i) append(live, 5000 + i);
    EXPECT_EQ(values(checkpoint), counting(count));
    live = checkpoint;
    append(live, 9);
    EXPECT_EQ(values(checkpoint), counting(count));
    EXPECT_EQ(value_at(live, count), 9u);
  }
}

TEST(RowPages, CopiesShareFullPages) {
  RowPages first = filled(130);
  RowPages second = first;
  append(second, 7);
  EXPECT_EQ(first[0], second[0]);
  EXPECT_EQ(first[64], second[64]);
  EXPECT_NE(first[128], second[128]);  // the open page is the second's own
}

TEST(RowPages, AppendsInPlaceWhereNothingIsShared) {
  RowPages pages = filled(10);
  const std::byte* page = pages[0];
  append(pages, 10);
  EXPECT_EQ(pages[0], page);
  const RowPages copy = pages;
  append(pages, 11);
  const std::byte* own = pages[0];
  EXPECT_NE(own, page);
  append(pages, 12);
  EXPECT_EQ(pages[0], own);  // copied once, not at every append
}

TEST(RowPages, TruncateThenAppend) {
  for (uint32_t count : boundary_counts) {
    for (uint32_t keep : boundary_counts) {
      if (keep > count) continue;
      RowPages pages = filled(count);
      pages.truncate(keep);
      EXPECT_EQ(values(pages), counting(keep));
      EXPECT_EQ(pages.memory_bytes(), (keep + 63) / 64 * 64 * row_bytes);
      append(pages, 777);
      EXPECT_EQ(pages.size(), keep + 1);
      EXPECT_EQ(value_at(pages, keep), 777u);
    }
  }
}

// Going back and taking another way must not write into a page that a checkpoint still reads.
TEST(RowPages, TruncateThenAppendOnSharedPages) {
  for (uint32_t count : boundary_counts) {
    for (uint32_t keep : boundary_counts) {
      if (keep > count) continue;
      RowPages live = filled(count);
      const RowPages checkpoint = live;
      live.truncate(keep);
      for (uint32_t i = 0; i < 66; ++i) append(live, 3000 + i);
      ASSERT_EQ(values(checkpoint), counting(count)) << count << " " << keep;
      for (uint32_t i = 0; i < keep; ++i) ASSERT_EQ(value_at(live, i), i);
      for (uint32_t i = 0; i < 66; ++i) ASSERT_EQ(value_at(live, keep + i), 3000 + i);
    }
  }
}

TEST(RowPages, CopyOfACopyAndSelfAssignment) {
  RowPages first = filled(70);
  RowPages second = first;
  RowPages third = second;
  append(second, 1), append(third, 2), append(first, 3);
  EXPECT_EQ(value_at(first, 70), 3u);
  EXPECT_EQ(value_at(second, 70), 1u);
  EXPECT_EQ(value_at(third, 70), 2u);
  const RowPages& same = third;
  third = same;
  EXPECT_EQ(value_at(third, 70), 2u);
  EXPECT_EQ(third.size(), 71u);
}

// Random operations on several branches against plain vectors.
TEST(RowPages, RandomHistory) {
  std::mt19937 random(1);
  std::vector<RowPages> pages(4, RowPages(row_bytes));
  std::vector<std::vector<uint32_t>> model(4);
  for (uint32_t step = 0; step < 5000; ++step) {
    const size_t a = random() % 4, b = random() % 4;
    const unsigned operation = random() % 64;
    if (operation == 0) {
      pages[a] = pages[b];
      model[a] = model[b];
    } else if (operation == 1) {
      const size_t keep = random() % (model[a].size() + 1);
      pages[a].truncate(keep);
      model[a].resize(keep);
    } else {
      append(pages[a], step);
      model[a].push_back(step);
    }
    if (step % 50 == 0) {
      for (size_t i = 0; i < 4; ++i) ASSERT_EQ(values(pages[i]), model[i]) << step;
    }
  }
}

}  // namespace
}  // namespace ds4::cpu
