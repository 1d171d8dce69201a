#include "engine/metrics/event_writer.hpp"

#include <array>
#include <bit>
#include <chrono>
#include <cstring>

#include <unistd.h>

#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr std::string_view kNamePrefix = "events.out.tfevents.";

static_assert(std::endian::native == std::endian::little, "records are written as memory lies");

// Field numbers and wire types of the protobuf encoding.
enum WireType : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
constexpr unsigned kEventWallTime = 1;
constexpr unsigned kEventStep = 2;
constexpr unsigned kEventFileVersion = 3;
constexpr unsigned kEventSummary = 5;
constexpr unsigned kSummaryValue = 1;
constexpr unsigned kValueTag = 1;
constexpr unsigned kValueSimple = 2;

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  constexpr std::uint32_t kReversedPolynomial = 0x82F63B78;
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? kReversedPolynomial : 0U);
    }
    table[byte] = crc;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kCrcTable = make_crc_table();

/// TFRecord stores checksums rotated and shifted, so that a checksum of data with checksums in it
/// stays useful.
std::uint32_t masked_crc(std::string_view bytes) noexcept {
  constexpr std::uint32_t kDelta = 0xA282EAD8;
  return std::rotr(crc32c(bytes), 15) + kDelta;
}

template <class T>
void append_fixed(std::string& out, T value) {
  std::array<char, sizeof(T)> bytes{};
  std::memcpy(bytes.data(), &value, sizeof(T));
  out.append(bytes.data(), bytes.size());
}

void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7U) {
    out += static_cast<char>((value & 0x7FU) | 0x80U);
  }
  out += static_cast<char>(value);
}

void append_tag(std::string& out, unsigned field, WireType type) {
  append_varint(out, (field << 3U) | type);
}

void append_bytes(std::string& out, unsigned field, std::string_view bytes) {
  append_tag(out, field, kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

void append_wall_time(std::string& out, double seconds) {
  append_tag(out, kEventWallTime, kFixed64);
  append_fixed(out, seconds);
}

double wall_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string event_path(const std::string& directory) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) {
    host = {"host"};
  }
  return fmt::format("{}/{}{:010}.{}.{}", directory, kNamePrefix,
                     static_cast<std::int64_t>(wall_time_s()), host.data(), ::getpid());
}

}  // namespace

bool is_event_file(std::string_view name) noexcept { return name.starts_with(kNamePrefix); }

std::uint32_t crc32c(std::string_view bytes) noexcept {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char byte : bytes) {
    crc = (crc >> 8U) ^ kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFFU];
  }
  return ~crc;
}

std::string tfrecord(std::string_view data) {
  std::string record;
  append_fixed(record, static_cast<std::uint64_t>(data.size()));
  append_fixed(record, masked_crc(record));
  record += data;
  append_fixed(record, masked_crc(data));
  return record;
}

std::string scalar_event(double wall_time, std::int64_t step, const std::vector<Scalar>& scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    append_bytes(value, kValueTag, tag);
    append_tag(value, kValueSimple, kFixed32);
    append_fixed(value, static_cast<float>(number));
    append_bytes(summary, kSummaryValue, value);
  }
  std::string event;
  append_wall_time(event, wall_time);
  append_tag(event, kEventStep, kVarint);
  append_varint(event, static_cast<std::uint64_t>(step));
  append_bytes(event, kEventSummary, summary);
  return event;
}

EventWriter::EventWriter(const std::string& directory) : file_(event_path(directory), false) {
  std::string event;
  append_wall_time(event, wall_time_s());
  append_bytes(event, kEventFileVersion, "brain.Event:2");
  file_.append(tfrecord(event));
}

void EventWriter::write(std::int64_t step, const std::vector<Scalar>& scalars) {
  file_.append(tfrecord(scalar_event(wall_time_s(), step, scalars)));
}

}  // namespace tandem
