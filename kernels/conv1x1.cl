// 1x1 convolution at stride 1 of images smaller than a vector, which they fill evenly: a vector holds
// the places of several examples' images.
//   y[n,o,p]  = b[o] + sum over c of w[o,c] · x[n,c,p]
//   dx[n,c,p] = sum over o of w[o,c] · dy[n,o,p], the same with the weights transposed
//   dw[o,c]   = sum over n,p of dy[n,o,p] · x[n,c,p]

#ifndef PASS
#define PASS 0 // 0: forward and gradient of the input, 2: gradient of weights and bias
#endif
#ifndef TO
#define TO 4 // output channels in a work-item's tile
#endif
#ifndef TV
#define TV 2 // vectors in a tile (PASS 0)
#endif
#ifndef TERMS
#define TERMS 4 // input channels in a tile (PASS 2)
#endif
// Without defaults: CI, CO channels of a group's input and output; L places of an image.

#define PACK (VW / L) // examples in a vector

// L places of each of PACK examples, which begin at row + at[0], row + at[1], ...
#if L == 1
#define PART(i) row[at[i]]
#else
#define PART(i) JOIN(vload, L)(0, row + at[i])
#endif
inline floatv load_examples(__global const float *row, const int *at) {
#if PACK == 2
  return (floatv)(PART(0), PART(1));
#elif PACK == 4
  return (floatv)(PART(0), PART(1), PART(2), PART(3));
#elif PACK == 8
  return (floatv)(PART(0), PART(1), PART(2), PART(3), PART(4), PART(5), PART(6), PART(7));
#else
  return (floatv)(PART(0), PART(1), PART(2), PART(3), PART(4), PART(5), PART(6), PART(7), PART(8),
                  PART(9), PART(10), PART(11), PART(12), PART(13), PART(14), PART(15));
#endif
}

// Where the examples first, first + 1, ... begin, in tensors of so many elements an example; those
// from stop on are the last one again.
inline void find_examples(const int first, const int stop, const int elements, int *at) {
#pragma unroll
  for (int i = 0; i < PACK; i++)
    at[i] = min(first + i, stop - 1) * elements;
}

#if PASS == 0
#if TURNED
#define W_OUT 1 // from one output channel's weights to the next one's
#define W_IN CO // from one input channel's to the next one's
#else
#define W_OUT CI
#define W_IN 1
#endif

// Work-item (group and block of TO output channels; TV vectors of examples).
__kernel void conv1x1(IN(x), IN(w),
#if BIAS
                      IN(bias),
#endif
#if GATE
                      IN(gate),
#endif
                      OUT(y), const int count) {
  const int group = get_global_id(0) / BLOCKS(CO, TO);
  const int o0 = get_global_id(0) % BLOCKS(CO, TO) * TO; // in its group
  const int first = get_global_id(1) * (TV * PACK);
  if (group >= GROUPS || first >= count)
    return;
  OPEN_IN(x);
  OPEN_IN(w);
  OPEN_OUT(y);
  x += group * (CI * L);
  w += group * (CO * CI);
  int at[TV][PACK], w_of[TO];
  floatv acc[TO][TV];
#if BIAS
  OPEN_IN(bias);
#endif
#pragma unroll
  for (int v = 0; v < TV; v++)
    find_examples(first + v * PACK, count, GROUPS * CI * L, at[v]);
#pragma unroll
  for (int o = 0; o < TO; o++) {
    const int channel = min(o0 + o, CO - 1); // beyond the edge the last one again, not stored
    w_of[o] = channel * W_OUT;
#pragma unroll
    for (int v = 0; v < TV; v++)
#if BIAS
      acc[o][v] = (floatv)(bias[group * CO + channel]);
#else
      acc[o][v] = (floatv)0;
#endif
  }
  for (int c = 0; c < CI; c++) {
    floatv xv[TV];
#pragma unroll
    for (int v = 0; v < TV; v++)
      xv[v] = load_examples(x + c * L, at[v]);
#pragma unroll
    for (int o = 0; o < TO; o++) {
      const floatv wv = (floatv)(w[w_of[o] + c * W_IN]);
#pragma unroll
      for (int v = 0; v < TV; v++)
        acc[o][v] += wv * xv[v];
    }
  }
#if GATE
  OPEN_IN(gate);
#endif
#pragma unroll
  for (int v = 0; v < TV; v++) {
    find_examples(first + v * PACK, count, GROUPS * CO * L, at[v]);
#pragma unroll
    for (int o = 0; o < TO; o++) {
      const int channel = (group * CO + min(o0 + o, CO - 1)) * L;
      floatv value = acc[o][v];
#if RELU
      value = relu(value);
#endif
#if GATE
      value = relu_gate(load_examples(gate + channel, at[v]), value);
#endif
#if ACCUMULATE
      value += load_examples(y + channel, at[v]);
#endif
      float lane[VW];
      STOREV(value, lane);
      if (o0 + o < CO)
        for (int i = 0; i < PACK && first + v * PACK + i < count; i++)
          for (int p = 0; p < L; p++)
            y[channel + at[v][i] + p] = lane[i * L + p];
    }
  }
}
#endif

#if PASS == 2
// Work-item (block of TERMS input channels; group and block of TO output channels; split). Its
// result, weights and then bias, goes to partial + split · (size of weights and bias), or to the
// gradients themselves where there is one split.
__kernel void conv1x1_wgrad(IN(x), IN(dy), OUT(partial), const int width, const int out_width,
                            const int count) {
  const int c0 = get_global_id(0) * TERMS, split = get_global_id(2);
  const int group = get_global_id(1) / BLOCKS(CO, TO);
  const int o0 = get_global_id(1) % BLOCKS(CO, TO) * TO; // in its group
  if (c0 >= CI || group >= GROUPS)
    return;
  OPEN_IN(x);
  OPEN_IN(dy);
  OPEN_OUT(partial);
  partial += split * (GROUPS * CO * CI + BIAS * GROUPS * CO);
  int dy_row[TO], x_row[TERMS];
  floatv acc[TO][TERMS], sum[TO]; // sum: for the bias
#pragma unroll
  for (int c = 0; c < TERMS; c++)
    x_row[c] = (group * CI + min(c0 + c, CI - 1)) * L;
#pragma unroll
  for (int o = 0; o < TO; o++) {
    dy_row[o] = (group * CO + min(o0 + o, CO - 1)) * L;
    sum[o] = (floatv)0;
#pragma unroll
    for (int c = 0; c < TERMS; c++)
      acc[o][c] = (floatv)0;
  }
  const int stop = min((split + 1) * SPLIT, count);
  for (int first = split * SPLIT; first < stop; first += PACK) {
    const intv there = (intv)(LANES < (intv)((stop - first) * L));
    int at[PACK];
    floatv dyv[TO], xv[TERMS];
    find_examples(first, stop, GROUPS * CO * L, at);
#pragma unroll
    for (int o = 0; o < TO; o++) {
      dyv[o] = select((floatv)0, load_examples(dy + dy_row[o], at), there);
      sum[o] += dyv[o];
    }
    find_examples(first, stop, GROUPS * CI * L, at);
#pragma unroll
    for (int c = 0; c < TERMS; c++)
      xv[c] = load_examples(x + x_row[c], at);
#pragma unroll
    for (int c = 0; c < TERMS; c++)
#pragma unroll
      for (int o = 0; o < TO; o++)
        acc[o][c] += dyv[o] * xv[c];
  }
#pragma unroll
  for (int o = 0; o < TO; o++)
    if (o0 + o < CO) {
#pragma unroll
      for (int c = 0; c < TERMS; c++)
        if (c0 + c < CI)
          partial[(group * CO + o0 + o) * CI + c0 + c] = sum_lanes(acc[o][c]);
#if BIAS
      if (c0 == 0)
        partial[GROUPS * CO * CI + group * CO + o0 + o] = sum_lanes(sum[o]);
#endif
    }
}
#endif
