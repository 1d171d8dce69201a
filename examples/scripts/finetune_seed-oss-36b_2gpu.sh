#!/usr/bin/env bash
# Seed-OSS 36B on two GPUs.
MODEL=ByteDance-Seed/Seed-OSS-36B-Instruct GPUS=2 RATIO=0.90 LENGTH=4096 BUCKET=400000000 LEAF_MODULE=
source "$(dirname -- "$(readlink -f -- "$0")")/finetune.sh"
