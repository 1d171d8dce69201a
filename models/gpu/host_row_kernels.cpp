// models/gpu/host_row_kernels.cpp — the table of row_kernels.hpp on the host: one thread forms each
// group. For tests, and for a fake GPU.
#include <vector>

#include "models/gpu/row_kernels-inl.hpp"

namespace tandem {
namespace {

struct Alone {
  static constexpr std::int64_t first() { return 0; }
  static constexpr std::int64_t size() { return 1; }
  static float sum(float own) { return own; }
  static float greatest(float own) { return own; }
};

using rows::with_type;

int heads_forward(const HeadRows& shape, const void* qkv, void* q, void* k, void* v,
                  void* /*stream*/) {
  with_type(shape.type, [&](auto type) {
    using Type = decltype(type);
    using Stored = typename Type::Stored;
    const rows::Heads<Type> heads{shape, static_cast<const Stored*>(qkv)};
    for (std::int64_t item = 0; item < heads.items(); ++item) {
      heads.forward(item, static_cast<Stored*>(q), static_cast<Stored*>(k), static_cast<Stored*>(v),
                    Alone());
    }
  });
  return 0;
}

void give_all(const WeightGradient& gradient, const float* sums, std::int64_t count) {
  for (std::int64_t i = 0; gradient.to != nullptr && i < count; ++i) {
    rows::give(gradient, i, sums[i]);
  }
}

int heads_backward(const HeadRows& shape, const void* qkv, const HeadGradients& of, void* dqkv,
                   float* /*partials*/, WeightGradient q_norm, WeightGradient k_norm,
                   void* /*stream*/) {
  std::vector<float> sums(static_cast<std::size_t>(2 * shape.head_dim));
  float* const k_sums = sums.data() + shape.head_dim;
  with_type(shape.type, [&](auto type) {
    using Type = decltype(type);
    using Stored = typename Type::Stored;
    const rows::Heads<Type> heads{shape, static_cast<const Stored*>(qkv)};
    for (std::int64_t item = 0; item < heads.items(); ++item) {
      heads.backward(item, of, static_cast<Stored*>(dqkv), sums.data(), k_sums, Alone());
    }
  });
  give_all(q_norm, sums.data(), shape.head_dim);
  give_all(k_norm, k_sums, shape.head_dim);
  return 0;
}

int rms_forward(const RmsRows& rows, const void* x, void* y, void* /*stream*/) {
  with_type(rows.type, [&](auto type) {
    using Stored = typename decltype(type)::Stored;
    const rows::Rms<decltype(type), 1> norm{rows};
    for (std::int64_t row = 0; row < rows.rows; ++row) {
      norm.forward(static_cast<const Stored*>(x) + row * rows.width,
                   static_cast<Stored*>(y) + row * rows.width, Alone());
    }
  });
  return 0;
}

int rms_backward(const RmsRows& rows, const void* x, const void* dy, const void* residual, void* dx,
                 float* /*partials*/, WeightGradient weight, void* /*stream*/) {
  std::vector<float> sums(static_cast<std::size_t>(rows.width));
  with_type(rows.type, [&](auto type) {
    using Stored = typename decltype(type)::Stored;
    const rows::Rms<decltype(type), 1> norm{rows};
    for (std::int64_t row = 0; row < rows.rows; ++row) {
      const auto of = [&](const void* all) {
        return all == nullptr ? nullptr : static_cast<const Stored*>(all) + row * rows.width;
      };
      norm.backward(of(x), of(dy), of(residual), static_cast<Stored*>(dx) + row * rows.width,
                    sums.data(), Alone());
    }
  });
  give_all(weight, sums.data(), rows.width);
  return 0;
}

int activate_rows(Activation kind, DType type, std::int64_t count, std::int64_t width,
                  const void* x, void* a, void* /*stream*/) {
  with_type(type, [&](auto of) {
    using Stored = typename decltype(of)::Stored;
    const rows::Gates<decltype(of), 1> gates{kind, width};
    for (std::int64_t i = 0; i < count * width; ++i) {
      gates.forward(static_cast<const Stored*>(x), static_cast<Stored*>(a), i);
    }
  });
  return 0;
}

int activate_rows_back(Activation kind, DType type, std::int64_t count, std::int64_t width,
                       const void* x, const void* da, void* dx, void* /*stream*/) {
  with_type(type, [&](auto of) {
    using Stored = typename decltype(of)::Stored;
    const rows::Gates<decltype(of), 1> gates{kind, width};
    for (std::int64_t i = 0; i < count * width; ++i) {
      gates.backward(static_cast<const Stored*>(x), static_cast<const Stored*>(da),
                     static_cast<Stored*>(dx), i);
    }
  });
  return 0;
}

int loss(const LossRows& rows, void* /*stream*/) {
  with_type(rows.type, [&](auto type) {
    for (std::int64_t row = 0; row < rows.rows; ++row) {
      rows::loss_of_row<decltype(type), 1>(rows, row, Alone());
    }
  });
  return 0;
}

}  // namespace

const RowKernels& RowKernels::of_host() noexcept {
  static constexpr RowKernels kHost{.heads_forward = &tandem::heads_forward,
                                    .heads_backward = &tandem::heads_backward,
                                    .rms_forward = &tandem::rms_forward,
                                    .rms_backward = &tandem::rms_backward,
                                    .activation_forward = &activate_rows,
                                    .activation_backward = &activate_rows_back,
                                    .loss = &tandem::loss};
  return kHost;
}

}  // namespace tandem
