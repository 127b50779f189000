#include "report.hpp"

#include <fmt/format.h>

#include <cmath>

#include "common/json_dump.hpp"
#include "common/progress.hpp"
#include "ds4/sampling.hpp"

namespace ds4::bench {
namespace {

using cli::json_string;

const char* json_bool(bool value) {
  return value ? "true" : "false";
}

/// Nine significant digits; null for what JSON has no number for.
std::string json_real(double value) {
  return std::isfinite(value) ? fmt::format("{:.9g}", value) : "null";
}

std::string device_of(const RunFacts& facts) {
  return facts.model.backend.substr(0, facts.model.backend.find(' '));
}

std::string settings_json(const Options& o, const RunFacts& facts) {
  const char* kinds[] = {"built-in", "raw", "chat"};
  const PromptKind kind = o.prompt_kind();
  const std::string& path = kind == PromptKind::raw_file ? o.raw_prompt_path : o.chat_prompt_path;
  return fmt::format(
      "{{\"prompt\":{},\"prompt_file\":{},\"ctx_start\":{},\"ctx_max\":{},\"ctx_alloc\":{},\"step_incr\":{},"
      "\"step_mul\":{},\"gen_tokens\":{},\"teacher_forced_decode\":{},\"prefill_chunk\":{},\"quality\":{},"
      "\"backend\":{}{}}}",
      json_string(kinds[static_cast<size_t>(kind)]), kind == PromptKind::builtin ? "null" : json_string(path),
      o.steps.first, o.steps.last, o.context_tokens, o.steps.increment, json_real(o.steps.multiplier),
      o.gen_tokens, json_bool(o.teacher_forced), o.prefill_chunk_tokens, json_bool(o.exact_activations),
      json_string(device_of(facts)),
      o.kv_folder.empty() ? "" : ",\"kv_disk_dir\":" + json_string(o.kv_folder));
}

std::string disk_json(const DiskTimes& disk) {
  return fmt::format(
      ",\"kv_write_bytes\":{},\"kv_write_seconds\":{},\"kv_write_gb_per_second\":{},"
      "\"kv_read_bytes\":{},\"kv_read_seconds\":{},\"kv_read_gb_per_second\":{}",
      disk.written_bytes, json_real(disk.write_seconds), json_real(disk.write_bytes_per_second() * 1e-9),
      disk.read_bytes, json_real(disk.read_seconds), json_real(disk.read_bytes_per_second() * 1e-9));
}

std::string row_json(const RunFacts& facts, const FrontierRow& row) {
  const bool decoded = row.gen_tokens > 0;
  return fmt::format(
      "{{\"ctx_tokens\":{},\"prefill_tokens\":{},\"prefill_seconds\":{},\"prefill_tps\":{},\"gen_tokens\":{},"
      "\"gen_seconds\":{},\"gen_tps\":{},\"kvcache_bytes\":{},\"gen_bytes_per_token\":{},"
      "\"gen_bandwidth_percent\":{}{}}}",
      row.ctx_tokens, row.prefill_tokens, json_real(row.prefill_seconds), json_real(row.prefill_tps()),
      row.gen_tokens, json_real(row.gen_seconds), json_real(row.gen_tps()), row.kvcache_bytes,
      decoded ? fmt::format("{:.0f}", row.bytes_per_gen_token) : "null",
      decoded && facts.read_bandwidth ? json_real(bandwidth_percent(facts, row)) : "null",
      row.disk ? disk_json(*row.disk) : "");
}

std::string decoding_phrase(const RunFacts& facts, const FrontierRow& row) {
  const bool small = row.bytes_per_gen_token < 1e8;
  std::string text = fmt::format(", generation {:.2f} t/s, {:.2f} {} per token = {:.1f} GB/s", row.gen_tps(),
                                 row.bytes_per_gen_token * (small ? 1e-6 : 1e-9), small ? "MB" : "GB",
                                 row.bytes_per_gen_token * row.gen_tps() * 1e-9);
  if (facts.read_bandwidth) {
    text += fmt::format(" ({:.1f} % of {:.1f})", bandwidth_percent(facts, row), *facts.read_bandwidth * 1e-9);
  }
  return text;
}

std::string disk_phrase(const DiskTimes& disk) {
  return fmt::format(
      "; state written: {:.2f} MB in {:.1f} ms ({:.2f} GB/s), read: {:.2f} MB in {:.1f} ms ({:.2f} GB/s)",
      static_cast<double>(disk.written_bytes) * 1e-6, disk.write_seconds * 1e3,
      disk.write_bytes_per_second() * 1e-9, static_cast<double>(disk.read_bytes) * 1e-6,
      disk.read_seconds * 1e3, disk.read_bytes_per_second() * 1e-9);
}

}  // namespace

double bandwidth_percent(const RunFacts& facts, const FrontierRow& row) {
  const double measured = facts.read_bandwidth.value_or(0);
  return measured > 0 ? 100 * row.bytes_per_gen_token * row.gen_tps() / measured : 0;
}

std::vector<std::string> header_sentences(const RunFacts& facts) {
  const std::string measured =
      facts.read_bandwidth ? fmt::format(", reads {:.1f} GB/s", *facts.read_bandwidth * 1e-9) : "";
  return {"machine: " + sentence(facts.machine), "backend: " + facts.model.backend + measured,
          "build: " + sentence(facts.build),
          fmt::format("model: {} ({}, {}, {}-bit experts)", facts.model_path, facts.model.variant,
                      cli::human_bytes(facts.model.weight_bytes), facts.expert_bits)};
}

std::string csv_header(const Options& options) {
  return std::string("ctx_tokens,prefill_tokens,prefill_tps,gen_tokens,gen_tps,kvcache_bytes") +
         (options.bandwidth ? ",gen_bytes_per_token,gen_bandwidth_percent" : "") +
         (options.kv_folder.empty() ? ""
                                    : ",kv_write_bytes,kv_write_seconds,kv_write_gb_per_second,"
                                      "kv_read_bytes,kv_read_seconds,kv_read_gb_per_second") +
         "\n";
}

std::string csv_row(const Options& options, const RunFacts& facts, const FrontierRow& row) {
  std::string text = fmt::format("{},{},{:.2f},{},{:.2f},{}", row.ctx_tokens, row.prefill_tokens,
                                 row.prefill_tps(), row.gen_tokens, row.gen_tps(), row.kvcache_bytes);
  if (options.bandwidth) {
    text += fmt::format(",{:.0f},{:.2f}", row.bytes_per_gen_token, bandwidth_percent(facts, row));
  }
  if (row.disk) {
    text +=
        fmt::format(",{},{:.6f},{:.3f},{},{:.6f},{:.3f}", row.disk->written_bytes, row.disk->write_seconds,
                    row.disk->write_bytes_per_second() * 1e-9, row.disk->read_bytes, row.disk->read_seconds,
                    row.disk->read_bytes_per_second() * 1e-9);
  }
  return text + "\n";
}

std::string row_sentence(const RunFacts& facts, const FrontierRow& row) {
  std::string text = fmt::format("{}: prefill {:.2f} t/s", row.ctx_tokens, row.prefill_tps());
  if (row.gen_tokens > 0) text += decoding_phrase(facts, row);
  if (row.disk) text += disk_phrase(*row.disk);
  return text;
}

std::string json_report(const Options& options, const RunFacts& facts, const std::vector<FrontierRow>& rows,
                        bool complete) {
  std::string text =
      fmt::format("{{\n  \"source\":\"ds4-bench\",\n  \"complete\":{},\n", json_bool(complete));
  text += fmt::format(
      "  \"machine\":{{\"processor\":{},\"logical_processors\":{},\"memory_bytes\":{},\"system\":{}}},\n",
      json_string(facts.machine.processor), facts.machine.logical_processors, facts.machine.memory_bytes,
      json_string(facts.machine.system));
  text += fmt::format("  \"backend\":{},\n", json_string(facts.model.backend));
  text += fmt::format(
      "  \"build\":{{\"version\":{},\"commit\":{},\"compiler\":{},\"type\":{},\"cuda\":{}}},\n",
      json_string(facts.build.version), json_string(facts.build.commit), json_string(facts.build.compiler),
      json_string(facts.build.type), json_bool(facts.build.cuda));
  text += fmt::format(
      "  \"model\":{{\"path\":{},\"name\":{},\"variant\":{},\"weight_bytes\":{},\"quant_bits\":{}}},\n",
      json_string(facts.model_path), json_string(facts.model.name), json_string(facts.model.variant),
      facts.model.weight_bytes, facts.expert_bits);
  text += fmt::format("  \"settings\":{},\n", settings_json(options, facts));
  text += fmt::format("  \"read_bytes_per_second\":{},\n  \"rows\":[",
                      facts.read_bandwidth ? fmt::format("{:.0f}", *facts.read_bandwidth) : "null");
  for (size_t i = 0; i < rows.size(); ++i) {
    text += (i == 0 ? "\n    " : ",\n    ") + row_json(facts, rows[i]);
  }
  return text + (rows.empty() ? "]\n}\n" : "\n  ]\n}\n");
}

std::string logits_json(const Options& options, const RunFacts& facts, const FrontierRow& row,
                        std::span<const float> logits) {
  const Token best = argmax(logits);
  std::string text = fmt::format(
      "{{\n  \"source\":\"ds4-bench\",\n  \"model\":{},\n  \"backend\":{},\n  \"quality\":{},\n"
      "  \"quant_bits\":{},\n  \"prompt_tokens\":{},\n  \"frontier_tokens\":{},\n  \"prefill_tokens\":{},\n"
      "  \"ctx\":{},\n  \"vocab\":{},\n  \"argmax_id\":{},\n  \"argmax_logit\":{},\n  \"logits\":[",
      json_string(facts.model_path), json_string(device_of(facts)), json_bool(options.exact_activations),
      facts.expert_bits, row.ctx_tokens, row.ctx_tokens, row.prefill_tokens, options.context_tokens,
      logits.size(), best, logits.empty() ? "null" : cli::json_number(logits[static_cast<size_t>(best)]));
  for (size_t i = 0; i < logits.size(); ++i) {
    text += i == 0 ? "\n    " : i % 8 == 0 ? ",\n    " : ",";
    text += cli::json_number(logits[i]);
  }
  return text + "\n  ]\n}\n";
}

}  // namespace ds4::bench
