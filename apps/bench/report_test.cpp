#include "report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ds4::bench {
namespace {

using testing::HasSubstr;

FrontierRow sample_row() {
  FrontierRow row;
  row.ctx_tokens = 4096;
  row.prefill_tokens = 2048;
  row.prefill_seconds = 4;
  row.gen_tokens = 128;
  row.gen_seconds = 64;
  row.kvcache_bytes = 14403456;
  row.bytes_per_gen_token = 9.5e9;
  return row;
}

RunFacts sample_facts() {
  RunFacts facts;
  facts.machine = {"A \"quick\" one", 8, 1ull << 34, "Linux 6.1 x86_64"};
  facts.build = {"0.1.0", "1a2b3c", "GNU 12.2.0", "Release", false};
  facts.model.name = "m";
  facts.model.variant = "Flash";
  facts.model.backend = "cpu (8 threads, AVX-512)";
  facts.model_path = "/models/m.gguf";
  facts.expert_bits = 2;
  facts.read_bandwidth = 38e9;
  return facts;
}

TEST(Csv, HasTheSixColumnsOfTheOriginal) {
  Options options;
  EXPECT_EQ(csv_header(options), "ctx_tokens,prefill_tokens,prefill_tps,gen_tokens,gen_tps,kvcache_bytes\n");
  EXPECT_EQ(csv_row(options, sample_facts(), sample_row()), "4096,2048,512.00,128,2.00,14403456\n");
}

TEST(Csv, TwoMoreColumnsWhenAskedFor) {
  Options options;
  options.bandwidth = true;
  EXPECT_THAT(csv_header(options),
              testing::EndsWith(",kvcache_bytes,gen_bytes_per_token,gen_bandwidth_percent\n"));
  EXPECT_EQ(csv_row(options, sample_facts(), sample_row()),
            "4096,2048,512.00,128,2.00,14403456,9500000000,50.00\n");
}

FrontierRow row_with_disk() {
  FrontierRow row = sample_row();
  row.disk = {
      .written_bytes = 30'000'000, .write_seconds = 0.06, .read_bytes = 120'000'000, .read_seconds = 0.04};
  return row;
}

TEST(Csv, SixMoreColumnsForTheDisk) {
  Options options;
  options.kv_folder = "cache";
  EXPECT_THAT(csv_header(options),
              testing::EndsWith(",kvcache_bytes,kv_write_bytes,kv_write_seconds,kv_write_gb_per_second,"
                                "kv_read_bytes,kv_read_seconds,kv_read_gb_per_second\n"));
  EXPECT_EQ(csv_row(options, sample_facts(), row_with_disk()),
            "4096,2048,512.00,128,2.00,14403456,30000000,0.060000,0.500,120000000,0.040000,3.000\n");
  options.bandwidth = true;
  EXPECT_THAT(csv_header(options), HasSubstr(",gen_bandwidth_percent,kv_write_bytes,"));
  EXPECT_THAT(csv_row(options, sample_facts(), row_with_disk()), HasSubstr(",50.00,30000000,"));
}

TEST(Csv, NoTimeIsNoSpeed) {
  FrontierRow row;
  row.ctx_tokens = row.prefill_tokens = 5;
  EXPECT_EQ(csv_row({}, {}, row), "5,5,0.00,0,0.00,0\n");
}

TEST(RowSentence, ComparesWithTheMeasuredRate) {
  RunFacts facts = sample_facts();
  EXPECT_EQ(row_sentence(facts, sample_row()),
            "4096: prefill 512.00 t/s, generation 2.00 t/s, 9.50 GB per token = 19.0 GB/s (50.0 % of 38.0)");
  facts.read_bandwidth.reset();
  FrontierRow small = sample_row();
  small.bytes_per_gen_token = 14.06e6;
  EXPECT_THAT(row_sentence(facts, small), HasSubstr(", 14.06 MB per token = 0.0 GB/s"));
  EXPECT_THAT(row_sentence(facts, sample_row()), testing::EndsWith("= 19.0 GB/s"));
}

TEST(RowSentence, EndsWithTheDisk) {
  FrontierRow row = row_with_disk();
  constexpr const char* disk =
      "; state written: 30.00 MB in 60.0 ms (0.50 GB/s), read: 120.00 MB in 40.0 ms (3.00 GB/s)";
  EXPECT_THAT(row_sentence(sample_facts(), row), testing::EndsWith(std::string("(50.0 % of 38.0)") + disk));
  row.gen_tokens = 0;
  EXPECT_EQ(row_sentence(sample_facts(), row), std::string("4096: prefill 512.00 t/s") + disk);
}

TEST(JsonReport, HoldsTheDiskIfItWasMeasured) {
  Options options;
  EXPECT_THAT(json_report(options, sample_facts(), {sample_row()}, true), testing::Not(HasSubstr("\"kv_")));
  options.kv_folder = "a \"cache\"";
  const std::string text = json_report(options, sample_facts(), {row_with_disk()}, true);
  EXPECT_THAT(text, HasSubstr("\"backend\":\"cpu\",\"kv_disk_dir\":\"a \\\"cache\\\"\"},\n"));
  EXPECT_THAT(text,
              HasSubstr("\"gen_bandwidth_percent\":50,\"kv_write_bytes\":30000000,\"kv_write_seconds\":0.06,"
                        "\"kv_write_gb_per_second\":0.5,\"kv_read_bytes\":120000000,"
                        "\"kv_read_seconds\":0.04,\"kv_read_gb_per_second\":3}"));
}

TEST(JsonReport, HoldsTheRun) {
  const std::string text = json_report({}, sample_facts(), {sample_row()}, false);
  EXPECT_THAT(text, HasSubstr("\"complete\":false"));
  EXPECT_THAT(text, HasSubstr("\"processor\":\"A \\\"quick\\\" one\""));
  EXPECT_THAT(text, HasSubstr("\"gen_bandwidth_percent\":50}"));
  EXPECT_THAT(text, HasSubstr("\"read_bytes_per_second\":38000000000"));
  EXPECT_THAT(json_report({}, sample_facts(), {}, true), testing::EndsWith("\"rows\":[]\n}\n"));
}

TEST(LogitsJson, HasTheFieldsOfTheOriginal) {
  Options options;
  options.context_tokens = 5000;
  const std::vector<float> logits{1, 3.5f, std::numeric_limits<float>::infinity(), 0, 0, 0, 0, 0, 2};
  EXPECT_EQ(logits_json(options, sample_facts(), sample_row(), logits), R"({
  "source":"ds4-bench",
  "model":"/models/m.gguf",
  "backend":"cpu",
  "quality":false,
  "quant_bits":2,
  "prompt_tokens":4096,
  "frontier_tokens":4096,
  "prefill_tokens":2048,
  "ctx":5000,
  "vocab":9,
  "argmax_id":1,
  "argmax_logit":3.5,
  "logits":[
    1,3.5,null,0,0,0,0,0,
    2
  ]
}
)");
}

TEST(ArgmaxExcept, LeavesOneTokenOut) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(argmax_except(std::vector<float>{1, 5, 3, 3}, 1), 2);
  EXPECT_EQ(argmax_except(std::vector<float>{1, 5, 3, 3}, 0), 1);
  EXPECT_EQ(argmax_except(std::vector<float>{nan, 5, -2}, 1), 2);
  EXPECT_EQ(argmax_except(std::vector<float>{nan, 5, -INFINITY}, 1), -1);
  EXPECT_EQ(argmax_except({}, 1), -1);
}

TEST(ProcessorName, IsTheFirstOne) {
  EXPECT_EQ(processor_name("processor\t: 0\nmodel name\t: Fast One @ 3 GHz\nmodel name\t: Other\n"),
            "Fast One @ 3 GHz");
  EXPECT_EQ(processor_name("CPU part : 0xd0c\n"), "");
  EXPECT_EQ(processor_name("model name\t:"), "");
}

}  // namespace
}  // namespace ds4::bench
