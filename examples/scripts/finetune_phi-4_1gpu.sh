#!/usr/bin/env bash
# Phi-4 (14B) on one GPU.
MODEL=microsoft/phi-4 GPUS=1 RATIO=0.90 LENGTH=4096 BUCKET=400000000 LEAF_MODULE=
source "$(dirname -- "$(readlink -f -- "$0")")/finetune.sh"
