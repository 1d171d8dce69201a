# examples/scripts/cifar.sh — what the CIFAR-10 scripts share: cifar10_X.sh [RANKS] [flags of cifar10].
# Two ranks share the experts, as in the DeepSpeed example; an odd number of ranks has all experts on each.
# Set before: RANKS (by default), EXPERTS (of each mixture; empty: none), MLP_TYPE (standard or residual).
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/common.sh"
ranks=$RANKS
if [[ ${1:-} =~ ^[1-9][0-9]*$ ]]; then
  ranks=$1
  shift
fi
flags=("$@")
if [[ -n $EXPERTS ]]; then
  setting --log-interval 100
  setting --moe
  # shellcheck disable=SC2086 # a number for each mixture
  setting --num-experts $EXPERTS
  setting --mlp-type "$MLP_TYPE"
  setting --top-k 1
  setting --noisy-gate-policy RSample
  setting --moe-param-group
  setting --ep-world-size $((ranks % 2 == 0 ? 2 : 1))
fi
find_programs
exec "$bin/tandem" launch -n "$ranks" -- "$bin/cifar10" "${settings[@]}" "${flags[@]}"
