# examples/scripts/finetune.sh — what the fine-tuning scripts share; each sets the model's figures and sources it.
#
#   finetune_X.sh [superoffload|zerooffload] [BATCH] [flags of finetune_zero3]
#   finetune_X.sh [superoffload|zerooffload] [BATCH] --plan_only [flags of `tandem plan`]
#
# superoffload: updates of the share RATIO of the optimizer's bytes on the host, ahead of the verdict and behind the next
# forward. zerooffload: all of it on the host, after backward. BATCH: records of a step, of all ranks (4).
# --plan_only trains nothing: the memory plan, of this machine or of one that is described (--gpu_memory_gb 139
# --host_memory_gb 128). --model_name takes a folder or a config.json in the model's place.
# Set before: MODEL (hub id), GPUS, RATIO, LENGTH (tokens of a record), BUCKET (elements); maybe LEAF_MODULE.
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/common.sh"

refuse() {
  echo "error: [script] $1" >&2
  exit 2
}

mode=superoffload
if [[ $# -gt 0 && $1 != -* ]]; then
  mode=$1
  shift
fi
[[ $mode == superoffload || $mode == zerooffload ]] ||
  refuse "the mode is $mode; use superoffload or zerooffload"
batch=4
if [[ $# -gt 0 && $1 != -* ]]; then
  batch=$1
  shift
fi
[[ $batch =~ ^[1-9][0-9]*$ ]] || refuse "the batch is $batch; use a whole number above 0"
((batch % GPUS == 0)) || refuse "the batch is $batch for $GPUS GPUs; use a multiple of $GPUS"

plan_only=no
while [[ $# -gt 0 ]]; do
  case $1 in
    --plan_only) plan_only=yes ;;
    --model_name)
      [[ $# -gt 1 ]] || refuse "--model_name needs a folder, a config.json or a hub id behind it"
      MODEL=$2
      shift
      ;;
    *) flags+=("$1") ;;
  esac
  shift
done

name=$(basename -- "$0" .sh)
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
config=$work/$name-$mode.json
super=$([[ $mode == superoffload ]] && echo "
      \"super_offload\": true,
      \"ratio\": $RATIO,
      \"cpuadam_cores_perc\": 0.90," || true)
cat >"$config" <<JSON
{
  "train_batch_size": $batch,
  "gradient_accumulation_steps": 1,
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 3,
    "overlap_comm": false,
    "reduce_bucket_size": $BUCKET,
    "sub_group_size": $BUCKET,
    "offload_optimizer": {$super
      "device": "cpu",
      "pin_memory": true
    }
  },
  "wall_clock_breakdown": true
}
JSON

find_programs
setting --max_length "$LENGTH"
setting --activation_checkpointing
if [[ $plan_only == yes ]]; then
  "$bin/tandem" plan --model_name "$MODEL" --deepspeed_config "$config" --world_size "$GPUS" "${settings[@]}" \
    "${flags[@]}"
  exit
fi
[[ -z $LEAF_MODULE ]] || setting --leaf_module "$LEAF_MODULE"
setting --batch_size $((batch / GPUS))
setting --lr 1e-5
setting --warmup 0.05
setting --weight_decay 0.01
setting --dataset_percentage 10
setting --summary_skip 15
setting --recipe deepspeed_example # its bits, and 100 steps
setting --output_dir "runs/$name-$mode"
"$bin/tandem" launch -n "$GPUS" -- "$bin/finetune_zero3" --model_name "$MODEL" --deepspeed_config "$config" \
  "${settings[@]}" "${flags[@]}"
