// models/kernels/dropout-inl.hpp — a row of a dropout mask in vectors; compiled once per SIMD
// target.
//
// Included after models/kernels/lanes-inl.hpp inside the foreach_target passes (hence no #pragma
// once).
#if defined(TANDEM_MODELS_KERNELS_DROPOUT_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_MODELS_KERNELS_DROPOUT_INL
#undef TANDEM_MODELS_KERNELS_DROPOUT_INL
#else
#define TANDEM_MODELS_KERNELS_DROPOUT_INL
#endif

#include <cstdint>

#include "actors/kernels/update/stochastic_rounding-inl.hpp"
#include "models/kernels/dropout.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

/// Elements (row, first + i) of a mask.
class DropRow {
 public:
  HWY_INLINE DropRow(const DropMask& mask, std::int64_t row, std::int64_t first = 0)
      : start_(static_cast<std::uint32_t>(mask.key) +
               static_cast<std::uint32_t>(first) * kRoundingStep),
        last_(static_cast<std::int32_t>(mask.dropped) - 1),
        scale_(mask.scale) {
    const hn::RebindToUnsigned<OneLane> d;
    const std::uint32_t place = static_cast<std::uint32_t>(mask.key >> 32) +
                                static_cast<std::uint32_t>(mask.rows.of(row)) * kRoundingStep;
    row_ = hn::GetLane(mixed_bits(d, hn::Set(d, place)));
  }

  /// Returns scale * x, or zero where it is dropped; x has the columns from first + i on.
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, std::int64_t i, hn::Vec<D> x) const {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const std::uint32_t at = start_ + static_cast<std::uint32_t>(i) * kRoundingStep;
    const auto place =
        hn::Add(hn::Set(du, at), hn::Mul(hn::Iota(du, 0), hn::Set(du, kRoundingStep)));
    const auto bits = mixed_bits(du, hn::Xor(mixed_bits(du, place), hn::Set(du, row_)));
    const auto stays = hn::Gt(hn::BitCast(di, hn::ShiftRight<1>(bits)), hn::Set(di, last_));
    return hn::IfThenElseZero(hn::RebindMask(d, stays), hn::Mul(x, hn::Set(d, scale_)));
  }

 private:
  std::uint32_t start_, row_;
  std::int32_t last_;  // of what is dropped
  float scale_;
};

/// Stands in for DropRow if nothing is dropped: the same calls cost nothing.
struct KeepRow {
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D, std::int64_t, hn::Vec<D> x) const {
    return x;
  }
};

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
