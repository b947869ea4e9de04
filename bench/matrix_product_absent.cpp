#include "yardsticks.hpp"

namespace dsa::bench {

std::unique_ptr<Yardstick> make_matrix_product(bool, void*) {
  return nullptr;
}

}  // namespace dsa::bench
