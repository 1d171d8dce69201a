// A pickle as torch.save writes one, by the restricted reader; the tree of its values as JSON.
#include "models/io/pickle.hpp"

#include "models/foreign/pickle_json.hpp"
#include "models/foreign/torch_rules.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace tandem::fuzz {

void read(std::string_view input) {
  TorchRules rules;
  PickleReader reader(input, rules,
                      {.where = "import", .file = "p", .complaint = "is bad", .advice = "no"});
  (void)json_of(reader.read());
  for (const TorchTensor& tensor : rules.tensors()) {
    expect(tensor.storage < rules.storages().size(), "a tensor has a storage");
  }
}

}  // namespace tandem::fuzz
