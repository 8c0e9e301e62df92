// Concat along the channels: in NCHW a part of each row (what one example has) is copied from or to.

#ifndef RELU
#define RELU 0 // 1: max(·, 0) last
#endif
#ifndef ACCUMULATE
#define ACCUMULATE 0 // 1: add to the target what it holds
#endif

// n elements of each row: rows of x have x_row elements and are read from x_begin on; so with y.
__kernel void copy_rows(IN(x), OUT(y), const int x_row, const int y_row, const int x_begin,
                        const int y_begin, const int n, const int count) {
  const int at = get_global_id(0) * VW, row = get_global_id(1);
  if (at >= n || row >= count)
    return;
  OPEN_IN(x);
  OPEN_OUT(y);
  __global float *target = y + row * y_row + y_begin + at;
  floatv value = LOADV(x + row * x_row + x_begin + at);
#if RELU
  value = relu(value);
#endif
#if ACCUMULATE
  value += LOADV(target);
#endif
  store_first(value, target, n - at);
}
