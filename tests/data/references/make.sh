#!/usr/bin/env bash
# Makes the small reference models of this folder anew, with tools/make_reference.py: make.sh [--out FOLDER] [FAMILY...]
set -euo pipefail
here=$(dirname -- "$(readlink -f -- "$0")")
out=$here
if [[ ${1:-} == --out ]]; then
  out=$2
  shift 2
fi
wanted=" $* "
small=(--steps 2 --set vocab_size=40)
llama=(--set hidden_size=16 --set num_hidden_layers=2 --set num_attention_heads=2 --set num_key_value_heads=1)
make() {
  [[ $wanted == "  " || $wanted == *" $1 "* ]] || return 0
  rm -rf "$out/small_$1"
  "$here/../../../.venv/bin/python" "$here/../../../tools/make_reference.py" --family "$1" --out "$out/small_$1" "${small[@]}" "${@:2}"
}
make gpt2 --set n_embd=16 --set n_head=2 --set n_layer=2 --set n_positions=40
make gpt_oss "${llama[@]}" --set intermediate_size=8 --set head_dim=8 --set 'layer_types=["sliding_attention", "full_attention"]'
make qwen2 "${llama[@]}" --set intermediate_size=24
make gemma3_text "${llama[@]}" --set intermediate_size=24 --set head_dim=8 --set query_pre_attn_scalar=12 --set sliding_window_pattern=2
make mixtral "${llama[@]}" --set intermediate_size=8 --set num_local_experts=3
make qwen3 "${llama[@]}" --tied --shards 2 --set vocab_size=24 --set hidden_size=8 --set intermediate_size=12 --set head_dim=4
