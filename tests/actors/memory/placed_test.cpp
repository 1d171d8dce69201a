// An address is had only for the place that it is of, and only plain pointers count as host memory
// by themselves.
#include "actors/memory/placed.hpp"

#include <cstddef>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "actors/collectives/collective_backend.hpp"
#include "actors/optimizer/placed_state.hpp"
#include "tests/support/actor_world.hpp"

namespace tandem {
namespace {

// What the compiler refuses: memory whose place is known never becomes a plain pointer by itself,
// and so never host memory; const is not cast away.
static_assert(std::is_convertible_v<float*, Placed<const float>>);
static_assert(std::is_convertible_v<float*, Placed<void>>);
static_assert(std::is_convertible_v<Placed<float>, Placed<const void>>);
static_assert(!std::is_convertible_v<Placed<float>, float*>);
static_assert(!std::is_constructible_v<float*, Placed<float>>);
static_assert(!std::is_convertible_v<Placed<const float>, Placed<float>>);
static_assert(!std::is_convertible_v<Placed<void>, Placed<float>>);
static_assert(!std::is_convertible_v<PlacedBuffers, UpdateBuffers>);
static_assert(sizeof(Placed<float>) == 2 * sizeof(float*));

TEST(Placed, HasItsAddressForItsPlaceAlone) {
  std::byte memory[8];
  const Placed<std::byte> host = memory;
  const Placed<std::byte> device(Place::kDevice, memory);
  const Placed<std::byte> file(Place::kFile, memory);
  EXPECT_EQ(host.host(), memory);
  EXPECT_EQ(device.device(), memory);
  EXPECT_EQ(file.file(), memory);
  EXPECT_EQ(host.memory(), memory);
  EXPECT_EQ(device.memory(), memory);
  for (const Placed<std::byte> elsewhere : {device, file}) {
    EXPECT_DEATH((void)elsewhere.host(), "memory is accessed where it lies");
  }
  for (const Placed<std::byte> elsewhere : {host, file}) {
    EXPECT_DEATH((void)elsewhere.device(), "memory is accessed where it lies");
  }
  for (const Placed<std::byte> elsewhere : {host, device}) {
    EXPECT_DEATH((void)elsewhere.file(), "memory is accessed where it lies");
  }
  EXPECT_DEATH((void)file.memory(), "what lies in a file has no memory");
}

TEST(Placed, KeepsItsPlace) {
  float memory[8];
  const Placed<float> there(Place::kDevice, memory);
  const Placed<const void> whole = there;
  EXPECT_EQ(whole.place(), Place::kDevice);
  EXPECT_EQ((there + 3).device(), memory + 3);
  const auto bytes = static_cast<Placed<const std::byte>>(whole);
  EXPECT_EQ((bytes + sizeof(float)).identity(), memory + 1);
  EXPECT_EQ((bytes + 1).place(), Place::kDevice);
  EXPECT_TRUE(there == Placed(Place::kDevice, memory));
  EXPECT_FALSE(there == there + 1);
}

TEST(Placed, NullLiesNowhere) {
  const Placed<std::byte> null(Place::kFile, nullptr);
  EXPECT_TRUE(null == nullptr);
  EXPECT_EQ(null.place(), Place::kHost);
  EXPECT_EQ(null.host(), nullptr);
  EXPECT_EQ(null.device(), nullptr);
  EXPECT_EQ(null.file(), nullptr);
}

/// A unit is handed to code for host memory as a whole, and one array elsewhere is enough.
TEST(Placed, AUnitIsOnTheHostIfAllItsArraysAre) {
  float arrays[4];
  PlacedBuffers buffers{.master = arrays,
                        .state = {arrays + 1, arrays + 2},
                        .gradient = arrays + 3,
                        .gradient_type = DType::kBF16,
                        .position = 640};
  const UpdateBuffers here = on_host(buffers);
  EXPECT_EQ(here.master, arrays);
  EXPECT_EQ(here.state[1], arrays + 2);
  EXPECT_EQ(here.gradient, arrays + 3);
  EXPECT_EQ(here.gradient_type, DType::kBF16);
  EXPECT_EQ(here.position, 640U);
  buffers.state[1] = {Place::kFile, arrays + 2};
  EXPECT_DEATH((void)on_host(buffers), "memory is accessed where it lies");
}

TEST(Placed, ABackEndForHostMemoryTakesNoOther) {
  test::World world;
  SelfBackend self(world.pool);
  std::byte shard[8];
  std::byte block[8];
  const auto gather = [&](Placed<std::byte> into) {
    world.loop.run([](SelfBackend* on, GatherArguments a) -> Task<> { co_await on->all_gather(a); },
                   &self, GatherArguments{shard, into, sizeof(shard)});
  };
  gather(block);
  EXPECT_DEATH(gather({Place::kDevice, block}), "memory is accessed where it lies");
  world.end();
}

}  // namespace
}  // namespace tandem
