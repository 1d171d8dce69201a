#!/usr/bin/env bash
# gpt-oss 20B on one GPU; a block's experts are gathered as one.
MODEL=openai/gpt-oss-20b GPUS=1 RATIO=0.90 LENGTH=8192 BUCKET=800000000 LEAF_MODULE=GptOssExperts
source "$(dirname -- "$(readlink -f -- "$0")")/finetune.sh"
