#include "original_options.hpp"

#include <utility>

namespace ds4::quantize {
namespace {

constexpr std::pair<std::string_view, std::string_view> options[] = {
    {"--hf", "the folder of the checkpoint is --checkpoint DIR"},
    {"--template",
     "there is no template: keys and shapes come from the source, formats from --recipe or --recipe-file"},
    {"--experts", "write --tensor-type 'blk.*_exps.weight=FORMAT'"},
    {"--routed", "write --tensor-type 'blk.*_exps.weight=FORMAT'"},
    {"--routed-w1", "write --tensor-type 'blk.*.ffn_gate_exps.weight=FORMAT', and the same for up"},
    {"--routed-gate", "write --tensor-type 'blk.*.ffn_gate_exps.weight=FORMAT', and the same for up"},
    {"--routed-w2", "write --tensor-type 'blk.*.ffn_down_exps.weight=FORMAT'"},
    {"--routed-down", "write --tensor-type 'blk.*.ffn_down_exps.weight=FORMAT'"},
    {"--routed-w3", "write --tensor-type 'blk.*.ffn_up_exps.weight=FORMAT', and the same for gate"},
    {"--routed-up", "write --tensor-type 'blk.*.ffn_up_exps.weight=FORMAT', and the same for gate"},
    {"--attention-proj",
     "write --tensor-type for each of 'blk.*.attn_kv.weight=FORMAT', 'blk.*.attn_q_*.weight=FORMAT' and "
     "'blk.*.attn_output_*.weight=FORMAT'"},
    {"--attn-proj",
     "write --tensor-type for each of 'blk.*.attn_kv.weight=FORMAT', 'blk.*.attn_q_*.weight=FORMAT' and "
     "'blk.*.attn_output_*.weight=FORMAT'"},
    {"--attention",
     "write --tensor-type for each of 'blk.*.attn_compressor_*=FORMAT' and 'blk.*.indexer*=FORMAT'"},
    {"--shared", "write --tensor-type 'blk.*_shexp.weight=FORMAT'"},
    {"--embedding", "write --tensor-type 'token_embd.weight=FORMAT'"},
    {"--output", "write --tensor-type 'output.weight=FORMAT'; the file to write is --out"},
    {"--dense", "write --tensor-type '*=FORMAT' after the other rules"},
    {"--n-experts", "the number of experts is that of the source"},
    {"--compare-tensor",
     "convert the model again and compare the files: the same options give the same bytes"},
    {"--compare-gguf", "convert the model again and compare the files: the same options give the same bytes"},
    {"--dspark-only", "drafters of this kind are not made; the MTP block of a checkpoint is --mtp-out FILE"},
    {"--self-test-dspark-map", "drafters of this kind are not made"},
};

}  // namespace

std::string_view instead_of(std::string_view argument) {
  const std::string_view name = argument.substr(0, argument.find('='));
  for (const auto& [option, advice] : options) {
    if (option == name) return advice;
  }
  return {};
}

}  // namespace ds4::quantize
