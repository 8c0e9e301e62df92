// Convolution along rows: of sequences [n, channel, place], and of images by 1x1 kernels at stride 1,
// where an image is one row of H·W places.
//   y[n,o,j]   = b[o] + sum over c,k of w[o,c,k] · x[n, c, j·S - P + k·D]
//   dx[n,c,i]  = sum over o,k of w[o,c,k] · dy[n, o, i + P - k·D], at stride 1: the same, of dy with
//                the kernel turned round and P = D·(K - 1) - P
//   dw[o,c,k]  = sum over n,j of dy[n,o,j] · x[n, c, j·S - P + k·D]
// Channels fall into GROUPS, which have nothing to do with each other. Vectors go along the row.
// Kernels may be longer than their input: places (taps) of the kernel are looped over, those that
// meet padding alone are left out, and only those that meet some of it are masked. The width comes
// as an argument once more, for the masks alone: a compiler that knows a mask tears loads apart.

#ifndef PASS
#define PASS 0 // 0: forward and gradient of the input, 2: gradient of weights and bias
#endif
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
#define TV 4 // vectors in a tile (PASS 0)
#endif
#ifndef TERMS
#define TERMS 4 // pairs (input channel, tap) in a tile (PASS 2)
#endif
// Without defaults: CI, CO channels of a group's input and output; L of the input, OL of the output,
// K taps.

#define LAST_VECTOR ((OL - 1) / VW * VW)

// Places first, first + S, ... of a row; zero outside [0, width).
inline floatv load_masked(__global const float *row, const int first, const int width) {
  return select((floatv)0, load_strided(row, first, S, L), in_row(first, S, width));
}

// The same where all of them lie in the row.
inline floatv load_inside(__global const float *row) {
#if S == 1
  return LOADV(row);
#elif S == 2 && VW > 1
  return EVEN_LANES(LOADV(row), LOADV(row + VW));
#else
  float lane[VW];
  for (int i = 0; i < VW; i++)
    lane[i] = row[i * S];
  return LOADV(lane);
#endif
}

#if PASS == 0
#if TURNED
#define W_OUT K        // from one output channel's weights to the next one's
#define W_IN (CO * K)  // from one input channel's to the next one's
#define W_TAP(k) (K - 1 - (k))
#else
#define W_OUT (CI * K)
#define W_IN K
#define W_TAP(k) (k)
#endif

// Input channels that share a tap's masks; their weights stay near from one tap to the next.
#define C_BLOCK 16

// Of input channel c and tap k.
#define ADD_PRODUCTS(c, k)                                                                         \
  _Pragma("unroll") for (int o = 0; o < TO; o++) {                                                 \
    const floatv wv = (floatv)(w_of[o][(c) * W_IN + W_TAP(k)]);                                    \
    _Pragma("unroll") for (int v = 0; v < TV; v++) acc[o][v] += wv * xv[v];                        \
  }

// Work-item (tile of the row; group and block of TO output channels; example).
__kernel void conv1d(IN(x), IN(w),
#if BIAS
                     IN(bias),
#endif
#if GATE
                     IN(gate),
#endif
                     OUT(y), const int width, const int count) {
  const int j0 = get_global_id(0) * (TV * VW), example = get_global_id(2);
  const int group = get_global_id(1) / BLOCKS(CO, TO);
  const int o0 = get_global_id(1) % BLOCKS(CO, TO) * TO; // in its group
  if (j0 >= OL || group >= GROUPS || example >= count)
    return;
  OPEN_IN(x);
  OPEN_IN(w);
  OPEN_OUT(y);
  x += (example * GROUPS + group) * (CI * L);
  w += group * (CO * CI * K);
  // Vectors and channels beyond the edge compute the last one again and are not stored.
  int at[TV];
  __global const float *w_of[TO];
  floatv acc[TO][TV];
#if BIAS
  OPEN_IN(bias);
#endif
#pragma unroll
  for (int v = 0; v < TV; v++)
    at[v] = min(j0 + v * VW, LAST_VECTOR) * S - P;
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
  // Tap k meets places [first, last] + k·D: taps [some, end) meet the input, [whole, broken) nothing
  // else.
  const int first = at[0], last = (min(j0 + TV * VW, OL) - 1) * S - P;
  const int some = clamp(ceil_div(-last, D), 0, K);
  const int end = clamp(floor_div(L - 1 - first, D) + 1, some, K);
  // (Beyond the row's end, a stride of more than 2 would take a plain load too far.)
  const int whole = S > 2 ? end : clamp(ceil_div(-first, D), some, end);
  const int broken = clamp(floor_div(L - 1 - last, D) + 1, whole, end);

  if (some == whole && broken == end)
    for (int c = 0; c < CI; c++)
      for (int k = some; k < end; k++) {
        floatv xv[TV];
#pragma unroll
        for (int v = 0; v < TV; v++)
          xv[v] = load_inside(x + c * L + at[v] + k * D);
        ADD_PRODUCTS(c, k);
      }
  else
    for (int c0 = 0; c0 < CI; c0 += C_BLOCK)
      for (int k = some; k < end; k++) {
        const bool all = k >= whole && k < broken;
        intv in[TV];
#pragma unroll
        for (int v = 0; v < TV; v++)
          in[v] = all ? (intv)(-1) : in_row(at[v] + k * D, S, width);
        for (int c = c0; c < min(c0 + C_BLOCK, CI); c++) {
          floatv xv[TV];
#pragma unroll
          for (int v = 0; v < TV; v++)
            xv[v] = select((floatv)0, load_strided(x + c * L, at[v] + k * D, S, L), in[v]);
          ADD_PRODUCTS(c, k);
        }
      }
#if GATE
  OPEN_IN(gate);
#endif
#pragma unroll
  for (int o = 0; o < TO; o++)
#pragma unroll
    for (int v = 0; v < TV; v++) {
      const int j = j0 + v * VW;
      if (o0 + o >= CO || j >= OL)
        continue;
      const int place = ((example * GROUPS + group) * CO + o0 + o) * OL + j;
      floatv value = acc[o][v];
#if RELU
      value = relu(value);
#endif
#if GATE
      value = relu_gate(LOADV(gate + place), value);
#endif
#if ACCUMULATE
      value += LOADV(y + place);
#endif
      store_first(value, y + place, OL - j);
    }
}
#endif

#if PASS == 2
// Work-item (tile of terms, each an input channel and a tap; group and block of TO output channels;
// split). Split s sums examples [s·SPLIT, (s+1)·SPLIT); its result, weights and then bias, goes to
// partial + s · (size of weights and bias), or to the gradients themselves where there is one split.
__kernel void conv1d_wgrad(IN(x), IN(dy), OUT(partial), const int width, const int out_width,
                           const int count) {
  const int q0 = get_global_id(0) * TERMS, split = get_global_id(2);
  const int group = get_global_id(1) / BLOCKS(CO, TO);
  const int o0 = get_global_id(1) % BLOCKS(CO, TO) * TO; // in its group
  if (q0 >= CI * K || group >= GROUPS)
    return;
  OPEN_IN(x);
  OPEN_IN(dy);
  OPEN_OUT(partial);
  partial += split * (GROUPS * CO * CI * K + BIAS * GROUPS * CO);
  int dy_row[TO], x_row[TERMS], at[TERMS]; // at: the place that output 0 meets
  floatv acc[TO][TERMS];
  int nearest = K, farthest = 0; // taps
#pragma unroll
  for (int q = 0; q < TERMS; q++) {
    const int term = min(q0 + q, CI * K - 1);
    x_row[q] = (group * CI + term / K) * L;
    at[q] = term % K * D - P;
    nearest = min(nearest, term % K);
    farthest = max(farthest, term % K);
  }
#pragma unroll
  for (int o = 0; o < TO; o++) {
    dy_row[o] = (group * CO + min(o0 + o, CO - 1)) * OL;
#pragma unroll
    for (int q = 0; q < TERMS; q++)
      acc[o][q] = (floatv)0;
  }
  // Outputs [some, end) meet the input by one of the taps or more, [whole, broken) by all of them.
  const int low = nearest * D - P, high = farthest * D - P;
  const int some = clamp(ceil_div(-high, S), 0, OL) / VW * VW;
  const int end = clamp(floor_div(L - 1 - low, S) + 1, some, OL);
  const int whole = min(BLOCKS(clamp(ceil_div(-low, S), some, end), VW) * VW, end);
  const int broken =
      whole + (clamp(floor_div(L - 1 - high, S) + 1, whole, end) - whole) / VW * VW;

  for (int example = split * SPLIT; example < min((split + 1) * SPLIT, count); example++) {
    __global const float *x_of = x + example * (GROUPS * CI * L);
    __global const float *dy_of = dy + example * (GROUPS * CO * OL);
    for (int j = some; j < end; j += VW) {
      floatv dyv[TO], xv[TERMS];
      if (j >= whole && j < broken) {
#pragma unroll
        for (int o = 0; o < TO; o++)
          dyv[o] = LOADV(dy_of + dy_row[o] + j);
#pragma unroll
        for (int q = 0; q < TERMS; q++)
          xv[q] = load_inside(x_of + x_row[q] + j * S + at[q]);
      } else {
        const intv there = (intv)(LANES < (intv)(out_width - j));
#pragma unroll
        for (int o = 0; o < TO; o++)
          dyv[o] = select((floatv)0, LOADV(dy_of + dy_row[o] + j), there);
#pragma unroll
        for (int q = 0; q < TERMS; q++)
          xv[q] = load_masked(x_of + x_row[q], j * S + at[q], width);
      }
#pragma unroll
      for (int q = 0; q < TERMS; q++)
#pragma unroll
        for (int o = 0; o < TO; o++)
          acc[o][q] += dyv[o] * xv[q];
    }
  }
#pragma unroll
  for (int o = 0; o < TO; o++)
#pragma unroll
    for (int q = 0; q < TERMS; q++)
      if (o0 + o < CO && q0 + q < CI * K)
        partial[(group * CO + o0 + o) * (CI * K) + q0 + q] = sum_lanes(acc[o][q]);
#if BIAS
  if (q0 == 0)
    for (int o = o0; o < min(o0 + TO, CO); o++) {
      floatv sum = (floatv)0;
      for (int example = split * SPLIT; example < min((split + 1) * SPLIT, count); example++) {
        __global const float *row = dy + ((example * GROUPS + group) * CO + o) * OL;
        floatv of_row = (floatv)0; // summed apart, which rounds less
        for (int j = 0; j < OL; j += VW)
          of_row += select((floatv)0, LOADV(row + j), (intv)(LANES < (intv)(out_width - j)));
        sum += of_row;
      }
      partial[GROUPS * CO * CI * K + group * CO + o] = sum_lanes(sum);
    }
#endif
}
#endif
