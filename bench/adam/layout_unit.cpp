#include "bench/adam/layout_unit.hpp"

#include <vector>

#include "actors/kernels/reduce.hpp"

namespace tandem::bench {

namespace {
DType type_of(Mix mix) { return mix == Mix::kFp32 ? DType::kF32 : DType::kBF16; }
}  // namespace

LayoutUnit::LayoutUnit(Mix mix, std::size_t elements, double weight_decay, std::size_t shift)
    : mix_(mix),
      elements_(elements),
      shift_(shift),
      config_{.lr = kLearningRate, .weight_decay = weight_decay},
      gradient_((elements + shift) * bytes_of(type_of(mix))),
      fp32_gradient_(elements * sizeof(float)) {
  sets_[0] = make_set(state_[0], weight_[0]);
  set_gradients(1.0F);
  constexpr std::size_t kPiece = 64 * kScaleGroup;
  std::vector<float> values(kPiece);
  for (std::size_t begin = 0; begin < elements_; begin += kPiece) {
    const std::size_t end = std::min(elements_, begin + kPiece);
    for (std::size_t k = 0; k < 2; ++k) {
      for (std::size_t i = 0; i < kPiece; ++i) {
        values[i] = (k == 0 ? 1e-4F : 1e-7F) * (1 + static_cast<float>((begin + i) % 991) / 991);
      }
      write_state(sets_[0], k, values.data(), begin, end);
    }
    for (std::size_t i = 0; i < kPiece; ++i) {
      values[i] = 0.02F * (0.1F + static_cast<float>((begin + i) % 1009) / 1009);
    }
    write_master(sets_[0], values.data(), begin, end);
  }
}

UpdateBuffers LayoutUnit::make_set(HostBuffer& state, HostBuffer& weight) const {
  const std::size_t room = elements_ + shift_;
  const StateLayout layout = layout_of(mix_);
  // fp32 weights lie in the same memory as the state, as their own master.
  const DType type = type_of(mix_);
  state = HostBuffer(state_bytes(layout, config_, type, room));
  weight = HostBuffer(room * bytes_of(type));
  state.touch();
  weight.touch();
  UpdateBuffers b;
  place_state(b, layout, config_, type, room, state.data());
  const StateSizes one = state_sizes(layout, config_, type, 1);
  const auto shifted = [this](void* array, std::size_t size) -> void* {
    return static_cast<std::byte*>(array) + shift_ * size;
  };
  b.state[0] = shifted(b.state[0], one.state[0]);
  b.state[1] = shifted(b.state[1], one.state[1]);
  if (mix_ == Mix::kFp32) {
    b.master = shifted(weight.data(), sizeof(float));
  } else {
    b.master = shifted(b.master, one.master);
    b.weight = shifted(weight.data(), 2);
    b.weight_type = DType::kBF16;
  }
  b.gradient = gradient_.data() + shift_ * bytes_of(type);
  b.gradient_type = type;
  return b;
}

UpdateBuffers LayoutUnit::buffers(bool apart) {
  if (!apart) {
    return sets_[0];
  }
  if (sets_[1].master == nullptr) {
    sets_[1] = make_set(state_[1], weight_[1]);
  }
  UpdateBuffers b = sets_[1];
  b.from = source_of(sets_[0]);
  return b;
}

void LayoutUnit::set_gradients(float factor) {
  auto* values = fp32_gradient_.as<float>();
  for (std::size_t i = 0; i < elements_; ++i) {
    values[i] = factor * 1e-3F * (static_cast<float>(i % 997) / 997 - 0.4998F);
  }
  auto* typed = gradient_.data() + shift_ * bytes_of(type_of(mix_));
  cast(values, DType::kF32, typed, type_of(mix_), 0, elements_);
  cast(typed, type_of(mix_), values, DType::kF32, 0, elements_);
}

void LayoutUnit::set_gradient(std::size_t i, float value) {
  fp32_gradient_.as<float>()[i] = value;
  const DType type = type_of(mix_);
  cast(&value, DType::kF32, gradient_.data() + (shift_ + i) * bytes_of(type), type, 0, 1);
}

}  // namespace tandem::bench
