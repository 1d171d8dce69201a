#include "models/data/record_members.hpp"

#include <algorithm>

namespace tandem {
namespace {

// Names with blanks between them.
constexpr std::string_view kUsed = "input instruction output";
// They describe a record, or are another form of what is read.
constexpr std::string_view kHarmless =
    "_id author authors categories category chosen_model completion conv_id conversation_hash "
    "conversation_id conversations created created_at data_source dataset date difficulty "
    "domain generator hash id idx index info lang language languages length lengths license "
    "messages meta metadata model model_name n_tokens name num_tokens num_turns origin "
    "original_index parallel_tool_calls prompt prompt_id quality row_id sample_id score "
    "source sources special_tokens_mask split subset tag tags task task_type text timestamp "
    "title token_count topic topics total_tokens turn turns type updated_at url uuid version "
    "weight";
// They would change the text, or which of it is learnt and how much.
constexpr std::string_view kRefused =
    "audio audios chat_template_kwargs cu_seqlens documents functions history image images "
    "loss_weight loss_weights mm_token_type_ids position_ids sample_weight segment_ids "
    "seq_lengths sequence_lengths system system_prompt token_weights tools video videos weight "
    "weights";
// A processor of Transformers makes these of images, videos and sounds.
constexpr std::string_view kOfProcessors =
    "aspect_ratio_ids aspect_ratio_mask audio_attention_mask audio_embed_sizes "
    "audio_input_features audio_input_ids audio_input_ids_mask batch_num_images beatsteps "
    "codebook_pixel_values cross_attention_mask decoder_attention_mask decoder_input_ids "
    "extrapolated_beatstep feature_attention_mask flattened_patches high_res_pixel_values "
    "image_attention_mask image_embeds image_embeds_position_mask image_grid_hw "
    "image_grid_thw image_input_ids image_merge_sizes image_patch_indices_per_batch "
    "image_patch_indices_per_subsequence image_patches image_patches_indices "
    "image_pixel_values image_position_ids image_sizes images_per_sample input_features "
    "input_features_mask input_values input_values_cutoffs inputs_embeds "
    "moe_mm_token_type_ids n_quantizers noise_sequence num_chunks_per_video num_crops "
    "num_local_patches num_soft_tokens_per_image num_soft_tokens_per_video num_tiles "
    "pixel_attention_mask pixel_mask pixel_values pixel_values_local pixel_values_videos "
    "prompt_depth prompt_pixel_values qformer_attention_mask qformer_input_ids "
    "second_per_grid_ts spatial_shapes target_sizes_videos video_compression_mask "
    "video_grid_thw video_merge_sizes video_position_ids video_second_per_grid";
// An answer that its record calls a bad one is none to learn.
constexpr std::string_view kVerdicts = "kto_tag label";

bool is_among(std::string_view member, std::string_view names) {
  while (!names.empty()) {
    const std::size_t end = std::min(names.find(' '), names.size());
    if (names.substr(0, end) == member) {
      return true;
    }
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return false;
}

/// Whether a verdict calls the answer a bad one. A label of 0 may be a class.
bool says_no(std::string_view member, const JsonValue& value) {
  const simdjson::dom::element raw = value.raw();
  const std::string_view text = raw.is_string() ? value.string() : std::string_view();
  if ((raw.is_bool() && !value.boolean()) || text == "false" || text == "False") {
    return true;
  }
  const bool is_zero = raw.is_number() && value.number() == 0;
  return member == "kto_tag" && (is_zero || text == "0" || text == "0.0");
}

bool is_empty(const JsonValue& value) {
  const simdjson::dom::element raw = value.raw();
  return value.is_null() || (raw.is_string() && value.string().empty()) ||
         (value.is_array() && value.array().size() == 0) ||
         (value.is_object() && value.object().size() == 0);
}

}  // namespace

RecordMember meaning_of(std::string_view member, const JsonValue& value) {
  if (is_among(member, kUsed)) {
    return RecordMember::kUsed;
  }
  if (is_empty(value)) {
    return RecordMember::kHarmless;
  }
  if (is_among(member, kVerdicts) && says_no(member, value)) {
    return RecordMember::kBadAnswer;
  }
  if (is_among(member, kRefused) || is_among(member, kOfProcessors)) {
    const simdjson::dom::element raw = value.raw();
    const bool is_one =
        (raw.is_number() && value.number() == 1) || (raw.is_bool() && value.boolean());
    return member == "weight" && is_one ? RecordMember::kHarmless : RecordMember::kRefused;
  }
  return is_among(member, kHarmless) ? RecordMember::kHarmless : RecordMember::kUnknown;
}

}  // namespace tandem
