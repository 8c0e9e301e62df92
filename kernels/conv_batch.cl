// Convolution along rows that are short, or meet much padding: vectors along the batch.
//   y[n,o,j]   = b[o] + sum over c,k of w[o,c,k] · x[n, c, j·S - P + k·D]
//   dx[n,c,i]  = at stride 1: the same, of dy with the kernel turned round and P = D·(K - 1) - P
// x comes as interleave.cl packs examples: packed[block of VW examples, channel, place, lane]. All
// lanes of a vector meet the same place, so that taps which meet padding are left out, not masked.

#ifndef S
#define S 1 // stride
#endif
#ifndef D
#define D 1 // dilation
#endif
#ifndef P
#define P 0 // zeros at the left; below 0: so many places of the input are left out
#endif
#ifndef TO
#define TO 4 // output channels in a work-item's tile
#endif
#ifndef TV
#define TV 2 // vectors of examples in a tile
#endif
// Without defaults: CI, CO channels of a group's input and output; L of the input, OL of the output,
// K taps.

#if TURNED
#define W_OUT K       // from one output channel's weights to the next one's
#define W_IN (CO * K) // from one input channel's to the next one's
#define W_TAP(k) (K - 1 - (k))
#else
#define W_OUT (CI * K)
#define W_IN K
#define W_TAP(k) (k)
#endif

// Work-item (place of the output; group and block of TO output channels; TV vectors of examples).
__kernel void conv_batch(IN(packed), IN(w),
#if BIAS
                         IN(bias),
#endif
#if GATE
                         IN(gate),
#endif
                         OUT(y), const int count) {
  const int j = get_global_id(0), example0 = get_global_id(2) * (TV * VW);
  const int group = get_global_id(1) / BLOCKS(CO, TO);
  const int o0 = get_global_id(1) % BLOCKS(CO, TO) * TO; // in its group
  if (j >= OL || group >= GROUPS || example0 >= count)
    return;
  OPEN_IN(packed);
  OPEN_IN(w);
  OPEN_OUT(y);
  w += group * (CO * CI * K);
  // Vectors and channels beyond the edge compute the last one again and are not stored.
  __global const float *x_of[TV], *w_of[TO];
  floatv acc[TO][TV];
#if BIAS
  OPEN_IN(bias);
#endif
#pragma unroll
  for (int v = 0; v < TV; v++) {
    const int block = min(example0 / VW + v, (count - 1) / VW);
    x_of[v] = packed + (block * GROUPS + group) * (CI * L * VW);
  }
#pragma unroll
  for (int o = 0; o < TO; o++) {
    const int channel = min(o0 + o, CO - 1);
    w_of[o] = w + channel * W_OUT;
#pragma unroll
    for (int v = 0; v < TV; v++)
#if BIAS
      acc[o][v] = (floatv)(bias[group * CO + channel]);
#else
      acc[o][v] = (floatv)0;
#endif
  }
  const int at = j * S - P; // where tap 0 meets the input
  const int some = clamp(ceil_div(-at, D), 0, K), end = clamp(floor_div(L - 1 - at, D) + 1, some, K);
  for (int c = 0; c < CI; c++)
    for (int k = some; k < end; k++) {
      floatv xv[TV];
#pragma unroll
      for (int v = 0; v < TV; v++)
        xv[v] = LOADV(x_of[v] + (c * L + at + k * D) * VW);
#pragma unroll
      for (int o = 0; o < TO; o++) {
        const floatv wv = (floatv)(w_of[o][c * W_IN + W_TAP(k)]);
#pragma unroll
        for (int v = 0; v < TV; v++)
          acc[o][v] += wv * xv[v];
      }
    }
#if GATE
  OPEN_IN(gate);
#endif
#pragma unroll
  for (int o = 0; o < TO; o++) {
    if (o0 + o >= CO)
      break;
#pragma unroll
    for (int v = 0; v < TV; v++) {
      float lanes[VW];
#if RELU
      acc[o][v] = relu(acc[o][v]);
#endif
      STOREV(acc[o][v], lanes);
      const int first = example0 + v * VW;
      for (int lane = 0; lane < min(VW, count - first); lane++) {
        const int place = (((first + lane) * GROUPS + group) * CO + o0 + o) * OL + j;
        float value = lanes[lane];
#if GATE
        value = gate[place] <= 0 ? 0 : value;
#endif
#if ACCUMULATE
        value += y[place];
#endif
        y[place] = value;
      }
    }
  }
}
