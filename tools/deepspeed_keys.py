#!/usr/bin/env python3
"""Lists the keys that a DeepSpeed package reads from its JSON, one dotted path a line.

    tools/deepspeed_keys.py FOLDER > tests/core/config/deepspeed_keys.txt

FOLDER is an unpacked release or a checkout (it holds deepspeed/ and version.txt). The sources are read, nothing is imported: members
that functions ask a dict for, by the name of the variable that holds the block, and fields of the pydantic models with their aliases.
A test compares the list with the engine's own table.
"""
import ast
import sys
from pathlib import Path

# Where each variable's block stands; a function asks it for members.
BLOCKS = {"param_dict": "", "self._param_dict": "", "ds_config": "", "config": "", "checkpoint_params": "checkpoint.", "checkpoint_dict": "checkpoint.",
          "par_write_params": "checkpoint.parallel_write.", "writer_dict": "checkpoint.writer.", "data_types_params": "data_types.",
          "act_chkpt_config_dict": "activation_checkpointing.", "flops_profiler_dict": "flops_profiler.", "aio_dict": "aio.",
          "nebula_dict": "nebula.", "elastic_dict": "elasticity.", "zero_config_dict": "zero_optimization.",
          "optimizer_params": "optimizer.params.", "param_dict[OPTIMIZER]": "optimizer.", "param_dict[SCHEDULER]": "scheduler.",
          "param_dict[TORCH_AUTOCAST]": "torch_autocast.", "param_dict[AMP]": "amp.", "param_dict[EIGENVALUE]": "eigenvalue."}
MODELS = {"DeepSpeedZeroConfig": "zero_optimization.", "DeepSpeedZeroOffloadParamConfig": "zero_optimization.offload_param.",
          "DeepSpeedZeroOffloadOptimizerConfig": "zero_optimization.offload_optimizer.", "DeepSpeedZeroLeafModuleConfig": "zero_optimization.leaf_module.",
          "ZenFlowConfig": "zero_optimization.zenflow.", "DeepSpeedBF16Config": "bf16.", "DeepSpeedFP16Config": "fp16.",
          "TensorBoardConfig": "tensorboard.", "WandbConfig": "wandb.", "CSVConfig": "csv_monitor.", "CometConfig": "comet.",
          "DeepSpeedThroughputTimerConfig": "timers.throughput.", "CompileConfig": "compile.", "CommsLoggerConfig": "comms_logger.",
          "HybridEngineConfig": "hybrid_engine.", "TPTrainingConfig": "tensor_parallel."}
# The inner functions of these name their own block param_dict.
OTHER_DICTS = {"deepspeed/module_inject", "deepspeed/inference", "deepspeed/compression", "deepspeed/autotuning", "deepspeed/runtime/data_pipeline"}
NOT_KEYS = {"mode", "attention", "writer"}  # of param_dict where it is no longer the whole document


def constants(trees):
    """The text of each constant that is one."""
    found = {}
    for tree in trees.values():
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                found.update({target.id: node.value.value for target in node.targets if isinstance(target, ast.Name)})
    return found


def asked(tree, names):
    """(variable, member) of each question to a dict."""
    text = lambda node: node.value if isinstance(node, ast.Constant) else names.get(getattr(node, "id", None))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "get_scalar_param" and len(node.args) > 1:
            yield ast.unparse(node.args[0]), text(node.args[1])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
            yield ast.unparse(node.func.value), text(node.args[0])
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
            yield ast.unparse(node.comparators[0]).removesuffix(".keys()"), text(node.left)
        elif isinstance(node, ast.Subscript):
            yield ast.unparse(node.value), text(node.slice)


def fields(tree):
    """The members of the models in a file, aliases among them."""
    for model in ast.walk(tree):
        if isinstance(model, ast.ClassDef) and model.name in MODELS:
            for node in model.body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    yield MODELS[model.name] + node.target.id
                    for keyword in getattr(node.value, "keywords", []):
                        if keyword.arg == "alias":
                            yield MODELS[model.name] + keyword.value.value


def keys_of(folder):
    """All paths, sorted."""
    trees = {path.relative_to(folder).as_posix(): ast.parse(path.read_text()) for path in sorted((folder / "deepspeed").rglob("*.py"))
             if "config" in path.name or "constants" in path.name or path.name == "elasticity.py"}
    names = constants(trees)
    found = set()
    for path, tree in trees.items():
        found.update(fields(tree))
        if not any(path.startswith(other) for other in OTHER_DICTS):
            blocks = BLOCKS | {"param_dict": "elasticity."} if path.startswith("deepspeed/elasticity") else BLOCKS
            found.update(blocks[variable] + member for variable, member in asked(tree, names)
                         if variable in BLOCKS and isinstance(member, str) and member not in NOT_KEYS)
    return sorted(found)


def main():
    folder = Path(sys.argv[1])
    print(f"# Keys that DeepSpeed {(folder / 'version.txt').read_text().strip()} reads; made by tools/deepspeed_keys.py.")
    print("\n".join(keys_of(folder)))


if __name__ == "__main__":
    main()
