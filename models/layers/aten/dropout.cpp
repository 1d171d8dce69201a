#include "models/layers/dropout.hpp"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>

#include "models/layers/fused_op.hpp"
#include "runtime/util/check.hpp"

namespace tandem::aten {
namespace {

// bits of a number, in int64: no product of two overflows
constexpr std::int64_t kLow = 0xffffffff;
constexpr std::int64_t kStep = 0x9e3779b1;
constexpr std::int64_t kElements = std::int64_t{4} << 20;  // whose bits are drawn at a time

/// x = mixed_bits(x) of actors/kernels/update/stochastic_rounding-inl.hpp, in its place.
void mix(at::Tensor& x) {
  constexpr std::int64_t kFirst = 0x7feb352d;
  constexpr std::int64_t kSecond = std::int64_t{0x846ca68b} - kLow - 1;  // the same to 32 bits
  x.bitwise_xor_(x.bitwise_right_shift(16)).mul_(kFirst).bitwise_and_(kLow);
  x.bitwise_xor_(x.bitwise_right_shift(15)).mul_(kSecond).bitwise_and_(kLow);
  x.bitwise_xor_(x.bitwise_right_shift(16));
}

/// One half of an element's bits: of its rows or of its columns.
at::Tensor half_of(const at::Tensor& numbers, std::int64_t key) {
  at::Tensor x = (numbers * kStep).bitwise_and_(kLow).add_(key).bitwise_and_(kLow);
  mix(x);
  return x;
}

class Dropped final : public FusedOp {
 public:
  Dropped(const DropMask& mask, at::Tensor rows, std::int64_t first)
      : mask_(mask), rows_(std::move(rows)), first_(first) {}

  Tensors forward(const Tensors& inputs, bool /*keep*/) override { return {drop(inputs[0])}; }
  Tensors backward(const Tensors& gradients) override { return {drop(gradients[0])}; }

 private:
  [[nodiscard]] at::Tensor drop(const at::Tensor& x) const {
    const std::int64_t width = x.size(-1);
    const at::Tensor from = x.reshape({-1, width});
    at::Tensor to = at::empty(from.sizes(), from.options().requires_grad(false));
    const at::Tensor of_columns = half_of(at::arange(first_, first_ + width, rows_.options()),
                                          static_cast<std::int64_t>(mask_.key & kLow));
    const at::Tensor of_rows =
        half_of(rows_, static_cast<std::int64_t>(mask_.key >> 32)).unsqueeze(1);
    const std::int64_t most = std::max<std::int64_t>(1, kElements / width);
    for (std::int64_t begin = 0; begin < from.size(0); begin += most) {
      const std::int64_t rows = std::min(most, from.size(0) - begin);
      at::Tensor bits = of_rows.narrow(0, begin, rows).bitwise_xor(of_columns);
      mix(bits);
      const at::Tensor stays = bits.ge(std::int64_t{mask_.dropped} << 1);
      to.narrow(0, begin, rows)
          .copy_(at::where(stays, from.narrow(0, begin, rows) * mask_.scale, 0));
    }
    return to.view(x.sizes());
  }

  DropMask mask_;
  at::Tensor rows_;
  std::int64_t first_;
};

}  // namespace

std::int64_t drawing_bytes(std::int64_t elements) noexcept {
  // the bits in int64; what stays; a number scaled, and where it stays
  constexpr std::int64_t kBytes = 17;
  return kBytes * std::min(elements, kElements);
}

at::Tensor dropped(const at::Tensor& x, const DropMask& mask, const at::Tensor& rows,
                   std::int64_t first) {
  TANDEM_CHECK(rows.numel() * x.size(-1) == x.numel(), "a number for each row");
  const DropRows& of = mask.rows;
  at::Tensor numbers = rows.reshape({-1}) + of.begin;
  if (of.run > 0) {  // as DropRows::of()
    const at::Tensor which = numbers.floor_divide(of.run);
    numbers = (which.floor_divide(of.count) * of.step + which.remainder(of.count)) * of.stride +
              numbers.remainder(of.run) + of.first;
  }
  return run_fused(c10::make_intrusive<Dropped>(mask, numbers, first), {x}).front();
}

at::Tensor dropped(const at::Tensor& x, const DropMask& mask) {
  if (mask.empty()) {
    return x;
  }
  const std::int64_t rows = x.numel() / x.size(-1);
  return dropped(x, mask, at::arange(rows, x.options().dtype(at::kLong).requires_grad(false)));
}

}  // namespace tandem::aten
