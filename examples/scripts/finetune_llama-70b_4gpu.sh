#!/usr/bin/env bash
# Llama 3.3 70B on four GPUs.
MODEL=meta-llama/Llama-3.3-70B-Instruct GPUS=4 RATIO=0.90 LENGTH=4096 BUCKET=400000000 LEAF_MODULE=
source "$(dirname -- "$(readlink -f -- "$0")")/finetune.sh"
