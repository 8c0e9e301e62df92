// The most that a device does: chains of multiply-adds in registers, and a plain copy.

#ifndef CHAINS
#define CHAINS 10 // independent sums of a work-item: enough to hide a multiply-add's latency
#endif

// rounds * CHAINS multiply-adds of VW floats for each work-item. Every sum converges to 1.
__kernel void multiply_adds(__global float *result, const int rounds) {
  floatv sums[CHAINS];
  for (int i = 0; i < CHAINS; ++i)
    sums[i] = (floatv)((float)(get_global_id(0) + i));
  const floatv factor = (floatv)(0.5f);
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int i = 0; i < CHAINS; ++i)
      sums[i] = sums[i] * factor + factor;
  }
  floatv total = (floatv)(0.0f);
  for (int i = 0; i < CHAINS; ++i)
    total += sums[i];
  result[get_global_id(0)] = sum_lanes(total);
}

// n vectors; one work-item copies every stride-th.
__kernel void copy_vectors(__global const float *from, __global float *to, const int n,
                           const int stride) {
  for (int i = get_global_id(0); i < n; i += stride)
    STOREV(LOADV(from + i * VW), to + i * VW);
}
