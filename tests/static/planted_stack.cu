// A kernel whose array has an index that only the run knows, so that it cannot lie in registers: the guard's own test.
__global__ void planted(const int* in, int* out) {
  int x[128];
  for (int i = 0; i < 128; ++i) x[i] = in[i * 32 + threadIdx.x];
  out[threadIdx.x] = x[in[threadIdx.x] & 127];
}
