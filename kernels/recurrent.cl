// LSTM and GRU, a step for all rows of the batch in one launch. Rows of a sequence lie one after
// the other: step t of row n is row n·steps + t of x, y, gates and their gradients.
//
// The gates of a step are four blocks of hidden numbers: i, f, g, o, or r, z, n and the hidden part
// of n. They are kept from the forward for the backward pass, which writes their gradients in their
// place. The products with the inputs of all steps are one launch before the steps, the gradients
// of weights and inputs one launch each after them.
//
// Weights are packed for the forward pass once in a step of training, so that a work-item reads the
// weights of VW units one after the other: [block of VW units][input][gate][unit].

#ifndef GATES
#define GATES 4 // blocks of rows that the weights have: 4 LSTM, 3 GRU
#endif
#ifndef BIAS
#define BIAS 0 // 1: there are biases
#endif
#ifndef TM
#define TM 4 // rows in a work-item's tile
#endif
#ifndef TN
#define TN 4 // vectors of columns in a tile, where it is not a vector of each gate
#endif
#ifndef GATE
#define GATE 0 // 1: zero dx where x (a ReLU's output) is not positive
#endif
#ifndef ACCUMULATE
#define ACCUMULATE 0 // 1: add to dx what it holds
#endif
#ifndef SHIFT
#define SHIFT 0 // 1: the weight gradient is that of the hidden state, which is a step older
#endif

#define SUM_ROWS 512 // rows whose gradients are summed up by themselves: longer sums round more

// Numbers in a row of gates: with some more than the four blocks, rows whose size is a power of two
// do not all fall into the same places of the cache.
inline int width(const int hidden) { return 4 * hidden + 16; }

inline floatv sigmoid(const floatv x) { return (floatv)1 / ((floatv)1 + exp(-x)); }

// See the top of the file. Units beyond the last one are zeros.
__kernel void pack(IN(w), OUT(packed), const int hidden, const int inputs) {
  const int k = get_global_id(0), block = get_global_id(1);
  if (k >= inputs || block * VW >= hidden)
    return;
  OPEN_IN(w);
  OPEN_OUT(packed);
  packed += (block * inputs + k) * GATES * VW;
  for (int g = 0; g < GATES; g++)
    for (int lane = 0; lane < VW; lane++) {
      const int unit = block * VW + lane;
      packed[g * VW + lane] = unit < hidden ? w[(g * hidden + unit) * inputs + k] : 0;
    }
}

// acc[i][g] += the row a[i] times packed weights
inline void multiply_packed(floatv acc[TM][GATES], __global const float *const a[TM],
                            __global const float *packed, const int inputs) {
  for (int k = 0; k < inputs; k++) {
    floatv w[GATES];
#pragma unroll
    for (int g = 0; g < GATES; g++)
      w[g] = LOADV(packed + (k * GATES + g) * VW);
#pragma unroll
    for (int i = 0; i < TM; i++) {
      const floatv av = (floatv)(a[i][k]);
#pragma unroll
      for (int g = 0; g < GATES; g++)
        acc[i][g] += av * w[g];
    }
  }
}

// gates = x·Wᵀ + b, for the blocks that the weights have
__kernel void project(IN(x), IN(packed),
#if BIAS
                      IN(bias),
#endif
                      OUT(gates), const int rows, const int hidden, const int inputs) {
  const int row0 = get_global_id(0) * TM, unit = get_global_id(1) * VW;
  if (row0 >= rows || unit >= hidden)
    return;
  OPEN_IN(x);
  OPEN_IN(packed);
  OPEN_OUT(gates);
  __global const float *a[TM];
  floatv acc[TM][GATES];
#pragma unroll
  for (int i = 0; i < TM; i++) {
    a[i] = x + min(row0 + i, rows - 1) * inputs;
#pragma unroll
    for (int g = 0; g < GATES; g++)
      acc[i][g] = (floatv)0;
  }
  multiply_packed(acc, a, packed + unit * inputs * GATES, inputs);
#if BIAS
  OPEN_IN(bias);
#endif
#pragma unroll
  for (int i = 0; i < TM; i++) {
    if (row0 + i >= rows)
      break;
#pragma unroll
    for (int g = 0; g < GATES; g++) {
#if BIAS
      acc[i][g] += LOADV(bias + g * hidden + unit);
#endif
      store_first(acc[i][g], gates + (row0 + i) * width(hidden) + g * hidden + unit, hidden - unit);
    }
  }
}

// A step: gates += U·h + d and their functions; the state; y = h.
__kernel void step_forward(IN(packed),
#if BIAS
                           IN(bias),
#endif
#if GATES == 4
                           OUT(cells),
#endif
                           OUT(gates), OUT(y), const int t, const int steps, const int hidden,
                           const int count) {
  const int row0 = get_global_id(0) * TM, unit = get_global_id(1) * VW;
  if (row0 >= count || unit >= hidden)
    return;
  OPEN_IN(packed);
  OPEN_OUT(gates);
  OPEN_OUT(y);
  __global const float *a[TM];
  floatv acc[TM][GATES];
#pragma unroll
  for (int i = 0; i < TM; i++) {
    a[i] = y + (min(row0 + i, count - 1) * steps + max(t - 1, 0)) * hidden;
#pragma unroll
    for (int g = 0; g < GATES; g++)
      acc[i][g] = (floatv)0;
  }
  if (t > 0)
    multiply_packed(acc, a, packed + unit * hidden * GATES, hidden);
  const int left = hidden - unit;
#if BIAS
  OPEN_IN(bias);
#endif
#pragma unroll
  for (int i = 0; i < TM; i++) {
    if (row0 + i >= count)
      break;
    const int row = (row0 + i) * steps + t;
    __global float *z = gates + row * width(hidden) + unit;
    __global float *h = y + row * hidden + unit;
#if BIAS
#pragma unroll
    for (int g = 0; g < GATES; g++)
      acc[i][g] += LOADV(bias + g * hidden + unit);
#endif
#if GATES == 4
    OPEN_OUT(cells);
    __global float *c = cells + row * hidden + unit;
    const floatv input = sigmoid(LOADV(z) + acc[i][0]);
    const floatv forget = sigmoid(LOADV(z + hidden) + acc[i][1]);
    const floatv new = tanh(LOADV(z + 2 * hidden) + acc[i][2]);
    const floatv output = sigmoid(LOADV(z + 3 * hidden) + acc[i][3]);
    floatv cell = input * new;
    if (t > 0)
      cell += forget * LOADV(c - hidden);
    store_first(input, z, left);
    store_first(forget, z + hidden, left);
    store_first(new, z + 2 * hidden, left);
    store_first(output, z + 3 * hidden, left);
    store_first(cell, c, left);
    store_first(output * tanh(cell), h, left);
#else
    const floatv reset = sigmoid(LOADV(z) + acc[i][0]);
    const floatv keep = sigmoid(LOADV(z + hidden) + acc[i][1]);
    const floatv new = tanh(LOADV(z + 2 * hidden) + reset * acc[i][2]);
    floatv before = (floatv)0;
    if (t > 0)
      before = LOADV(h - hidden);
    store_first(reset, z, left);
    store_first(keep, z + hidden, left);
    store_first(new, z + 2 * hidden, left);
    store_first(acc[i][2], z + 3 * hidden, left);
    store_first(new + keep * (before - new), h, left);
#endif
  }
}

// acc[i][j] += the row a[i] times the columns at w; rows of w have n numbers
inline void multiply_rows(floatv acc[TM][TN], __global const float *const a[TM],
                          __global const float *w, const int column[TN], const int n,
                          const int first, const int stop, const int skipped) {
  for (int k = first; k < stop; k++) {
    floatv wv[TN];
#pragma unroll
    for (int j = 0; j < TN; j++)
      wv[j] = LOADV(w + k * n + column[j]);
#pragma unroll
    for (int i = 0; i < TM; i++) {
      const floatv av = (floatv)(a[i][k + skipped]);
#pragma unroll
      for (int j = 0; j < TN; j++)
        acc[i][j] += av * wv[j];
    }
  }
}

// A step: gradients of its gates from dy and the gates' gradients of the step after. carry: what
// passes to the step before beside the hidden state's products, dc of the LSTM or z·dh of the GRU.
__kernel void step_backward(IN(w), IN(dy),
#if GATES == 4
                            IN(cells),
#else
                            IN(y),
#endif
                            OUT(gates), OUT(carry), const int t, const int steps, const int hidden,
                            const int count) {
  const int row0 = get_global_id(0) * TM, unit0 = get_global_id(1) * (TN * VW);
  if (row0 >= count || unit0 >= hidden)
    return;
  OPEN_IN(w);
  OPEN_IN(dy);
  OPEN_OUT(gates);
  OPEN_OUT(carry);
  const bool last = t == steps - 1;
  __global const float *a[TM];
  int column[TN];
  floatv acc[TM][TN];
#pragma unroll
  for (int j = 0; j < TN; j++)
    column[j] = min(unit0 + j * VW, hidden - 1);
#pragma unroll
  for (int i = 0; i < TM; i++) {
    a[i] = gates + (min(row0 + i, count - 1) * steps + min(t + 1, steps - 1)) * width(hidden);
#pragma unroll
    for (int j = 0; j < TN; j++)
      acc[i][j] = (floatv)0;
  }
  if (!last) {
#if GATES == 4
    multiply_rows(acc, a, w, column, hidden, 0, 4 * hidden, 0);
#else
    multiply_rows(acc, a, w, column, hidden, 0, 2 * hidden, 0);
    multiply_rows(acc, a, w, column, hidden, 2 * hidden, 3 * hidden, hidden);
#endif
  }
#pragma unroll
  for (int i = 0; i < TM; i++) {
    if (row0 + i >= count)
      break;
    const int row = (row0 + i) * steps + t;
#pragma unroll
    for (int j = 0; j < TN; j++) {
      const int unit = column[j], left = hidden - (unit0 + j * VW);
      if (left <= 0)
        break;
      __global float *z = gates + row * width(hidden) + unit;
      __global float *kept = carry + (row0 + i) * hidden + unit;
      floatv dh = acc[i][j] + LOADV(dy + row * hidden + unit);
#if GATES == 4
      OPEN_IN(cells);
      __global const float *c = cells + row * hidden + unit;
      const floatv input = LOADV(z), forget = LOADV(z + hidden);
      const floatv new = LOADV(z + 2 * hidden), output = LOADV(z + 3 * hidden);
      const floatv tanh_c = tanh(LOADV(c));
      floatv dc = dh * output * ((floatv)1 - tanh_c * tanh_c);
      if (!last)
        dc += LOADV(kept);
      floatv before = (floatv)0;
      if (t > 0)
        before = LOADV(c - hidden);
      store_first(dc * new * input * ((floatv)1 - input), z, left);
      store_first(dc * before * forget * ((floatv)1 - forget), z + hidden, left);
      store_first(dc * input * ((floatv)1 - new * new), z + 2 * hidden, left);
      store_first(dh * tanh_c * output * ((floatv)1 - output), z + 3 * hidden, left);
      store_first(dc * forget, kept, left);
#else
      OPEN_IN(y);
      if (!last)
        dh += LOADV(kept);
      floatv before = (floatv)0;
      if (t > 0)
        before = LOADV(y + (row - 1) * hidden + unit);
      const floatv reset = LOADV(z), keep = LOADV(z + hidden), new = LOADV(z + 2 * hidden);
      const floatv dnew = dh * ((floatv)1 - keep) * ((floatv)1 - new * new);
      const floatv dreset = dnew * LOADV(z + 3 * hidden) * reset * ((floatv)1 - reset);
      store_first(dreset, z, left);
      store_first(dh * (before - new) * keep * ((floatv)1 - keep), z + hidden, left);
      store_first(dnew, z + 2 * hidden, left);
      store_first(dnew * reset, z + 3 * hidden, left);
      store_first(dh * keep, kept, left);
#endif
    }
  }
}

// dx = dgates·W, of the blocks that the weights have
__kernel void input_grad(IN(gates), IN(w),
#if GATE
                         IN(x),
#endif
                         OUT(dx), const int rows, const int hidden, const int inputs) {
  const int row0 = get_global_id(0) * TM, column0 = get_global_id(1) * (TN * VW);
  if (row0 >= rows || column0 >= inputs)
    return;
  OPEN_IN(gates);
  OPEN_IN(w);
  OPEN_OUT(dx);
  __global const float *a[TM];
  int column[TN];
  floatv acc[TM][TN];
#pragma unroll
  for (int j = 0; j < TN; j++)
    column[j] = min(column0 + j * VW, inputs - 1);
#pragma unroll
  for (int i = 0; i < TM; i++) {
    a[i] = gates + min(row0 + i, rows - 1) * width(hidden);
#pragma unroll
    for (int j = 0; j < TN; j++)
      acc[i][j] = (floatv)0;
  }
  multiply_rows(acc, a, w, column, inputs, 0, GATES * hidden, 0);
#if GATE
  OPEN_IN(x);
#endif
#pragma unroll
  for (int i = 0; i < TM; i++) {
    if (row0 + i >= rows)
      break;
#pragma unroll
    for (int j = 0; j < TN; j++) {
      const int left = inputs - (column0 + j * VW), at = (row0 + i) * inputs + column[j];
      floatv value = acc[i][j];
#if GATE
      value = relu_gate(LOADV(x + at), value);
#endif
#if ACCUMULATE
      value += LOADV(dx + at);
#endif
      if (left > 0)
        store_first(value, dx + at, left);
    }
  }
}

// partial[split] = dgatesᵀ·x over the steps of a split's rows of the batch; with SHIFT dgatesᵀ·h of
// the step before, where the first step has no part. Of the GRU's four blocks x meets the first
// three, h all but the third.
__kernel void weight_grad(IN(gates), IN(x), OUT(partial), const int steps, const int hidden,
                          const int inputs, const int count, const int split_rows) {
  const int column0 = get_global_id(0) * (TN * VW), m0 = get_global_id(1) * TM;
  const int split = get_global_id(2);
  if (m0 >= GATES * hidden || column0 >= inputs)
    return;
  OPEN_IN(gates);
  OPEN_IN(x);
  OPEN_OUT(partial);
  int a_at[TM], column[TN];
  floatv acc[TM][TN];
#pragma unroll
  for (int j = 0; j < TN; j++)
    column[j] = min(column0 + j * VW, inputs - 1);
#pragma unroll
  for (int i = 0; i < TM; i++) {
    const int m = min(m0 + i, GATES * hidden - 1);
    a_at[i] = m + (GATES == 3 && SHIFT && m >= 2 * hidden ? hidden : 0);
#pragma unroll
    for (int j = 0; j < TN; j++)
      acc[i][j] = (floatv)0;
  }
  for (int n = split * split_rows; n < min((split + 1) * split_rows, count); n++)
    for (int t = SHIFT; t < steps; t++) {
      __global const float *a = gates + (n * steps + t) * width(hidden);
      __global const float *b = x + (n * steps + t - SHIFT) * inputs;
      floatv bv[TN];
#pragma unroll
      for (int j = 0; j < TN; j++)
        bv[j] = LOADV(b + column[j]);
#pragma unroll
      for (int i = 0; i < TM; i++) {
        const floatv av = (floatv)(a[a_at[i]]);
#pragma unroll
        for (int j = 0; j < TN; j++)
          acc[i][j] += av * bv[j];
      }
    }
  partial += split * GATES * hidden * inputs;
#pragma unroll
  for (int i = 0; i < TM; i++) {
    if (m0 + i >= GATES * hidden)
      break;
#pragma unroll
    for (int j = 0; j < TN; j++) {
      const int left = inputs - (column0 + j * VW);
      if (left > 0)
        store_first(acc[i][j], partial + (m0 + i) * inputs + column[j], left);
    }
  }
}

// partial[split] = sums of dgates over the rows of a split: of bias_ih, then of bias_hh.
__kernel void bias_grad(IN(gates), OUT(partial), const int rows, const int hidden,
                        const int split_rows) {
  const int unit = get_global_id(0) * VW, g = get_global_id(1), split = get_global_id(2);
  if (unit >= hidden || g >= 4)
    return;
  OPEN_IN(gates);
  OPEN_OUT(partial);
  const int stop = min((split + 1) * split_rows, rows), left = hidden - unit;
  floatv total = (floatv)0;
  for (int begin = split * split_rows; begin < stop; begin += SUM_ROWS) {
    floatv sum = (floatv)0;
    for (int row = begin; row < min(begin + SUM_ROWS, stop); row++)
      sum += LOADV(gates + row * width(hidden) + g * hidden + unit);
    total += sum;
  }
  partial += split * 2 * GATES * hidden + unit;
  if (g < GATES)
    store_first(total, partial + g * hidden, left);
#if GATES == 3
  if (g != 2)
    store_first(total, partial + (GATES + min(g, 2)) * hidden, left);
#else
  store_first(total, partial + (GATES + g) * hidden, left);
#endif
}
