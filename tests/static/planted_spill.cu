// A kernel that must spill when it is compiled for 32 registers: the guard's own test.
__global__ void planted(const float* in, float* out) {
  float x[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) x[i] = in[i * 1024 + threadIdx.x];
#pragma unroll
  for (int round = 0; round < 3; ++round)
#pragma unroll
    for (int i = 0; i < 96; ++i) x[i] = x[i] * x[(i * 37 + 11) % 96] + x[(i * 53 + 7) % 96];
#pragma unroll
  for (int i = 0; i < 96; ++i) out[i * 1024 + threadIdx.x] = x[i];
}
