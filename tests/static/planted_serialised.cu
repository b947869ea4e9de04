// setmaxnreg without the second argument of __launch_bounds__: ptxas ignores the instruction and says so in an
// "info" line, C7508. The guard's own test.
__global__ void __launch_bounds__(256) planted(float* out) {
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    out[threadIdx.x] = 1;
  }
}
