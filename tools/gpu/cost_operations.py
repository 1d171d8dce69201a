"""The operations of a training step on a GPU, counted from a model's config.json: FLOPs, bytes of device memory, launches.

models/transformer/transformer_layer.cpp (`by_aten`) and models/layers/aten/ have the operations, this file their sizes. All figures
follow from the config; what a kernel reaches of the hardware's rates is in Constants.
"""

import dataclasses
import functools
import json
from pathlib import Path

GIB = float(1 << 30)
HOST_GIB = 120.0  # of the machines of the record, as a plan is given
FP32_BYTES = 4
LOGITS_CHUNK_BYTES = 1 << 30  # loss_chunk_rows() of models/layers/aten/layers.cpp, of fp32 logits
LEAST_CHUNK_ROWS = 64
ATTENTION_TILE = 128  # queries and keys of a tile of flash attention, which computes whole tiles
DETERMINISTIC_PARTS_OF = 148  # kMultiprocessors of the same file: flash attention's backward has parts for that number
LARGE_MATMUL = 8192  # the side of the square matmul that Constants.large_matmul was measured at


@dataclasses.dataclass(frozen=True)
class Gpu:
    """Public figures of NVIDIA's data sheets; the link is what PCIe 5 x16 carries one way; GiB are what a plan is given."""

    name: str
    bytes_per_s: float
    bf16: float
    fp32: float
    memory_gib: float
    link_bytes_per_s: float = 55e9


GPUS = {gpu.name: gpu for gpu in (Gpu("H100", 3.35e12, 989e12, 67e12, 78), Gpu("H200", 4.8e12, 989e12, 67e12, 138))}


@dataclasses.dataclass(frozen=True)
class Constants:
    """The first three are fitted to three measured steps, each to the one that it moves most; here they have a value to begin
    from. The others are given."""

    # A matmul that adds up `depth` products reaches depth / (depth + matmul_depth) of its rate: a tile's start and its write-out
    # take their time however few there are. The step of 8 x 1024 tokens is half matmuls of depth 1024 to 3072.
    matmul_depth: float = 500.0
    # Host time of an operation of the graph: LibTorch's dispatch, a node of autograd, the launch. It bounds 8 x 128 tokens.
    host_launch_s: float = 20e-6
    # From an event of the device, or the end of a lane's job, until the thread that awaits it goes on. Overlap `off` has six or
    # seven of them for a layer, one after another.
    host_wait_s: float = 50e-6
    # A bf16 matmul of 8192^3 on random data reached 769 to 798 TFLOPS of an H100's 989.
    large_matmul: float = 0.79
    # Flash attention 2 on an H100, heads of 128, causal, 8192 tokens: 306 TFLOPS forward, 166 deterministic backward (its
    # repository's pull request 1893), of whole tiles.
    attention_forward: float = 0.315
    attention_backward: float = 0.171
    # Shares of the memory's bandwidth. Copies and updates stream; row kernels have threads without work where rows are short; the
    # kernel of q/k norm and rotation moves 2 bytes a thread. The last two are estimates from reading the kernels.
    streaming: float = 0.85
    row_kernels: float = 0.65
    head_kernels: float = 0.30
    # Elements that 15 threads of the host update a second by AdamW in fp32, 28 bytes each: an estimate, measured on no such host.
    host_updates_per_s: float = 2.25e9


@dataclasses.dataclass(frozen=True)
class Model:
    """The sizes that a config.json of a dense decoder has."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    has_qk_norm: bool

    @staticmethod
    def of(path):
        return Model.of_config(Path(path).stem, json.loads(Path(path).read_text(encoding="utf-8")))

    @staticmethod
    def of_config(name, config):
        if "num_experts" in config or "num_local_experts" in config:
            raise ValueError(f"{name}: experts are not modelled")
        heads = config["num_attention_heads"]
        return Model(name, config["num_hidden_layers"], config["hidden_size"], config["intermediate_size"], heads,
                     config.get("num_key_value_heads", heads), config.get("head_dim") or config["hidden_size"] // heads,
                     config["vocab_size"], config.get("tie_word_embeddings", False), config["model_type"].startswith("qwen3"))

    @property
    def q_width(self):
        return self.heads * self.head_dim

    @property
    def qkv_width(self):
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def block_parameters(self):
        matrices = self.hidden * (self.qkv_width + self.q_width + 3 * self.intermediate)
        return matrices + 2 * self.hidden + (2 * self.head_dim if self.has_qk_norm else 0)

    @property
    def embedding_parameters(self):
        return self.vocabulary * self.hidden

    def units(self):
        """Parameters of the units, in forward's order: embeddings, layers, the head (its norm alone where it is tied)."""
        return [self.embedding_parameters, *[self.block_parameters] * self.layers,
                self.hidden + (0 if self.tied else self.embedding_parameters)]

    @property
    def parameters(self):
        return sum(self.units())


@dataclasses.dataclass(frozen=True)
class Batch:
    rows: int
    length: int
    element: int  # bytes

    @property
    def tokens(self):
        return self.rows * self.length

    @property
    def asked(self):
        """Rows of logits: all tokens but each row's last."""
        return self.rows * (self.length - 1)


@dataclasses.dataclass(frozen=True)
class Operation:
    name: str
    kind: str  # matmul, attention_forward, attention_backward, rows, heads, streaming
    flops: float = 0
    bytes: float = 0
    launches: int = 1
    depth: int = 0  # of a matmul

    def seconds(self, gpu, constants, element):
        peak = gpu.bf16 if element == 2 else gpu.fp32
        share = {"rows": constants.row_kernels, "heads": constants.head_kernels}.get(self.kind, constants.streaming)
        memory = self.bytes / (share * gpu.bytes_per_s)
        if self.kind == "matmul":
            reach = self.depth / (self.depth + constants.matmul_depth)
            large = LARGE_MATMUL / (LARGE_MATMUL + constants.matmul_depth)
            return max(memory, self.flops / (peak * constants.large_matmul * reach / large))
        if self.kind.startswith("attention"):
            return max(memory, self.flops / (peak * getattr(constants, self.kind)))
        return memory


def matmul(name, rows, depth, columns, element):
    return Operation(name, "matmul", 2.0 * rows * depth * columns, element * float(rows * depth + depth * columns + rows * columns),
                     depth=depth)


def linears(model):
    """Name, inputs and outputs of a layer's linears; q, k and v are one matmul, and so are gate and up."""
    return [("qkv", model.hidden, model.qkv_width), ("out", model.q_width, model.hidden),
            ("up", model.hidden, 2 * model.intermediate), ("down", model.intermediate, model.hidden)]


def attention_flops(model, batch):
    """Forward's two matmuls, over the tiles at and below the diagonal."""
    tiles = -(-batch.length // ATTENTION_TILE)
    pairs = batch.rows * tiles * (tiles + 1) / 2 * ATTENTION_TILE**2
    return 4.0 * pairs * model.q_width


def layer_forward(model, batch):
    n, e = batch.tokens, batch.element
    hidden, wide = n * model.hidden * e, n * model.intermediate * e
    qkv, out, up, down = (matmul(name, n, a, b, e) for name, a, b in linears(model))
    norm, add = Operation("norm", "rows", bytes=2 * hidden), Operation("residual sum", "rows", bytes=3 * hidden)
    heads = Operation("q/k norm, rotation", "heads", bytes=2 * n * model.qkv_width * e)
    attention = Operation("attention", "attention_forward", attention_flops(model, batch), n * (model.qkv_width + model.q_width) * e)
    return [norm, qkv, heads, attention, out, add, norm, up, Operation("activation", "rows", bytes=3 * wide), down, add]


def layer_recomputed(model, batch, skips_down):
    """Forward once more, and whether its last linear and sum, which no backward reads, are left out."""
    return layer_forward(model, batch)[: -2 if skips_down else None]


def layer_backward(model, batch):
    n, e = batch.tokens, batch.element
    hidden, wide = n * model.hidden * e, n * model.intermediate * e
    backward = []
    for name, inputs, outputs in reversed(linears(model)):
        backward += [matmul(f"{name}, of weights", outputs, n, inputs, e), matmul(f"{name}, of inputs", n, outputs, inputs, e)]
        if name == "down":
            backward.append(Operation("activation", "rows", bytes=5 * wide))
        if name in ("up", "qkv"):
            backward.append(Operation("norm", "rows", bytes=4 * hidden, launches=2))
        if name == "out":
            parts = -(-DETERMINISTIC_PARTS_OF // (batch.rows * model.heads))
            of_parts = 3 * parts * n * model.q_width * FP32_BYTES  # cleared, written, read
            backward.append(Operation("attention", "attention_backward", 2.5 * attention_flops(model, batch),
                                      of_parts + 2 * n * (model.qkv_width + model.q_width) * e, launches=3))
            if model.kv_heads < model.heads:
                backward.append(Operation("sums over query heads", "streaming", launches=2,
                                          bytes=2 * n * (model.heads + model.kv_heads) * model.head_dim * e))
            backward.append(Operation("q/k norm, rotation", "heads", bytes=3 * n * model.qkv_width * e,
                                      launches=2 if model.has_qk_norm else 1))
    return backward


def chunk_rows(model, batch):
    return min(batch.asked, max(LEAST_CHUNK_ROWS, LOGITS_CHUNK_BYTES // (FP32_BYTES * model.vocabulary)))


def head_forward(model, batch):
    """The final norm, then for each chunk of rows logits, losses, and the gradients of rows and weights."""
    n, e, rows, weights = batch.tokens, batch.element, batch.asked, model.embedding_parameters
    chunks = -(-rows // chunk_rows(model, batch))
    of_rows = rows * model.hidden * e
    logits, of_inputs, of_weights = (
        dataclasses.replace(matmul(name, rows, model.hidden, model.vocabulary, e), launches=chunks, depth=depth)
        for name, depth in (("logits", model.hidden), ("logits, of inputs", model.vocabulary),
                            ("logits, of weights", chunk_rows(model, batch))))
    return [Operation("norm", "rows", bytes=2 * n * model.hidden * e), Operation("rows asked for", "streaming", bytes=2 * of_rows),
            Operation("gradient cleared", "streaming", bytes=FP32_BYTES * weights), logits,
            Operation("losses", "rows", bytes=3 * rows * model.vocabulary * e, launches=3 * chunks), of_inputs, of_weights,
            Operation("gradient added", "streaming", bytes=chunks * (e + 2 * FP32_BYTES) * weights, launches=chunks)]


def head_backward(model, batch):
    n, e, weights = batch.tokens, batch.element, model.embedding_parameters
    of_rows = batch.asked * model.hidden * e
    return [Operation("gradient scaled and written", "streaming", bytes=(3 * FP32_BYTES + e) * weights, launches=2),
            Operation("rows' gradient", "streaming", bytes=4 * of_rows + n * model.hidden * e, launches=3),
            Operation("norm", "rows", bytes=4 * n * model.hidden * e, launches=2)]


def embedding_forward(model, batch):
    return [Operation("embedding", "streaming", bytes=2 * batch.tokens * model.hidden * batch.element)]


def embedding_backward(model, batch):
    """A dense gradient is cleared, filled, and copied to its place, or added to the head's where they are tied."""
    moved = (1 + (3 if model.tied else 2)) * model.embedding_parameters
    return [Operation("embedding", "streaming", bytes=(moved + 2 * batch.tokens * model.hidden) * batch.element, launches=12)]


@dataclasses.dataclass(frozen=True)
class Tree:
    """Switches between the tree that the record measured and this one."""

    skips_down: bool  # a recomputed layer leaves out its down projection and last sum
    slice_elements: int  # of an update on the device, each awaited by the host
    streamed_elements: int  # of an update of state that is copied through the device, likewise
    slots_by_room: bool  # gather slots are as many as the device holds
    quarter_for_shadows: bool  # instead of what the plan leaves


RECORDED = Tree(skips_down=False, slice_elements=16 << 17, streamed_elements=256 << 10, slots_by_room=False,
                quarter_for_shadows=True)
NOW = Tree(skips_down=True, slice_elements=256 << 17, streamed_elements=1024 << 10, slots_by_room=True, quarter_for_shadows=False)


@dataclasses.dataclass(frozen=True)
class Run:
    model: Model
    batch: Batch
    gpu: Gpu = GPUS["H100"]
    recomputes: bool = False
    overlap: str = "full"  # or off
    placement: str = "auto"  # cpu, gpu
    tree: Tree = NOW
    # Whether the verdict is the guessed one. With more misses than 3 in 16 no update begins ahead of the verdict.
    speculates: bool = True
    host_gib: float = HOST_GIB

    @functools.cached_property
    def segments(self):
        """For each segment the operations of forward, recomputation and backward."""
        model, batch = self.model, self.batch
        again = layer_recomputed(model, batch, self.tree.skips_down) if self.recomputes else []
        layer = (layer_forward(model, batch), again, layer_backward(model, batch))
        return [(embedding_forward(model, batch), [], embedding_backward(model, batch)), *[layer] * model.layers,
                (head_forward(model, batch), [], head_backward(model, batch))]


STATE_BYTES = 12  # of a parameter: the fp32 master and AdamW's two moments; in fp32 the master is the weight
CONTEXT_BYTES, HOST_PROCESS_BYTES, WORKSPACE_BYTES = 0.875 * GIB, 1.375 * GIB, 0.125 * GIB  # engine/memory/memory_plan.cpp
LAYER_SLOTS = 3  # of gathered layers where room decides nothing


def activation_bytes(model, batch, recomputes):
    """models/transformer/aten_memory.cpp at the highest point of a step, and what LibTorch's allocator keeps free beside it."""
    n, e = batch.tokens, batch.element
    kept = n * ((3 * model.hidden + model.q_width + model.qkv_width * (2 if model.has_qk_norm else 1) + 3 * model.intermediate) * e
                + model.heads * FP32_BYTES)
    parts = -(-DETERMINISTIC_PARTS_OF // (batch.rows * model.heads))
    expanded = 2 * model.q_width * e if model.kv_heads < model.heads else 0
    backward = n * (max(2 * model.qkv_width * e + expanded + parts * model.q_width * FP32_BYTES,
                        (3 * model.intermediate + model.hidden) * e) + 2 * model.hidden * e)
    boundary, asked = n * model.hidden * e, batch.asked * model.hidden * e
    weights = model.embedding_parameters
    head = FP32_BYTES * weights + asked + max(chunk_rows(model, batch) * model.vocabulary * e + weights * e + asked,
                                              boundary + FP32_BYTES * weights)
    layers = 0 if recomputes else model.layers * kept
    live = (model.layers + 1) * boundary + layers + max(head, backward + (kept if recomputes else 0))
    return live + WORKSPACE_BYTES + min(live / 5, 2 * GIB)


@dataclasses.dataclass(frozen=True)
class Memory:
    """A run's memory by engine/layout/rank_sizes.cpp, in bytes."""

    device: float
    host: float
    layer_slots: int
    shadowed: frozenset  # units that have a second copy of their state


def shadow_room(tree, limit, taken):
    left = max(0.0, limit - taken)
    little = min(limit / 4, left)
    return little if tree.quarter_for_shadows else max(little, left - limit / 10)


def memory_of(run, placements):
    """`placements`: where each unit's state is: device, streamed or host; only with the last are weight and gradient there, too."""
    model, batch, element = run.model, run.batch, run.batch.element
    sizes = model.units()
    state = STATE_BYTES if element == 2 else STATE_BYTES - FP32_BYTES
    apart = [size for size in sizes if size > 2 * model.block_parameters]  # with slots of their own
    device = CONTEXT_BYTES + activation_bytes(model, batch, run.recomputes) + element * (
        (LAYER_SLOTS + 2) * model.block_parameters + 2 * sum(apart))
    host = HOST_PROCESS_BYTES
    for size, placement in zip(sizes, placements):
        device += size * (2 * element * (placement != "host") + state * (placement == "device"))
        host += size * (2 * element * (placement == "host") + state * (placement != "device"))
    # State on the device passes through host memory to be loaded and saved, a unit at a time, and one of its arrays in fp32.
    largest = max((size for size, placement in zip(sizes, placements) if placement == "device"), default=0)
    host += (element + state + FP32_BYTES) * largest
    shadowed = set()
    if run.overlap == "full":
        rooms = {"device": shadow_room(run.tree, run.gpu.memory_gib * GIB, device),
                 "host": shadow_room(run.tree, run.host_gib * GIB, host)}
        for unit in reversed(range(1, len(sizes))):
            shadow, place = sizes[unit] * STATE_BYTES, "device" if placements[unit] == "device" else "host"
            if shadow <= rooms[place]:
                rooms[place] -= shadow
                shadowed.add(unit)
                device, host = (device + shadow, host) if place == "device" else (device, host + shadow)
    slots = LAYER_SLOTS
    if run.tree.slots_by_room:
        left = 0.9 * run.gpu.memory_gib * GIB - device
        slots = min(model.layers, LAYER_SLOTS + max(0, int(left / (element * model.block_parameters))))
        device += (slots - LAYER_SLOTS) * element * model.block_parameters
    return Memory(device, host, slots, frozenset(shadowed))


def bare_memory(run, placements):
    """Without second copies and further slots, which get what a placement leaves."""
    return memory_of(dataclasses.replace(run, overlap="off", tree=RECORDED), placements)


def fits(run, placements):
    bare = bare_memory(run, placements)
    return bare.device <= run.gpu.memory_gib * GIB and bare.host <= run.host_gib * GIB
