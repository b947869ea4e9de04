#include "source.hpp"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

namespace dsa::emulator {

namespace {

struct Place {
  std::string file;        // full path
  int line = 0;            // 0: unknown
  std::string function;
};

/// An address as the debug information of its file knows it.
struct InModule {
  uintptr_t pc;
  std::string path;
  uintptr_t offset = 0;
};

InModule locate(const void* pc) {
  InModule found{uintptr_t(pc) - 1, "", 0};   // pc is where a call returns to; the call is before it
  dl_iterate_phdr(
      [](dl_phdr_info* module, std::size_t, void* data) {
        auto& found = *static_cast<InModule*>(data);
        for (int i = 0; i < module->dlpi_phnum; ++i) {
          const ElfW(Phdr)& segment = module->dlpi_phdr[i];
          const uintptr_t begin = module->dlpi_addr + segment.p_vaddr;
          if (segment.p_type != PT_LOAD || found.pc - begin >= segment.p_memsz) continue;
          found.path = module->dlpi_name;
          found.offset = found.pc - module->dlpi_addr;
          if (found.path.empty()) {                 // the program itself
            char path[4096];
            const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
            if (length > 0) found.path.assign(path, std::size_t(length));
          }
          return 1;
        }
        return 0;
      },
      &found);
  return found;
}

std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

/// "find" of "_ZN3dsa4findI...": a name that addr2line could not read, such as g++'s for an array parameter whose length is a
/// variable template.
std::string last_mangled_name(const std::string& mangled) {
  std::string name;
  for (std::size_t at = mangled.find_first_of("123456789"); at < mangled.size() && std::isdigit(mangled[at]);) {
    std::size_t digits = 0;
    const std::size_t length = std::stoul(mangled.substr(at, 4), &digits);
    name = mangled.substr(at + digits, length);
    at += digits + length;
  }
  return name;
}

/// "find" of "void dsa::find<int>(Shared&, int)::{lambda(int)#1}::operator()(int) const": what a reader looks for.
std::string short_name(const std::string& demangled) {
  if (demangled.starts_with("_Z")) return last_mangled_name(demangled);
  std::string name;
  int depth = 0;
  const std::string text = demangled.substr(0, demangled.find("::{lambda"));
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 21, "(anonymous namespace)") == 0) {
      i += 20;
      continue;
    }
    if (text[i] == '(' || text[i] == '<') ++depth;
    if (depth == 0) name += text[i];
    if (text[i] == ')' || text[i] == '>') --depth;
  }
  if (const std::size_t end = name.find(" const"); end != std::string::npos) name.resize(end);
  const std::size_t start = name.find_last_of(" :");
  return start == std::string::npos ? name : name.substr(start + 1);
}

/// Code of the seam and of the compiler's headers is nothing a reader of the kernel wants to see.
bool in_the_way(const std::string& file) {
  return file.find("/cuda/device/") != std::string::npos || file.find("/include/c++/") != std::string::npos ||
         file.find("/lib/gcc/") != std::string::npos || file.find("/lib/clang/") != std::string::npos;
}

Place look_up(const void* pc) {
  const InModule where = locate(pc);
  if (where.path.empty()) return {};
  char address[32];
  std::snprintf(address, sizeof address, "0x%zx", std::size_t(where.offset));
  FILE* pipe = popen(("addr2line -i -f -C -e " + quoted(where.path) + " " + address + " 2>/dev/null").c_str(), "r");
  if (!pipe) return {};
  std::string output;
  char buffer[4096];
  for (std::size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.append(buffer, n);
  pclose(pipe);

  // Two lines per frame, innermost first: function, then file:line.
  Place innermost;
  std::size_t at = 0;
  const auto next_line = [&] {
    const std::size_t end = output.find('\n', at);
    const std::string line = output.substr(at, end - at);
    at = end == std::string::npos ? output.size() : end + 1;
    return line;
  };
  while (at < output.size()) {
    const std::string function = next_line(), place = next_line();
    const std::size_t colon = place.rfind(':');
    const int line = colon == std::string::npos ? 0 : std::atoi(place.c_str() + colon + 1);
    if (line == 0) continue;
    const std::string file = std::filesystem::path(place.substr(0, colon)).lexically_normal().string();   // no a/../b
    const Place frame{file, line, short_name(function)};
    if (!in_the_way(frame.file)) return frame;
    if (innermost.line == 0) innermost = frame;
  }
  return innermost;
}

const Place& place_of(const void* pc) {
  static std::map<const void*, Place> known;
  const auto found = known.find(pc);
  return found != known.end() ? found->second : known.emplace(pc, look_up(pc)).first->second;
}

}  // namespace

std::string source_line(const void* pc) {
  const Place& place = place_of(pc);
  if (place.line == 0) return "";
  const std::string name = place.file.substr(place.file.rfind('/') + 1);
  return name + ":" + std::to_string(place.line) + " (" + place.function + ")";
}

std::string where(const void* pc) {
  const std::string line = pc ? source_line(pc) : "";
  return line.empty() ? "" : " at " + line;
}

std::string source_text(const void* pc) {
  const Place& place = place_of(pc);
  if (place.line == 0) return "";
  std::ifstream file(place.file);
  std::string text;
  for (int i = 0; i < place.line; ++i)
    if (!std::getline(file, text)) return "";
  const std::size_t first = text.find_first_not_of(" \t");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

}  // namespace dsa::emulator
