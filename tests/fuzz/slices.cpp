// slices.json of one disk's part of a checkpoint, up to its content hash, which is computed here,
// so that the reader gets beyond the hash of a changed text. The tensors that it lists are runs of
// elements, cut out of whole tensors.
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
