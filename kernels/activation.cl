// Element by element: ReLU, sum of two tensors, copies. n elements, VW for each work-item.
// Input and output may be the same tensor.

#ifndef RELU
#define RELU 0 // 1: max(·, 0) last (add)
#endif
#ifndef ACCUMULATE
#define ACCUMULATE 0 // 1: add to the output what it holds (relu_backward, copy)
#endif

__kernel void relu_forward(IN(x), OUT(y), const int n) {
  const int at = get_global_id(0) * VW;
  if (at >= n)
    return;
  OPEN_IN(x);
  OPEN_OUT(y);
  store_first(relu(LOADV(x + at)), y + at, n - at);
}

// dx = dy where the ReLU's output y is positive, else zero.
__kernel void relu_backward(IN(y), IN(dy), OUT(dx), const int n) {
  const int at = get_global_id(0) * VW;
  if (at >= n)
    return;
  OPEN_IN(y);
  OPEN_IN(dy);
  OPEN_OUT(dx);
  floatv value = relu_gate(LOADV(y + at), LOADV(dy + at));
#if ACCUMULATE
  value += LOADV(dx + at);
#endif
  store_first(value, dx + at, n - at);
}

// y = a + b
__kernel void add(IN(a), IN(b), OUT(y), const int n) {
  const int at = get_global_id(0) * VW;
  if (at >= n)
    return;
  OPEN_IN(a);
  OPEN_IN(b);
  OPEN_OUT(y);
  floatv value = LOADV(a + at) + LOADV(b + at);
#if RELU
  value = relu(value);
#endif
  store_first(value, y + at, n - at);
}

// y = x, or y += x
__kernel void copy(IN(x), OUT(y), const int n) {
  const int at = get_global_id(0) * VW;
  if (at >= n)
    return;
  OPEN_IN(x);
  OPEN_OUT(y);
  floatv value = LOADV(x + at);
#if ACCUMULATE
  value += LOADV(y + at);
#endif
  store_first(value, y + at, n - at);
}
