"""One table of the members that records have: which of them are used, which say nothing about the text, which would
change it and are not read, which belong to other ways of training.

A member that would change what is learnt is used or refused by name, never passed over. One of another way of training,
or one that is in no list, is said once in a note. models/data/record_members.cpp has the same lists for instructions
that the programs read themselves; tests/tools/prepare/members_test.py compares them, and looks for the members of TRL's
and LLaMA-Factory's records.
"""

from prepare.errors import Refused

# By format, as formats.py names them.
USED = {
    "tokens": {"input_ids", "labels", "mask", "loss_mask", "assistant_masks", "completion_mask", "attention_mask", "position_ids", "token_type_ids"},
    "messages": {"messages", "tools", "functions", "system", "chat_template_kwargs"},
    "sharegpt": {"conversations", "tools", "functions", "system", "chat_template_kwargs"},
    "prompt": {"prompt", "completion", "tools", "functions", "system", "chat_template_kwargs"},
    "alpaca": {"instruction", "input", "output"},
    "alpaca_chat": {"instruction", "input", "output", "history", "system", "tools", "functions", "chat_template_kwargs"},
    "text": {"text"},
}
# Members of every format: they describe a record, or repeat a member that is read in another form.
HARMLESS = {
    "_id", "author", "authors", "categories", "category", "chosen_model", "conv_id", "conversation_id", "conversation_hash", "created", "created_at", "data_source", "dataset",
    "date", "difficulty", "domain", "generator", "hash", "id", "idx", "index", "info", "lang", "language", "languages", "length", "lengths", "license", "meta", "metadata",
    "model", "model_name", "n_tokens", "name", "num_tokens", "num_turns", "origin", "original_index", "parallel_tool_calls", "prompt_id", "quality", "row_id", "sample_id", "score", "source",
    "sources", "special_tokens_mask", "split", "subset", "tag", "tags", "task", "task_type", "timestamp", "title", "token_count", "topic", "topics", "total_tokens", "turn", "turns", "type",
    "updated_at", "url", "uuid", "version",
    "text", "prompt", "instruction", "input", "output", "completion", "conversations", "messages", "weight",
}
# They would change the text, or which of it is learnt and how much.
REFUSED = {
    "audio", "audios", "cu_seqlens", "documents", "history", "image", "images", "loss_weight", "loss_weights", "position_ids", "sample_weight", "segment_ids", "seq_lengths",
    "mm_token_type_ids", "sequence_lengths", "system", "system_prompt", "token_weights", "tools", "video", "videos", "weight", "weights",
}
# A processor of Transformers makes these of images, videos and sounds; the ids beside them have places for what is not read.
OF_PROCESSORS = {
    "aspect_ratio_ids", "aspect_ratio_mask", "audio_attention_mask", "audio_embed_sizes", "audio_input_features", "audio_input_ids", "audio_input_ids_mask",
    "batch_num_images", "beatsteps", "codebook_pixel_values", "cross_attention_mask", "decoder_attention_mask", "decoder_input_ids", "extrapolated_beatstep",
    "feature_attention_mask", "flattened_patches", "high_res_pixel_values", "image_attention_mask", "image_embeds", "image_embeds_position_mask", "image_grid_hw",
    "image_grid_thw", "image_input_ids", "image_merge_sizes", "image_patch_indices_per_batch", "image_patch_indices_per_subsequence", "image_patches",
    "image_patches_indices", "image_pixel_values", "image_position_ids", "image_sizes", "images_per_sample", "input_features", "input_features_mask", "input_values",
    "input_values_cutoffs", "inputs_embeds", "moe_mm_token_type_ids", "n_quantizers", "noise_sequence", "num_chunks_per_video", "num_crops", "num_local_patches",
    "num_soft_tokens_per_image", "num_soft_tokens_per_video", "num_tiles", "pixel_attention_mask", "pixel_mask", "pixel_values", "pixel_values_local",
    "pixel_values_videos", "prompt_depth", "prompt_pixel_values", "qformer_attention_mask", "qformer_input_ids", "second_per_grid_ts", "spatial_shapes",
    "target_sizes_videos", "video_compression_mask", "video_grid_thw", "video_merge_sizes", "video_position_ids", "video_second_per_grid",
}
# Chats are asked with them. Texts and ids may have been made of such chats, so there a note is enough.
OF_CHATS = {"chat_template_kwargs", "functions"}
MADE = ("text", "tokens")
# Preferences and rewards are left aside: the record is learnt without them, and a note says so.
OTHER_TASKS = {"chosen", "completions", "kto_tag", "label", "labels", "rejected"}
# An answer that its record calls a bad one is none to learn.
VERDICTS = ("kto_tag", "label")


# Texts that data sets of chats repeat beside the messages.
REPEATED = ("text", "prompt", "instruction", "input", "output", "completion")


def is_empty(value):
    return value is None or isinstance(value, (str, list, dict)) and not value or value in ("[]", "{}")  # as csv has them


def unrepeated(name, record, messages):
    """The texts beside a chat's messages that none of them has."""
    texts = [message["content"] for message in messages if message["content"]]
    others = [member for member in REPEATED if member not in USED[name] and isinstance(record.get(member), str) and record[member].strip()]
    return [member for member in others if not any(record[member].strip() in text or text in record[member] for text in texts)]


def says_no(name, member, value):
    """Whether a verdict calls the record's answer a bad one. A label of 0 may be a text's class; beside a completion it is a verdict."""
    is_number = member == "kto_tag" or name == "prompt"
    return value is False or value in ("false", "False") or is_number and value in (0, "0", "0.0")


def would_change(name, member, value):
    """Whether a member that is not used would change what is learnt."""
    if member in OF_CHATS:
        return name not in MADE
    return member in OF_PROCESSORS or member in REFUSED and not (member == "weight" and value == 1)


def advice(name, member):
    if member in OF_PROCESSORS:
        return "images and sounds are not read"
    chats = ", or make chats of all instructions by --dataset_format alpaca_chat"
    return f"take it out{chats if name == 'alpaca' and member in USED['alpaca_chat'] else ', or put it into the text'}"


def unused(name, record):
    """The members of a record that its format does not use and that nobody knows. Refused: one would change the text."""
    found = []
    for member, value in record.items():
        if member in USED[name] or is_empty(value):
            continue
        if member in VERDICTS and says_no(name, member, value):
            raise Refused(f'"{member}" is {str(value).lower()}: the record says that its answer is a bad one, and that would be learnt; leave such records out')
        if would_change(name, member, value):
            raise Refused(f'"{member}" would change what is learnt, and records of the form {name} are read without it; {advice(name, member)}')
        if member not in HARMLESS:
            found.append(member)
    return found
