#include "build_info.hpp"

#include <ctime>

namespace dsa::bench {

void add_build_context(std::map<std::string, std::string>& context) {
  const std::time_t now = std::time(nullptr);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S+00:00", std::gmtime(&now));
  context["date"] = date;
  const std::string commit = DSA_COMMIT;  // defined by CMake
  if (!commit.empty()) context["commit"] = commit;
}

}  // namespace dsa::bench
