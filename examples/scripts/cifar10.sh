#!/usr/bin/env bash
# The CIFAR-10 example, on one rank.
RANKS=1 EXPERTS= MLP_TYPE=standard
source "$(dirname -- "$(readlink -f -- "$0")")/cifar.sh"
