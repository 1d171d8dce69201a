#!/usr/bin/env bash
# Qwen3 30B with 3B active on two GPUs; a block's experts are gathered as one.
MODEL=Qwen/Qwen3-30B-A3B GPUS=2 RATIO=0.90 LENGTH=4096 BUCKET=400000000 LEAF_MODULE=Qwen3MoeSparseMoeBlock
source "$(dirname -- "$(readlink -f -- "$0")")/finetune.sh"
