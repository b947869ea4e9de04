/// @file planted_twin.cpp
/// An inline function in two objects: one_definition.cmake must see it.
namespace dsa {
inline int twin() {
  return 1;
}
int (*twin_of_this_object)() = twin;
}  // namespace dsa
