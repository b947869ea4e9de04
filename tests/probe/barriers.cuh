/// @file barriers.cuh
/// Phases of an mbarrier, and everything between two CTAs of a cluster.
#pragma once

#include "probe.hpp"

namespace dsa::probe {

// ---- Phases -------------------------------------------------------------------------------------------------------
struct PhaseShared {
  alignas(128) unsigned char data[128];
  ptx::mbarrier fresh, one, two, bytes_first, bytes_last, count, tested;
};
inline constexpr int kPhaseSteps = 11, kTestSteps = 6, kNotCompleteSteps = 3;

/// Each step stores 1 when the wait that must succeed does; then what test_wait says, which does not wait.
/// @param out  [kPhaseSteps + kTestSteps + kNotCompleteSteps]
static __global__ void mbarrier_phases(const unsigned char* in, uint32_t* out) {
  PhaseShared& s = shared_memory<PhaseShared>();
  if (threadIdx.x != 0) return;
  ptx::mbarrier_init(&s.fresh, 1);
  ptx::mbarrier_init(&s.one, 1);
  ptx::mbarrier_init(&s.two, 2);
  ptx::mbarrier_init(&s.bytes_first, 1);
  ptx::mbarrier_init(&s.bytes_last, 1);
  ptx::mbarrier_init(&s.count, 7);
  ptx::mbarrier_init(&s.tested, 2);
  ptx::fence_mbarrier_init();
  int step = 0;
  const auto note = [&](bool complete) { out[step++] = complete ? 1 : kTimeout; };

  note(ptx::mbarrier_try_wait_parity(&s.fresh, 1));      // 0: the phase before the first is complete

  ptx::mbarrier_arrive(&s.one);
  note(completes(&s.one, 0));                            // 1
  ptx::mbarrier_arrive(&s.one);
  note(completes(&s.one, 1));                            // 2: the arrivals were reset, the parity has turned
  ptx::mbarrier_arrive(&s.one);
  note(completes(&s.one, 0));                            // 3

  ptx::mbarrier_arrive(&s.two);
  ptx::mbarrier_arrive(&s.two);
  note(completes(&s.two, 0));                            // 4
  ptx::mbarrier_arrive(&s.two, 2);
  note(completes(&s.two, 1));                            // 5

  ptx::mbarrier_arrive(&s.count, 5);
  ptx::mbarrier_arrive(&s.count, 2);
  note(completes(&s.count, 0));                          // 6

  ptx::mbarrier_expect_tx(&s.bytes_first, 32);           // bytes expected, then two copies, then the arrival
  ptx::cp_async_bulk_load(s.data, in, 16, &s.bytes_first);
  ptx::cp_async_bulk_load(s.data + 16, in + 16, 16, &s.bytes_first);
  ptx::mbarrier_arrive(&s.bytes_first);
  note(completes(&s.bytes_first, 0));                    // 7
  note(s.data[0] == in[0] && s.data[31] == in[31]);      // 8

  ptx::cp_async_bulk_load(s.data + 32, in + 32, 16, &s.bytes_last);   // the copy may complete before it is expected
  ptx::mbarrier_arrive_expect_tx(&s.bytes_last, 16);
  note(completes(&s.bytes_last, 0));                     // 9
  ptx::mbarrier_arrive_expect_tx(&s.bytes_last, 0);      // no bytes: an arrival
  note(completes(&s.bytes_last, 1));                     // 10

  const auto test = [&](unsigned parity) { out[step++] = ptx::mbarrier_test_wait_parity(&s.tested, parity); };
  test(1);                                               // the phase before the first
  test(0);                                               // the first: no arrival yet
  ptx::mbarrier_arrive(&s.tested);
  test(0);                                               // one of two
  ptx::mbarrier_arrive(&s.tested);
  test(0);                                               // both
  test(1);                                               // the second phase, which has the parity of the one before the first
  ptx::mbarrier_arrive(&s.tested, 2);
  test(1);
#if !defined(DSA_EMULATOR)
  // Phases that do not complete: the emulator would wait for ever, so these are only told.
  out[step++] = completes(&s.fresh, 0);                  // 0
  ptx::mbarrier_arrive(&s.two);
  out[step++] = completes(&s.two, 0);                    // 1: one of two arrivals
  ptx::mbarrier_expect_tx(&s.one, 16);
  ptx::mbarrier_arrive(&s.one);
  out[step++] = completes(&s.one, 1);                    // 2: the arrival, but not the bytes
#endif
}

inline void probe_phases() {
  const std::string name = "mbarrier/phases";
  if (!is_wanted(name)) return;
  const Array<unsigned char> in(scrambled_bytes(128, 7));
  const Array<uint32_t> out(kPhaseSteps + kTestSteps + kNotCompleteSteps);
  if (!run<PhaseShared>(name, mbarrier_phases, 1, 32, in.data(), out.data())) return;
  const std::vector<uint32_t> steps = out.read();
  const auto tests = steps.begin() + kPhaseSteps, not_complete = tests + kTestSteps;
  print_words(name, std::vector<uint32_t>(steps.begin(), tests));
  print_words("mbarrier/test_wait", std::vector<uint32_t>(tests, not_complete));
  print_words("# " + name + "/not_complete", std::vector<uint32_t>(not_complete, steps.end()));
}

// ---- Named barriers, elect.sync -------------------------------------------------------------------------------------
struct ChainShared {
  uint32_t order[4];
};

/// Warp w waits for warp w - 1 by named barrier w: 64 threads, of which one warp arrives.
static __global__ void named_barriers(uint32_t* out) {
  ChainShared& s = shared_memory<ChainShared>();
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp > 0) ptx::barrier_sync(warp, 64);
  if (lane == 0) s.order[warp] = warp == 0 ? 1 : 3 * s.order[warp - 1] + 1;
  if (warp < 3) ptx::barrier_arrive(warp + 1, 64);
  const unsigned elected = __ballot_sync(0xffffffffu, ptx::elect_sync());
  const bool all = ptx::barrier_all(5, 128, threadIdx.x < 128), all_but_one = ptx::barrier_all(5, 128, threadIdx.x != 77);
  __syncthreads();
  if (lane == 0) {
    out[warp] = s.order[warp];
    out[4 + warp] = __popc(elected);
    out[8 + warp] = elected;
    out[12 + warp] = all;
    out[16 + warp] = all_but_one;
  }
}

inline void probe_named_barriers() {
  const std::string name = "barrier/named";
  if (!is_wanted(name)) return;
  const Array<uint32_t> out(20);
  if (!run<ChainShared>(name, named_barriers, 1, 128, out.data())) return;
  const std::vector<uint32_t> words = out.read();
  print_words(name, std::vector<uint32_t>(words.begin(), words.begin() + 4));
  print_words("elect_sync/lanes", std::vector<uint32_t>(words.begin() + 4, words.begin() + 8));
  print_words("# elect_sync/masks", std::vector<uint32_t>(words.begin() + 8, words.begin() + 12));
  print_words("barrier/all", std::vector<uint32_t>(words.begin() + 12, words.end()));
}

// ---- Two CTAs -------------------------------------------------------------------------------------------------------
struct ClusterShared {
  alignas(128) uint32_t source[256];
  alignas(128) uint32_t inbox[3][256];           ///< by plain stores, a bulk copy, st.async
  ptx::mbarrier stored;      ///< 64 arrivals: the peer's threads
  ptx::mbarrier copied;      ///< 1 arrival, 1024 bytes
  ptx::mbarrier sent;        ///< 1 arrival, 1024 bytes
  uint32_t value;
};
inline constexpr int kClusterWords = 16;

/// @param facts    [2][kClusterWords]
/// @param inboxes  [2][3][256]
static __global__ void __launch_bounds__(64, 1) cluster_exchange(uint32_t* facts, uint32_t* inboxes) {
  ClusterShared& s = shared_memory<ClusterShared>();
  const unsigned t = threadIdx.x, rank = ptx::cluster_ctarank(), peer = rank ^ 1;
  for (unsigned i = t; i < 256; i += 64) {
    s.source[i] = 0x10000 * (rank + 1) + i;
    for (int box = 0; box < 3; ++box) s.inbox[box][i] = 0;
  }
  if (t == 0) {
    s.value = 1000 + rank;
    ptx::mbarrier_init(&s.stored, 64);
    ptx::mbarrier_init(&s.copied, 1);
    ptx::mbarrier_init(&s.sent, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(&s.copied, 1024);
    ptx::mbarrier_arrive_expect_tx(&s.sent, 1024);
  }
  ptx::fence_proxy_async_shared();
  ptx::cluster_arrive();
  ptx::cluster_wait();

  uint32_t* fact = facts + rank * kClusterWords;
  if (t == 0) {
    fact[0] = rank;
    fact[1] = ptx::cluster_nctarank();
    fact[2] = *ptx::map_to_cluster(&s.value, peer);
    fact[3] = *ptx::map_to_cluster(&s.value, rank);
    fact[4] = ptx::map_to_cluster(&s.inbox[1][7], peer) - ptx::map_to_cluster(&s.inbox[0][0], peer);
    fact[5] = blockIdx.x;
  }

  for (unsigned i = t; i < 256; i += 64) *ptx::map_to_cluster(&s.inbox[0][i], peer) = 0x20000 * (rank + 1) + i;
  ptx::mbarrier_arrive_cluster(ptx::map_to_cluster(&s.stored, peer));
  if (t == 0)
    ptx::cp_async_bulk_to_cluster(ptx::map_to_cluster(&s.inbox[1][0], peer), s.source, 1024,
                                  ptx::map_to_cluster(&s.copied, peer));
  ptx::st_async_v4(ptx::map_to_cluster(&s.inbox[2][4 * t], peer), make_uint4(4 * t, rank, 7, 0x30000 + t),
                   ptx::map_to_cluster(&s.sent, peer));

  const bool stored = completes(&s.stored, 0), copied = completes(&s.copied, 0), sent = completes(&s.sent, 0);
  if (t == 0) {
    fact[6] = stored ? 1 : kTimeout;
    fact[7] = copied ? 1 : kTimeout;
    fact[8] = sent ? 1 : kTimeout;
  }
  for (int box = 0; box < 3; ++box)
    for (unsigned i = t; i < 256; i += 64) inboxes[(rank * 3 + box) * 256 + i] = s.inbox[box][i];
  ptx::cluster_arrive();                         // nobody leaves while its shared memory may still be written to
  ptx::cluster_wait();
}

inline void probe_cluster() {
  const std::string name = "cluster";
  if (!is_wanted(name)) return;
  const Array<uint32_t> facts(2 * kClusterWords), inboxes(2 * 3 * 256);
  if (!run<ClusterShared>(name, cluster_exchange, 2, 64, facts.data(), inboxes.data())) return;
  const std::vector<uint32_t> fact = facts.read(), inbox = inboxes.read();
  constexpr const char* kBoxes[] = {"stores", "bulk", "st_async"};
  for (unsigned rank = 0; rank < 2; ++rank) {
    const std::string who = name + "/rank" + std::to_string(rank);
    print_words(who,
                std::vector<uint32_t>(fact.begin() + rank * kClusterWords, fact.begin() + rank * kClusterWords + 9));
    for (unsigned box = 0; box < 3; ++box) {
      const auto begin = inbox.begin() + (rank * 3 + box) * 256;
      std::vector<uint32_t> model(256);
      const unsigned peer = rank ^ 1;
      for (unsigned i = 0; i < 256; ++i) {
        const uint32_t sent[] = {i / 4 * 4, peer, 7, 0x30000 + i / 4};
        model[i] = box == 0 ? 0x20000 * (peer + 1) + i : box == 1 ? 0x10000 * (peer + 1) + i : sent[i % 4];
      }
      print_hash(who + "/" + kBoxes[box], std::vector<uint32_t>(begin, begin + 256), model);
    }
  }
}

inline void probe_barriers() {
  probe_phases();
  probe_named_barriers();
  probe_cluster();
}

}  // namespace dsa::probe
