// manifest.json of a checkpoint, or of one disk's slices of it, up to its content hash, which is
// made here: so the reader looks at what a changed text says.
#include "actors/storage/manifest.hpp"

#include "tests/fuzz/fuzz.hpp"

namespace tandem::fuzz {

void read(std::string_view input) {
  std::string text(input);
  text += ",\n  \"content_hash\": \"";
  ContentHasher hasher;
  hasher.add(std::as_bytes(std::span(text)));
  text += hasher.result().text() + "\"\n}\n";
  const Manifest manifest = Manifest::parse(text, "manifest.json");
  const std::string written = manifest.json();
  expect(Manifest::parse(written, "written").json() == written,
         "a manifest that is accepted reads back as itself");
  for (const ManifestFile& file : manifest.files) {
    for (const ManifestTensor& tensor : file.tensors) {
      const auto run = TensorRun::parse(tensor.name);
      expect(!manifest.slices || (run && run->name() == tensor.name),
             "a run's name reads back as itself");
    }
  }
}

}  // namespace tandem::fuzz
