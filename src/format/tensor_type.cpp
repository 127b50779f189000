#include "format/tensor_type.hpp"

namespace ds4::format {
namespace {

/// Index = type id (docs/formats.md); an empty name marks an id that the standard does not define.
constexpr TypeTraits kTraits[] = {
    /*  0 */ {"F32", 1, 4, 4},
    /*  1 */ {"F16", 1, 2, 2},
    /*  2 */ {"Q4_0", 32, 18, 2},
    /*  3 */ {"Q4_1", 32, 20, 2},
    /*  4 */ {"", 0, 0, 0},
    /*  5 */ {"", 0, 0, 0},
    /*  6 */ {"Q5_0", 32, 22, 2},
    /*  7 */ {"Q5_1", 32, 24, 2},
    /*  8 */ {"Q8_0", 32, 34, 2},
    /*  9 */ {"Q8_1", 32, 36, 2},
    /* 10 */ {"Q2_K", 256, 84, 2},
    /* 11 */ {"Q3_K", 256, 110, 2},
    /* 12 */ {"Q4_K", 256, 144, 2},
    /* 13 */ {"Q5_K", 256, 176, 2},
    /* 14 */ {"Q6_K", 256, 210, 2},
    /* 15 */ {"Q8_K", 256, 292, 4},
    /* 16 */ {"IQ2_XXS", 256, 66, 2},
    /* 17 */ {"IQ2_XS", 256, 74, 2},
    /* 18 */ {"IQ3_XXS", 256, 98, 2},
    /* 19 */ {"IQ1_S", 256, 50, 2},
    /* 20 */ {"IQ4_NL", 32, 18, 2},
    /* 21 */ {"IQ3_S", 256, 110, 2},
    /* 22 */ {"IQ2_S", 256, 82, 2},
    /* 23 */ {"IQ4_XS", 256, 136, 2},
    /* 24 */ {"I8", 1, 1, 1},
    /* 25 */ {"I16", 1, 2, 2},
    /* 26 */ {"I32", 1, 4, 4},
    /* 27 */ {"I64", 1, 8, 8},
    /* 28 */ {"F64", 1, 8, 8},
    /* 29 */ {"IQ1_M", 256, 56, 2},
    /* 30 */ {"BF16", 1, 2, 2},
    /* 31 */ {"", 0, 0, 0},
    /* 32 */ {"", 0, 0, 0},
    /* 33 */ {"", 0, 0, 0},
    /* 34 */ {"TQ1_0", 256, 54, 2},
    /* 35 */ {"TQ2_0", 256, 66, 2},
    /* 36 */ {"", 0, 0, 0},
    /* 37 */ {"", 0, 0, 0},
    /* 38 */ {"", 0, 0, 0},
    /* 39 */ {"MXFP4", 32, 17, 1},
    /* 40 */ {"NVFP4", 64, 36, 1},
};
constexpr uint32_t kTypeIds = sizeof(kTraits) / sizeof(kTraits[0]);

}  // namespace

std::optional<TypeTraits> type_traits(TensorType type) {
  const auto id = static_cast<uint32_t>(type);
  if (id >= kTypeIds || kTraits[id].block_elements == 0) return std::nullopt;
  return kTraits[id];
}

std::string_view type_name(TensorType type) {
  const auto traits = type_traits(type);
  return traits ? traits->name : "unknown";
}

bool is_matrix_type(TensorType type) {
  switch (type) {
    case TensorType::f32:
    case TensorType::f16:
    case TensorType::bf16:
    case TensorType::q8_0:
    case TensorType::q4_k:
    case TensorType::q2_k:
    case TensorType::iq2_xxs:
    case TensorType::mxfp4:
      return true;
    case TensorType::q8_k:
    case TensorType::i32:
      return false;
  }
  return false;
}

uint64_t row_bytes(TensorType type, uint64_t elements) {
  const TypeTraits& traits = kTraits[static_cast<uint32_t>(type)];
  return elements / traits.block_elements * traits.block_bytes;
}

}  // namespace ds4::format
