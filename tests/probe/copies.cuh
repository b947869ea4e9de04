/// @file copies.cuh
/// cp.async, bulk copies, tensor copies: what lands where, what happens outside of a tensor.
#pragma once

#include <algorithm>
#include <array>

#include "probe.hpp"

namespace dsa::probe {

// ---- cp.async -----------------------------------------------------------------------------------------------------
struct SmallCopyShared {
  alignas(128) unsigned char data[16 * 32];
  ptx::mbarrier bar;
};

/// Lane l copies `bytes` bytes to data[16 l], of which 4 (l % 5) come from memory, at most `bytes`.
template <int kBytes>
static __global__ void small_copies(const unsigned char* in, unsigned char* background, unsigned char* out) {
  SmallCopyShared& s = shared_memory<SmallCopyShared>();
  fill_shared(s.data, background, sizeof s.data);
  const unsigned lane = threadIdx.x, bytes = min(4 * (lane % 5), unsigned(kBytes));
  if constexpr (kBytes == 16) ptx::cp_async_16(&s.data[16 * lane], in + 16 * lane, bytes);
  else if constexpr (kBytes == 8) ptx::cp_async_8(&s.data[16 * lane], in + 16 * lane, bytes);
  else ptx::cp_async_4(&s.data[16 * lane], in + 16 * lane, bytes);
  ptx::cp_async_commit_group();
  ptx::cp_async_wait_group<0>();
  dump_shared(out, s.data, sizeof s.data);
}

/// Completion on a barrier. With noinc the 32 arrivals are the barrier's own; without, every lane also arrives itself.
template <bool kNoinc>
static __global__ void copies_to_barrier(const unsigned char* in, unsigned char* out, uint32_t* status) {
  SmallCopyShared& s = shared_memory<SmallCopyShared>();
  const unsigned lane = threadIdx.x;
  if (lane == 0) {
    ptx::mbarrier_init(&s.bar, 32);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::cp_async_16_l2_256B(&s.data[16 * lane], in + 16 * lane, 16);
  if constexpr (kNoinc) {
    ptx::cp_async_mbarrier_arrive_noinc(&s.bar);
  } else {
    ptx::cp_async_mbarrier_arrive(&s.bar);
    ptx::mbarrier_arrive(&s.bar);
  }
  status[lane] = completes(&s.bar, 0) ? lane : kTimeout;
  dump_shared(out, s.data, sizeof s.data);
}

template <int kBytes> void probe_small_copy() {
  const std::string name = "cp_async_" + std::to_string(kBytes);
  if (!is_wanted(name)) return;
  const std::vector<unsigned char> in = scrambled_bytes(512, 1), background = scrambled_bytes(512, 2);
  std::vector<unsigned char> model = background;
  for (unsigned i = 0; i < 512; ++i)
    if (i % 16 < kBytes) model[i] = i % 16 < 4 * (i / 16 % 5) ? in[i] : 0;
  const Array<unsigned char> device_in(in), device_background(background), out(512);
  if (run<SmallCopyShared>(name, small_copies<kBytes>, 1, 32, device_in.data(), device_background.data(), out.data())) {
    print_hash(name, out.read(), model);
    const std::vector<unsigned char> first = out.read();
    print_words(name + "/lanes0to4", std::vector<unsigned char>(first.begin(), first.begin() + 80));
  }
}
template <bool kNoinc> void probe_copy_to_barrier() {
  const std::string name = std::string("cp_async_mbarrier_arrive") + (kNoinc ? "_noinc" : "");
  if (!is_wanted(name)) return;
  const std::vector<unsigned char> in = scrambled_bytes(512, 3);
  const Array<unsigned char> device_in(in), out(512);
  const Array<uint32_t> status(32);
  if (run<SmallCopyShared>(name, copies_to_barrier<kNoinc>, 1, 32, device_in.data(), out.data(), status.data())) {
    print_words(name + "/status", status.read());
    print_hash(name, out.read(), in);
  }
}

// ---- Bulk copies --------------------------------------------------------------------------------------------------
struct BulkShared {
  alignas(128) unsigned char data[4096];
  ptx::mbarrier bar;
};

/// Loads 2048 + 16 bytes with one barrier, stores them and adds the first 1024 bytes as floats to `sums`, and the last
/// 16 to `tiny`.
static __global__ void bulk_copies(const unsigned char* in, unsigned char* out, float* sums, float* tiny,
                                   uint32_t* status) {
  BulkShared& s = shared_memory<BulkShared>();
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&s.bar, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(&s.bar, 2064);
    ptx::cp_async_bulk_load(s.data, in, 2048, &s.bar);
    ptx::cp_async_bulk_load(s.data + 2048, in + 2048, 16, &s.bar);
    status[0] = completes(&s.bar, 0) ? 1 : kTimeout;
    ptx::cp_async_bulk_store(out, s.data, 2064);
    ptx::cp_async_bulk_commit_group();
    ptx::cp_reduce_async_bulk_add_f32(sums, reinterpret_cast<float*>(s.data), 1024);
    ptx::cp_reduce_async_bulk_add_f32(tiny, reinterpret_cast<float*>(s.data + 2048), 16);
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group_read<1>();
    ptx::cp_async_bulk_wait_group<0>();
  }
}

inline void probe_bulk() {
  const std::string name = "bulk";
  if (!is_wanted(name)) return;
  std::vector<unsigned char> in = scrambled_bytes(2064, 4);
  std::vector<float> addends(256), sums(256), model(256);
  for (std::size_t i = 0; i < 256; ++i) {
    addends[i] = float(int(scramble(uint32_t(i)) % 2001) - 1000) / 64;
    sums[i] = float(int(scramble(uint32_t(i) + 1000) % 2001) - 1000) * 3;
    model[i] = addends[i] + sums[i];
  }
  std::memcpy(in.data(), addends.data(), 1024);
  const std::vector<uint32_t> subnormals = {0x00080000u, 0x00000200u, 0x80800000u, 1}, start = {0, 0, 0x00c00000u, 0};
  std::memcpy(in.data() + 2048, subnormals.data(), 16);
  const Array<unsigned char> device_in(in), out(2064);
  const Array<float> device_sums(sums);
  const Array<uint32_t> status(1), tiny(start);
  if (!run<BulkShared>(name, bulk_copies, 1, 32, device_in.data(), out.data(), device_sums.data(),
                       reinterpret_cast<float*>(tiny.data()), status.data()))
    return;
  print_words(name + "/status", status.read());
  print_hash(name + "/load_store", out.read(), in);
  print_hash(name + "/add_f32", device_sums.read(), model);
  print_words("# " + name + "/add_f32_subnormals", tiny.read());
}

// ---- Tensor copies ------------------------------------------------------------------------------------------------
struct TensorShared {
  alignas(1024) unsigned char box[16384];
  ptx::mbarrier bar;
};

struct BoxAt {
  int rank, at[4];
  unsigned bytes;
};

/// @param dumped  bytes of shared memory to fill before and to give back after, at least the box's
static __global__ void tensor_load(const __grid_constant__ ptx::TensorMap map, const BoxAt box, unsigned dumped,
                                   const unsigned char* background, unsigned char* out, uint32_t* status) {
  TensorShared& s = shared_memory<TensorShared>();
  fill_shared(s.box, background, dumped);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensormap(&map);
    ptx::mbarrier_init(&s.bar, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(&s.bar, box.bytes);
    const auto& at = box.at;
    if (box.rank == 2) ptx::cp_async_bulk_tensor_load(s.box, &map, {at[0], at[1]}, &s.bar);
    else if (box.rank == 3) ptx::cp_async_bulk_tensor_load(s.box, &map, {at[0], at[1], at[2]}, &s.bar);
    else ptx::cp_async_bulk_tensor_load(s.box, &map, at, &s.bar);
    status[0] = completes(&s.bar, 0) ? 1 : kTimeout;
  }
  dump_shared(out, s.box, dumped);
}

static __global__ void tensor_store(const __grid_constant__ ptx::TensorMap map, const BoxAt box,
                                    const unsigned char* image) {
  TensorShared& s = shared_memory<TensorShared>();
  fill_shared(s.box, image, box.bytes);
  if (threadIdx.x == 0) {
    const auto& at = box.at;
    if (box.rank == 2) ptx::cp_async_bulk_tensor_store(&map, {at[0], at[1]}, s.box);
    else if (box.rank == 3) ptx::cp_async_bulk_tensor_store(&map, {at[0], at[1], at[2]}, s.box);
    else ptx::cp_async_bulk_tensor_store(&map, at, s.box);
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group<0>();
  }
}

/// A tensor of elements T in memory, perhaps with gaps between its rows, and boxes of it.
template <class T> struct TensorCase {
  std::string name;
  int rank;
  int size[4], box[4];                           ///< elements; 1 beyond the rank
  int stride[3];                                 ///< bytes, of dimensions 1 to 3
  ptx::Swizzle mode;

  int box_bytes() const { return box[0] * box[1] * box[2] * box[3] * int(sizeof(T)); }
  int total_bytes() const { return std::max({stride[0] * size[1], stride[1] * size[2], stride[2] * size[3]}); }
  ptx::TensorMap map(const T* base) const {
    if (rank == 2) return ptx::make_tensor_map(base, {size[0], size[1]}, {stride[0]}, {box[0], box[1]}, mode);
    if (rank == 3)
      return ptx::make_tensor_map(base, {size[0], size[1], size[2]}, {stride[0], stride[1]}, {box[0], box[1], box[2]}, mode);
    return ptx::make_tensor_map(base, {size[0], size[1], size[2], size[3]}, {stride[0], stride[1], stride[2]},
                                {box[0], box[1], box[2], box[3]}, mode);
  }
  /// Calls visit(offset in shared memory, offset in the tensor or -1) for every byte of the box.
  template <class Visit> void visit(const int (&at)[4], const Visit& visit_byte) const {
    for (int offset = 0; offset < box_bytes(); ++offset) {
      int rest = offset / int(sizeof(T)), global = offset % int(sizeof(T));
      bool inside = true;
      for (int i = 0; i < 4; ++i) {
        const int x = at[i] + rest % box[i];
        rest /= box[i];
        inside = inside && x >= 0 && x < size[i];
        global += x * (i == 0 ? int(sizeof(T)) : stride[i - 1]);
      }
      visit_byte(int(swizzle(mode, unsigned(offset))), inside ? global : -1);
    }
  }

  void probe(std::initializer_list<std::array<int, 4>> places) const {
    const std::vector<unsigned char> tensor = scrambled_bytes(std::size_t(total_bytes()), 5);
    const std::vector<unsigned char> image = scrambled_bytes(std::size_t(box_bytes()), 6);
    for (const std::array<int, 4>& place : places) {
      std::string where = name + "/at" + std::to_string(place[0]);
      for (int i = 1; i < rank; ++i) where += "," + std::to_string(place[std::size_t(i)]);
      const int at[4] = {place[0], place[1], place[2], place[3]};
      const BoxAt box_at{rank, {at[0], at[1], at[2], at[3]}, unsigned(box_bytes())};
      if (const std::string full = "tensor_load/" + where; is_wanted(full)) {
        std::vector<unsigned char> model(image.size());
        visit(at, [&](int shared, int global) {
          model[std::size_t(shared)] = global < 0 ? 0 : tensor[std::size_t(global)];
        });
        const Array<unsigned char> in(tensor), background(image), out(image.size());
        const Array<uint32_t> status(1);
        if (run<TensorShared>(full, tensor_load, 1, 32, map(reinterpret_cast<T*>(in.data())), box_at, box_at.bytes,
                              background.data(), out.data(), status.data())) {
          if (status.read()[0] != 1) std::printf("%s: TIMEOUT\n", full.c_str());
          print_hash(full, out.read(), model);
        }
      }
      // The chip stops with "illegal instruction" on a store to a negative coordinate.
      const bool negative = std::any_of(place.begin(), place.end(), [](int x) { return x < 0; });
      if (const std::string full = "tensor_store/" + where; !negative && is_wanted(full)) {
        std::vector<unsigned char> model = tensor;
        visit(at, [&](int shared, int global) {
          if (global >= 0) model[std::size_t(global)] = image[std::size_t(shared)];
        });
        const Array<unsigned char> out(tensor), in(image);
        if (run<TensorShared>(full, tensor_store, 1, 32, map(reinterpret_cast<T*>(out.data())), box_at, in.data()))
          print_hash(full, out.read(), model);
      }
    }
  }
};

inline void probe_tensors() {
  using ptx::Swizzle;
  // About 100 x 37 elements: boxes inside, over each edge, wholly outside on each side.
  const std::initializer_list<std::array<int, 4>> places = {{0, 0},   {16, 8},  {64, 30},  {-16, -3}, {96, 36},    {112, 0},
                                                            {0, 37},  {-64, 0}, {0, -16},  {-16, 35}, {1008, 1000}};
  TensorCase<bf16>{"bf16/none", 2, {104, 37, 1, 1}, {64, 16, 1, 1}, {224}, Swizzle::kNone}.probe(places);
  TensorCase<bf16>{"bf16/32B", 2, {104, 37, 1, 1}, {16, 16, 1, 1}, {224}, Swizzle::k32B}.probe(places);
  TensorCase<bf16>{"bf16/64B", 2, {104, 37, 1, 1}, {32, 16, 1, 1}, {224}, Swizzle::k64B}.probe(places);
  TensorCase<bf16>{"bf16/128B", 2, {104, 37, 1, 1}, {64, 16, 1, 1}, {224}, Swizzle::k128B}.probe(places);
  TensorCase<uint8_t>{"u8/128B", 2, {112, 37, 1, 1}, {128, 16, 1, 1}, {128}, Swizzle::k128B}.probe(places);
  TensorCase<float>{"f32/128B", 2, {100, 37, 1, 1}, {32, 16, 1, 1}, {416}, Swizzle::k128B}.probe(places);
  TensorCase<float>{"f32/none", 2, {100, 37, 1, 1}, {64, 16, 1, 1}, {416}, Swizzle::kNone}.probe(places);
  const std::initializer_list<std::array<int, 4>> volumes = {{0, 0, 0},  {8, 3, 1}, {-8, -1, -1},
                                                             {24, 7, 3}, {0, 0, 4}, {0, 0, -2}};
  TensorCase<bf16>{"bf16_3d/none", 3, {40, 9, 4, 1}, {16, 4, 2, 1}, {80, 80 * 11}, Swizzle::kNone}.probe(volumes);
  TensorCase<bf16>{"bf16_3d/128B", 3, {40, 9, 4, 1}, {64, 4, 2, 1}, {80, 80 * 11}, Swizzle::k128B}.probe(volumes);
  // 5 rows of 12 pieces of 128 bytes; of two rows, 4 pieces each at a time, so that dimension 3 steps less than dimension 2.
  TensorCase<uint8_t>{"u8_4d/128B", 4, {128, 4, 5, 3}, {128, 4, 2, 3}, {128, 12 * 128, 4 * 128}, Swizzle::k128B}.probe(
      {{0, 0, 0, 0}, {0, 0, 3, 0}, {0, 0, 4, 0}, {0, 0, -1, 1}, {0, 2, 1, 2}, {0, 0, 5, 0}});
}

/// Rows of a box that are shorter than the mode's: are they packed? Told, not compared: no kernel here uses it. Prints
/// for each 16-byte chunk of shared memory which chunk of the tensor it holds, as row.chunk.
inline void probe_short_rows() {
  const std::string name = "tensor_load/short_rows";
  if (!is_wanted(name)) return;
  std::vector<unsigned char> tensor(16 * 128);
  for (std::size_t i = 0; i < tensor.size(); ++i) tensor[i] = static_cast<unsigned char>(i / 16);
  const Array<unsigned char> in(tensor), background(std::vector<unsigned char>(2048, 0xff)), out(2048);
  const Array<uint32_t> status(1);
  const ptx::TensorMap map =
      ptx::make_tensor_map(reinterpret_cast<bf16*>(in.data()), {64, 16}, {128}, {32, 8}, ptx::Swizzle::k128B);
  const BoxAt box{2, {}, 512};
  if (!run<TensorShared>(name, tensor_load, 1, 32, map, box, 2048u, background.data(), out.data(), status.data()))
    return;
  std::printf("# %s: box of 8 rows of 64 bytes, 128B swizzle:", name.c_str());
  const std::vector<unsigned char> chunks = out.read();
  for (std::size_t i = 0; i < 2048; i += 16) {
    const unsigned chunk = chunks[i];
    if (chunk == 0xff) std::printf(" -");
    else std::printf(" %u.%u", chunk / 8, chunk % 8);
  }
  std::printf("\n");
}

inline void probe_copies() {
  probe_small_copy<16>();
  probe_small_copy<8>();
  probe_small_copy<4>();
  probe_copy_to_barrier<true>();
  probe_copy_to_barrier<false>();
  probe_bulk();
  probe_tensors();
  probe_short_rows();
}

}  // namespace dsa::probe
