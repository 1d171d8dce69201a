#!/usr/bin/env bash
# PR-MoE: mixtures of two and of four experts, each beside one residual layer; on two ranks.
RANKS=2 EXPERTS="2 4" MLP_TYPE=residual
source "$(dirname -- "$(readlink -f -- "$0")")/cifar.sh"
