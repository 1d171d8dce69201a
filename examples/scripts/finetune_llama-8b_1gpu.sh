#!/usr/bin/env bash
# Llama 3.1 8B on one GPU.
MODEL=meta-llama/Llama-3.1-8B GPUS=1 RATIO=0.80 LENGTH=4096 BUCKET=400000000 LEAF_MODULE=
source "$(dirname -- "$(readlink -f -- "$0")")/finetune.sh"
