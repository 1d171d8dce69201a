"""The effect of float32 rounding on a computation that PyTorch runs: the arithmetic behind the limits of make_reference.py.

Rounding is a mode under which a float32 model runs in float64; with a seed it also makes each operation's result off by
NOISE times a random draw of what float32 would lose there, forward and backward. u = 2^-24, and the deviations are
  an operation on elements     u/sqrt(3) |x|: uniform within half a last digit (functions such as exp: two last digits)
  a sum s of n terms t         u sqrt(n) sqrt(s^2/9 + sum t^2/18): one after another in random order. Its partial sums are
                               s k/n on average with variance up to sum t^2/4, and each is rounded. Blocks, lanes and
                               trees, which differ between processors, are better than that.
Operations that a library has as one (softmax, norms, the loss) are taken apart first, by PyTorch's own definitions.
"""

import math
import random

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode

UNIT = 2.0**-24
NOISE = 4  # large against float64's own, small enough for everything smooth to answer linearly
FACTOR = 2  # limits are NOISE * FACTOR = 8 deviations: six for normal errors, the rest as few draws tell a deviation

EXACT = set(
    "_to_copy abs alias amax arange cat clamp clone constant_pad_nd copy copy_ detach embedding empty empty_like expand "
    "fill fill_ full full_like gather index index_select lift_fresh masked_fill masked_fill_ max min neg new_empty "
    "new_full new_ones new_zeros ones ones_like relu repeat scalar_tensor scatter scatter_ select_backward sign "
    "slice_backward sort squeeze topk tril triu _unsafe_view where zero_ zeros zeros_like".split()
)
FUNCTIONS = set("cos erf exp log pow rsqrt sigmoid sin sqrt tanh".split())
COMPOSED = (
    "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data native_layer_norm native_layer_norm_backward "
    "nll_loss_forward nll_loss_backward silu silu_backward sigmoid_backward tanh_backward gelu gelu_backward "
    "embedding_dense_backward var_mean addmm baddbmm"
).split()


class Rounding(TorchDispatchMode):
    """`choices`: what each topk chose from, and how many."""

    normal = torch.empty(0)  # and factors of one and of two last digits, for all

    def __init__(self, seed=None):
        super().__init__()
        self.noisy, self.choices = seed is not None, []
        self.generator = random.Random(seed)
        known = {o: parts for o, parts in decomposition_table.items() if o.__name__.partition(".")[0] in COMPOSED}
        self.parts = known if self.noisy else {}

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        args = [torch.float64 if a is torch.float32 else a for a in args]
        kwargs = {k: torch.float64 if a is torch.float32 else a for k, a in (kwargs or {}).items()}
        if operation in self.parts:
            with self:
                return self.parts[operation](*args, **kwargs)
        out = operation(*args, **kwargs)
        name = operation.overloadpacket.__name__
        if name == "topk":
            self.choices.append((args[0].clone(), args[1]))
        rounded = isinstance(out, torch.Tensor) and out.dtype == torch.float64 and not operation.is_view
        if self.noisy and rounded and name not in EXACT:
            self.disturb(name, args, out)
        return out

    def place(self, like):
        """Where in the drawn numbers to read; drawing anew for each operation would take most of the time."""
        if like.numel() > Rounding.normal.numel() // 2:
            generator, count = torch.Generator().manual_seed(0), max(1 << 20, 2 * like.numel())
            Rounding.normal = torch.randn(count, generator=generator, dtype=torch.float64) * (NOISE * UNIT)
            Rounding.once, Rounding.function = (1 + Rounding.normal * (digits / math.sqrt(3)) for digits in (1, 4))
        return int(self.generator.random() * (Rounding.normal.numel() - like.numel()))

    def disturb(self, name, args, out):
        at, shape, count = self.place(out), out.shape, out.numel()
        if name in ("mm", "bmm", "sum", "mean"):
            if name in ("mm", "bmm"):
                a, b = args
                terms = a.shape[-1]
                squares = getattr(torch, name)(a * a, b * b).mul_(terms / 18 + 1 / 3)  # 1/3: the products
            else:
                terms = args[0].numel() / max(1, out.numel())
                squares = getattr(args[0].square(), name)(*args[1:]).mul_(1 / 18 if name == "mean" else terms / 18)
            squares.addcmul_(out, out, value=terms / 9).sqrt_()
            out.addcmul_(squares, self.normal[at : at + count].view(shape))
        elif name == "exp":  # through 2^(x log2 e), the product rounded
            scale = args[0].abs().clamp_(max=100).add_(4).mul_(self.normal[at : at + count].view(shape))
            out.mul_(scale.mul_(1 / math.sqrt(3)).add_(1))
        else:
            factors = self.function if name in FUNCTIONS else self.once
            out.mul_(factors[at : at + count].view(shape))


class Spread:
    """Squares of how far noisy values of a tensor are from its true value."""

    def __init__(self):
        self.squares, self.count = 0, 0

    def add(self, value, truth):
        self.squares, self.count = self.squares + (value - truth).square(), self.count + 1

    def limit(self):
        """Per element: its own few draws, and what its row and column have, which are many."""
        own = self.squares / self.count
        pool = own.mean(-1, keepdim=True)
        if own.dim() > 1:
            pool = pool * own.mean(-2, keepdim=True) / own.mean((-1, -2), keepdim=True).clamp_min(1e-300)
        return FACTOR * (own + pool).sqrt()


def close_choices(truth, noisy):
    """Whether rounding could change what a topk chose."""
    for call, (scores, chosen) in enumerate(truth):
        if chosen == scores.shape[-1]:
            continue
        squares = torch.stack([run[call][0] - scores for run in noisy]).square().mean((0, -1))
        best = scores.topk(chosen + 1).values
        if (best[..., -2] - best[..., -1] <= FACTOR * (2 * squares).sqrt()).any():
            return True
    return False


class Companions:
    """AdamW in float64, and how far it may end elsewhere when gradients are off by up to their bounds b.

    With m and v as Adam has them without bias, a step is lr u, u = m / (sqrt v + eps). Where some b so far is more than half
    of sqrt v + eps, u may be anything Adam can do: |u| <= sqrt(sum of (weight in m)^2 / (weight in v)), which is 1 at first
    and below 1.2 later, whatever the gradients' signs (Cauchy). Elsewhere u follows the gradients smoothly: beside the true
    weights go eight copies with b added or taken away, in orthogonal orders, so that the farthest copy is at least as far
    as independent errors of the steps add up to (for three steps: all orders). The loss of float32 in the optimizer itself
    is added: in each step three roundings of the weight, and 16 of the update, whose terms are at most about lr.
    """

    ORDERS = (1, 2, 4, 3, 5, 6, 7, 0)  # which bits of a copy's number give its sign in a step

    def __init__(self, parameters, options):
        self.truth, self.options, self.steps = parameters, options, 0  # {name: parameter}
        self.copies = [{n: p.detach().clone().requires_grad_() for n, p in parameters.items()} for _ in self.ORDERS]
        everyone = [p for some in (self.truth, *self.copies) for p in some.values()]
        self.optimizer = torch.optim.AdamW(everyone, foreach=False, **options)
        self.limits, self.rounded, self.widest = ({n: torch.zeros_like(p) for n, p in parameters.items()} for _ in range(3))
        self.away = {n: torch.zeros(len(self.copies), *p.shape) for n, p in parameters.items()}

    @torch.no_grad()
    def step(self, gradients, bounds):
        order = self.ORDERS[self.steps % len(self.ORDERS)]
        for name, gradient in gradients.items():
            self.truth[name].grad = gradient
            for number, copy in enumerate(self.copies):
                sign = (number & order).bit_count() % 2 * 2 - 1
                copy[name].grad = None if gradient is None else gradient + sign * bounds[name]
        self.optimizer.step()
        self.steps += 1
        for name, weight in self.truth.items():
            rounded = UNIT * (3 * weight.abs() + 16 * self.options["lr"])
            self.rounded[name] += rounded
            self.limits[name] += rounded
            if gradients[name] is not None:
                self.limits[name] += self.farthest(name, weight, bounds[name])

    def reach(self):
        """How far the farthest copies are: what later gradients have to expect of all weights together."""
        return {name: away.abs().amax(0) + self.rounded[name] for name, away in self.away.items()}

    def farthest(self, name, weight, bound):
        """How much farther this step may lead."""
        mean, square = (1 - beta**self.steps for beta in self.options["betas"])
        state = self.optimizer.state[weight]
        root = (state["exp_avg_sq"] / square).sqrt() + self.options["eps"]
        step = (state["exp_avg"] / mean / root).abs()
        before, self.away[name] = self.away[name], torch.stack([copy[name] - weight for copy in self.copies])
        self.widest[name] = torch.maximum(self.widest[name], bound)
        smooth = (self.away[name] - before).abs().amax(0)
        return torch.where(self.widest[name] > root / 2, self.options["lr"] * (self.greatest() + step), smooth)

    def greatest(self):
        """Of |u|."""
        shares = [[(1 - b) * b**age / (1 - b**self.steps) for age in range(self.steps)] for b in self.options["betas"]]
        return math.sqrt(sum(m * m / v for m, v in zip(*shares)))
