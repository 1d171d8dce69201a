// tests/fuzz/verdicts.cpp — this project's verdict on each .safetensors file whose path is a line
// on standard input: "accepted", or the line of the refusal. compare_with_python.py runs it.
#include <cstdio>
#include <iostream>
#include <string>

#include "actors/storage/safetensors.hpp"
#include "runtime/util/error.hpp"

int main() {
  for (std::string path; std::getline(std::cin, path);) {
    std::string verdict = "accepted";
    try {
      (void)tandem::SafetensorsFile::open(path);
    } catch (const tandem::Error& error) {
      verdict = error.what();
    }
    for (char& c : verdict) {
      c = c == '\n' ? ' ' : c;
    }
    std::cout << verdict << std::endl;
  }
}
