#include "cases.hpp"

#include <iterator>

#include "generate.hpp"

namespace dsa::harness {

const std::vector<Case>& cases() {
  static const std::vector<Case> all = [] {
    std::vector<Case> joined;
    for (std::vector<Case> part :
         {quantize_cases(), indexer_cases(), topk_cases(), index_topk_cases(), fwd_cases(), bwd_cases()}) {
      std::move(part.begin(), part.end(), std::back_inserter(joined));
    }
    return joined;
  }();
  return all;
}

std::vector<const Case*> cases_of(Stage stage, CaseKind kind) {
  std::vector<const Case*> found;
  for (const Case& item : cases()) {
    if (item.stage == stage && item.kind == kind) found.push_back(&item);
  }
  return found;
}

}  // namespace dsa::harness
