#include "score_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "bars.hpp"
#include "base/error.hpp"
#include "common/json_dump.hpp"
#include "copy_gguf.hpp"
#include "ds4/version.hpp"
#include "format/gguf.hpp"
#include "format/gguf_writer.hpp"
#include "output_file.hpp"

namespace ds4::quantize {
namespace {

constexpr std::string_view score_prefix = "quantize.score.";

double share(size_t part, size_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

double mean(double sum, size_t count) {
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

std::string file_name(const ModelScore& model) {
  return std::filesystem::path(model.path).filename().string();
}

using Row = std::vector<std::string>;

/// The first column is text, the others are numbers.
std::string aligned(const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows[0].size(), 0);
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line = fmt::format("{:<{}}", row[0], widths[0]);
    for (size_t i = 1; i < row.size(); ++i) line += fmt::format("  {:>{}}", row[i], widths[i]);
    text += line + "\n";
  }
  return text;
}

bool any_continuations(const std::vector<ModelScore>& models) {
  return std::any_of(models.begin(), models.end(),
                     [](const ModelScore& model) { return model.total().continuations > 0; });
}

Row titles(const char* first, bool compared, bool continued) {
  Row row{first, "tokens", "NLL", "top-1"};
  if (compared) row.insert(row.end(), {"to ref.", "KL", "agree"});
  if (continued) row.insert(row.end(), {"first", "prefix"});
  row.push_back("seconds");
  return row;
}

Row values(const std::string& name, const ItemScore& score, bool compared, bool continued) {
  Row row{name, fmt::format("{}", score.tokens), fmt::format("{:.6f}", mean(score.nll, score.tokens)),
          fmt::format("{:.2f} %", 100 * share(score.likeliest, score.tokens))};
  if (compared) {
    row.push_back(
        fmt::format("{:+.3f} %", score.reference_nll > 0 ? 100 * (score.nll / score.reference_nll - 1) : 0));
    // Of a model from itself rounding leaves something on either side of 0.
    row.push_back(fmt::format("{:.6f}", std::max(0.0, mean(score.divergence, score.tokens))));
    row.push_back(fmt::format("{:.2f} %", 100 * share(score.agreements, score.tokens)));
  }
  if (continued && score.continuations > 0) {
    const auto count = static_cast<double>(score.continuations);
    row.push_back(fmt::format("{}/{}", score.first_matches, score.continuations));
    row.push_back(fmt::format("{:.2f}/{:.2f}", static_cast<double>(score.greedy_prefix) / count,
                              static_cast<double>(score.continued_tokens) / count));
  } else if (continued) {
    row.insert(row.end(), {"", ""});
  }
  row.push_back(fmt::format("{:.1f}", score.seconds));
  return row;
}

std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{:.9g}", value) : "null";
}

std::string fields_json(const ItemScore& score, bool compared) {
  std::string text = fmt::format("\"tokens\":{},\"nll\":{},\"mean_nll\":{},\"likeliest\":{},\"seconds\":{}",
                                 score.tokens, number(score.nll), number(mean(score.nll, score.tokens)),
                                 score.likeliest, number(score.seconds));
  if (compared)
    text += fmt::format(",\"reference_nll\":{},\"kl\":{},\"mean_kl\":{},\"agreements\":{}",
                        number(score.reference_nll), number(score.divergence),
                        number(mean(score.divergence, score.tokens)), score.agreements);
  if (score.continuations > 0)
    text += fmt::format(",\"continuations\":{},\"first_matches\":{},\"greedy_prefix\":{}",
                        score.continuations, score.first_matches, score.greedy_prefix);
  return text;
}

void add_score_keys(const ModelScore& model, const Compared& compared, format::GgufWriter& writer) {
  const ItemScore score = model.total();
  const auto key = [](std::string_view name) { return std::string(score_prefix) + std::string(name); };
  writer.add_string(key("version"), ds4::version);
  writer.add_string(key("backend"), model.backend);
  writer.add_uint64(key("items"), model.items.size());
  writer.add_uint64(key("tokens"), score.tokens);
  writer.add_float32(key("nll"), static_cast<float>(mean(score.nll, score.tokens)));
  writer.add_float32(key("top1"), static_cast<float>(share(score.likeliest, score.tokens)));
  if (score.continuations > 0) {
    writer.add_uint64(key("continuations"), score.continuations);
    writer.add_uint64(key("first_matches"), score.first_matches);
    writer.add_float32(key("greedy_prefix"),
                       static_cast<float>(share(score.greedy_prefix, score.continuations)));
  }
  if (!model.compared) return;
  writer.add_string(key("reference.model"), compared.model);
  writer.add_string(key("reference.fingerprint"), compared.fingerprint);
  writer.add_float32(key("reference.nll"), static_cast<float>(mean(score.reference_nll, score.tokens)));
  writer.add_float32(key("kl"), static_cast<float>(mean(score.divergence, score.tokens)));
  writer.add_float32(key("agreement"), static_cast<float>(share(score.agreements, score.tokens)));
}

/// A link stays a link: what it names gets the score.
std::string link_target(const std::string& path) {
  std::error_code error;
  const auto target = std::filesystem::canonical(path, error);
  return error ? path : target.string();
}

}  // namespace

std::string score_table(const std::vector<ModelScore>& models) {
  const bool compared = models[0].compared, continued = any_continuations(models);
  std::string text;
  if (models.size() == 1) {
    std::vector<Row> rows{titles("item", compared, continued)};
    for (const ItemScore& item : models[0].items) rows.push_back(values(item.id, item, compared, continued));
    text = aligned(rows) + "\n";
  }
  std::vector<Row> rows{titles("model", compared, continued)};
  for (const ModelScore& model : models)
    rows.push_back(values(file_name(model), model.total(), compared, continued));
  return text + aligned(rows);
}

std::string score_json(const std::vector<ModelScore>& models, const Compared& compared) {
  std::string text =
      fmt::format("{{\n  \"program\":\"ds4-quantize score\",\n  \"version\":{},\n  \"reference\":",
                  cli::json_string(ds4::version));
  text += compared.fingerprint.empty()
              ? "null"
              : fmt::format("{{\"model\":{},\"fingerprint\":{}}}", cli::json_string(compared.model),
                            cli::json_string(compared.fingerprint));
  text += ",\n  \"models\":[";
  for (size_t i = 0; i < models.size(); ++i) {
    const ModelScore& model = models[i];
    text += fmt::format(
        "{}\n    {{\"file\":{},\"name\":{},\"backend\":{},\"weight_bytes\":{},\"load_seconds\":{},\n     "
        "{},\n"
        "     \"items\":[",
        i > 0 ? "," : "", cli::json_string(file_name(model)), cli::json_string(model.name),
        cli::json_string(model.backend), model.weight_bytes, number(model.load_seconds),
        fields_json(model.total(), model.compared));
    for (size_t j = 0; j < model.items.size(); ++j)
      text += fmt::format("{}\n      {{\"id\":{},\"given\":{},{}}}", j > 0 ? "," : "",
                          cli::json_string(model.items[j].id), model.items[j].given,
                          fields_json(model.items[j], model.compared));
    text += "]}";
  }
  return text + "\n  ]\n}\n";
}

std::string score_chart(const std::vector<ModelScore>& models) {
  std::vector<std::string> labels;
  plot::BarPanel bytes{"size", {}, {}}, nll{"NLL of a token", {}, {}}, kl{"KL of a token", {}, {}};
  for (const ModelScore& model : models) {
    const ItemScore score = model.total();
    labels.push_back(file_name(model));
    bytes.values.push_back(static_cast<double>(model.weight_bytes));
    bytes.texts.push_back(model.weight_bytes >= 1'000'000'000
                              ? fmt::format("{:.1f} GB", static_cast<double>(model.weight_bytes) / 1e9)
                              : fmt::format("{:.1f} MB", static_cast<double>(model.weight_bytes) / 1e6));
    nll.values.push_back(mean(score.nll, score.tokens));
    nll.texts.push_back(fmt::format("{:.4f}", nll.values.back()));
    kl.values.push_back(std::max(0.0, mean(score.divergence, score.tokens)));
    kl.texts.push_back(fmt::format("{:.5f}", kl.values.back()));
  }
  std::vector<plot::BarPanel> panels{bytes, nll};
  if (models[0].compared) panels.push_back(kl);
  return plot::draw_bars("Scores of number formats", labels, panels);
}

Result<void> check_stampable(const std::string& path) {
  DS4_ASSIGN(const format::GgufFile file, format::GgufFile::open(path));
  if (file.find("split.count"))
    return fail(ErrorCode::unsupported, "{}: the score cannot be stamped into a split file", path);
  const std::string target = link_target(path);
  DS4_TRY(check_no_part(target, "remove it, unless that run is to go on"));
  std::error_code error;
  const uint64_t bytes = std::filesystem::file_size(target, error);
  if (!error) DS4_TRY(check_space(std::vector{OutputSize{target, bytes}}));
  return check_folder(target);
}

Result<void> stamp_score(const ModelScore& score, const Compared& compared,
                         const std::function<bool()>& cancelled) {
  DS4_TRY(check_stampable(score.path));
  DS4_ASSIGN(const format::GgufFile file, format::GgufFile::open(score.path));
  const std::string path = link_target(score.path);
  std::error_code error;
  const auto permissions = std::filesystem::status(path, error).permissions();
  format::GgufWriter writer(path);
  copy_keys(file, [](std::string_view key) { return key.starts_with(score_prefix); }, writer);
  add_score_keys(score, compared, writer);
  for (const auto& tensor : file.tensors()) add_like(tensor.name, tensor, writer);
  DS4_ASSIGN(const uint64_t bytes, writer.planned_bytes());
  DS4_TRY(check_space(std::vector{OutputSize{path, bytes}}));
  for (const auto& tensor : file.tensors()) DS4_TRY(copy_tensor(tensor, cancelled, writer));
  DS4_TRY(writer.finish());
  if (!error) std::filesystem::permissions(path, permissions, error);
  return renew_checksum(path);
}

}  // namespace ds4::quantize
