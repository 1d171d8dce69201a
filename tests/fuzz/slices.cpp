// slices.json of one disk's part of a checkpoint, up to its content hash, which is made here: so
// the reader looks at what a changed text says. What lies there is indexed, and cut out of the
// whole.
#include "actors/checkpoint/slices.hpp"

#include "tests/fuzz/fuzz.hpp"

namespace tandem::fuzz {

void read(std::string_view input) {
  std::string text(input);
  text += ",\n  \"content_hash\": \"";
  ContentHasher hasher;
  hasher.add(std::as_bytes(std::span(text)));
  text += hasher.result().text() + "\"\n}\n";
  const Slices slices = Slices::parse(text, "slices.json");
  const std::string written = slices.json();
  expect(Slices::parse(written, "written").json() == written,
         "slices that are accepted read back as themselves");
  for (const ManifestFile& file : slices.files) {
    for (const ManifestTensor& tensor : file.tensors) {
      const auto run = TensorRun::parse(tensor.name);
      expect(run && run->name() == tensor.name, "a run's name reads back as itself");
    }
  }
}

}  // namespace tandem::fuzz
