// Families name the functions that build a decoder, which needs LibTorch. Reading a config.json
// calls none of them.
#include "models/trained_parts.hpp"
#include "models/transformer/decoder.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

RotaryTable::RotaryTable(RotaryScaling /*scaling*/) { TANDEM_CHECK(false, "no decoder here"); }
Model make_decoder(const DecoderSpec& /*spec*/) { TANDEM_CHECK(false, "no decoder here"); }
void TrainedParts::apply(DecoderSpec& /*spec*/, std::string_view /*model_type*/) const {
  TANDEM_CHECK(false, "no decoder here");
}

}  // namespace tandem
