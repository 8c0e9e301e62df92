// Dropout, forward and backward alike: y = keep ? x·scale : 0.
// Element e of an example is kept if word e % 4 of philox(e / 4, number of the example in the data
// set, number of the operation, 0) is at least threshold = floor(p·2^32). So a mask depends on the
// epoch's key, the example and the operation alone. Input and output may be the same tensor.

#ifndef GATE
#define GATE 0 // 1: zero y where gate (shaped as y, a ReLU's output) is not positive (backward)
#endif
#ifndef ACCUMULATE
#define ACCUMULATE 0 // 1: add to y what it holds (backward)
#endif

__kernel void dropout(IN(x),
#if GATE
                      IN(gate),
#endif
                      OUT(y), __global const int *examples, __global const uint *key,
                      const uint operation, const uint threshold, const float scale, const int n,
                      const int count) {
  const int four = get_global_id(0), row = get_global_id(1);
  if (four * 4 >= n || row >= count)
    return;
  OPEN_IN(x);
#if GATE
  OPEN_IN(gate);
#endif
  OPEN_OUT(y);
  const uint4 random = philox4x32((uint4)((uint)four, (uint)examples[row], operation, 0u),
                                  (uint2)(key[0], key[1]));
  const uint word[4] = {random.x, random.y, random.z, random.w};
  for (int i = 0; i < min(4, n - four * 4); i++) {
    const int at = row * n + four * 4 + i;
    float value = word[i] >= threshold ? x[at] * scale : 0;
#if GATE
    value = gate[at] <= 0 ? 0 : value;
#endif
#if ACCUMULATE
    value += y[at];
#endif
    y[at] = value;
  }
}
