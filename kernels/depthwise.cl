// Depthwise convolution at stride 1 whose output is as large as its input: one channel in, one out.
//   y[n,c,i,j]  = b[c] + sum over u,v of w[c,u,v] · x[n, c, i - PT + u·DH, j - PL + v·DW]
//   dx          = the same, of dy with the kernel turned round and PT = DH·(KH - 1) - PT, so with PL
//   dw[c,u,v]   = sum over n,i,j of dy[n,c,i,j] · x[n, c, i - PT + u·DH, j - PL + v·DW]
// An image of a channel is seen as one row of H·W places, along which vectors go: what tap (u, v)
// meets lies at a constant distance, and what would lie beyond an edge is masked. Where images are
// smaller than a vector and fill it evenly, several channels share one. Masks and weights are made
// once for many examples. Sizes come as arguments once more, for the masks alone: a compiler that
// knows a mask tears loads apart.

#ifndef PASS
#define PASS 0 // 0: forward and gradient of the input, 2: gradient of weights and bias
#endif
#ifndef DH
#define DH 1 // dilation, rows
#endif
#ifndef DW
#define DW 1 // dilation, columns
#endif
// Without defaults: C channels, H W of the image, KH KW of the kernel, PT PL zeros above and at the
// left.

#define AREA (H * W)
#define TAPS (KH * KW)
#if AREA < VW && VW % AREA == 0
#define PACK (VW / AREA) // channels in a vector
#else
#define PACK 1
#endif

// Which lanes of the vector that begins at place first meet the image by the kernel's rows and by its
// columns; where what each tap meets begins, no farther away than a vector that meets nothing.
inline void find_taps(const int first, const int height, const int width, intv *rows,
                      intv *columns, int *at) {
  const intv place = ((intv)(first) + LANES) % (intv)(AREA);
  const intv i = place / (intv)(W), j = place % (intv)(W);
#pragma unroll
  for (int u = 0; u < KH; u++) {
    const intv row = i + (intv)(u * DH - PT);
    rows[u] = (intv)((row >= (intv)0) & (row < (intv)(height)));
  }
#pragma unroll
  for (int v = 0; v < KW; v++) {
    const intv column = j + (intv)(v * DW - PL);
    columns[v] = (intv)((column >= (intv)0) & (column < (intv)(width)));
  }
#pragma unroll
  for (int t = 0; t < TAPS; t++)
    at[t] = clamp(first + (t / KW * DH - PT) * W + t % KW * DW - PL, -VW, PACK * AREA);
}

#if PASS == 0
// Work-item (vector of an image; channel or channels that share one; split of the examples).
__kernel void depthwise(IN(x), IN(w),
#if BIAS
                        IN(bias),
#endif
#if GATE
                        IN(gate),
#endif
                        OUT(y), const int width, const int height, const int count) {
  const int first = get_global_id(0) * VW, c0 = get_global_id(1) * PACK;
  const int example0 = get_global_id(2) * SPLIT;
  if (first >= AREA || c0 >= C || example0 >= count)
    return;
  OPEN_IN(x);
  OPEN_IN(w);
  OPEN_OUT(y);
  intv rows[KH], columns[KW];
  int at[TAPS];
  find_taps(first, height, width, rows, columns, at);
  floatv wv[TAPS], b = (floatv)0;
#if BIAS
  OPEN_IN(bias);
#endif
#if PACK > 1
  float lane[VW];
#if BIAS
  for (int l = 0; l < VW; l++)
    lane[l] = bias[min(c0 + l / AREA, C - 1)];
  b = LOADV(lane);
#endif
#pragma unroll
  for (int t = 0; t < TAPS; t++) {
    for (int l = 0; l < VW; l++)
      lane[l] = w[min(c0 + l / AREA, C - 1) * TAPS + (TURNED ? TAPS - 1 - t : t)];
    wv[t] = LOADV(lane);
  }
#else
#if BIAS
  b = (floatv)(bias[c0]);
#endif
#pragma unroll
  for (int t = 0; t < TAPS; t++)
    wv[t] = (floatv)(w[c0 * TAPS + (TURNED ? TAPS - 1 - t : t)]);
#endif
#if GATE
  OPEN_IN(gate);
#endif
  const int left = min(PACK, C - c0) * AREA - first;
  for (int example = example0; example < min(example0 + SPLIT, count); example++) {
    const int plane = (example * C + c0) * AREA;
    floatv value = b;
#pragma unroll
    for (int t = 0; t < TAPS; t++)
      value += wv[t] * select((floatv)0, LOADV(x + plane + at[t]), rows[t / KW] & columns[t % KW]);
#if RELU
    value = relu(value);
#endif
#if GATE
    value = relu_gate(LOADV(gate + plane + first), value);
#endif
#if ACCUMULATE
    value += LOADV(y + plane + first);
#endif
    store_first(value, y + plane + first, left);
  }
}
#endif

#if PASS == 2
// Work-item (channel or channels that share a vector; split of the examples). Its result, weights and
// then bias, goes to partial + split · (size of weights and bias), or to the gradients themselves
// where there is one split.
__kernel void depthwise_wgrad(IN(x), IN(dy), OUT(partial), const int width, const int height,
                              const int count) {
  const int c0 = get_global_id(0) * PACK, split = get_global_id(2);
  if (c0 >= C || get_global_id(1) > 0)
    return;
  OPEN_IN(x);
  OPEN_IN(dy);
  OPEN_OUT(partial);
  partial += split * (C * TAPS + BIAS * C);
  floatv acc[TAPS + 1]; // the last one: of the bias
#pragma unroll
  for (int t = 0; t <= TAPS; t++)
    acc[t] = (floatv)0;
  for (int first = 0; first < AREA; first += VW) {
    intv rows[KH], columns[KW];
    int at[TAPS];
    find_taps(first, height, width, rows, columns, at);
    const intv there = (intv)(LANES < (intv)(PACK * width * height - first));
#pragma unroll
    for (int u = 0; u < KH; u++)
      rows[u] &= there; // what lies beyond the last place may be no number
    for (int example = split * SPLIT; example < min((split + 1) * SPLIT, count); example++) {
      const int plane = (example * C + c0) * AREA;
      const floatv dyv = select((floatv)0, LOADV(dy + plane + first), there);
#pragma unroll
      for (int t = 0; t < TAPS; t++)
        acc[t] += dyv * select((floatv)0, LOADV(x + plane + at[t]), rows[t / KW] & columns[t % KW]);
      acc[TAPS] += dyv;
    }
  }
#pragma unroll
  for (int t = 0; t < TAPS + BIAS; t++) {
    __global float *out = t < TAPS ? partial + c0 * TAPS + t : partial + C * TAPS + c0;
#if PACK > 1
    float lane[VW];
    STOREV(acc[t], lane);
    for (int c = 0; c < min(PACK, C - c0); c++) {
      float sum = 0;
      for (int l = 0; l < AREA; l++)
        sum += lane[c * AREA + l];
      out[t < TAPS ? c * TAPS : c] = sum;
    }
#else
    *out = sum_lanes(acc[t]);
#endif
  }
}
#endif
