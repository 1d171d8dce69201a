#!/usr/bin/env bash
# The CIFAR-10 example with a mixture of two experts, on two ranks.
RANKS=2 EXPERTS=2 MLP_TYPE=standard
source "$(dirname -- "$(readlink -f -- "$0")")/cifar.sh"
