// Convolution whose output is as large as its input, or half as large (stride 2), vectors along the
// image seen as one row of places: images narrower than a vector, or not a multiple of one, leave no
// lanes idle.
//   y[n,o,i,j]   = b[o] + sum over c,u,v of w[o,c,u,v] · x[n, c, i·S - PT + u·DH, j·S - PL + v·DW]
//   dx           = at stride 1: the same, of dy with the kernel turned round
//   dw[o,c,u,v]  = sum over n,i,j of dy[n,o,i,j] · x[n, c, i·S - PT + u·DH, j·S - PL + v·DW]
// At stride 1 what a tap meets lies at a constant distance; at stride 2 each half of a vector lies in
// one row of the output, and its taps in one row of the input. What would lie beyond an edge is
// masked; masks are made once for all channels. Sizes come as arguments once more, for the masks
// alone: a compiler that knows a mask tears loads apart.

#ifndef PASS
#define PASS 0 // 0: forward and gradient of the input, 2: gradient of weights and bias
#endif
#ifndef S
#define S 1 // stride of rows and columns: 1 or 2
#endif
#ifndef DH
#define DH 1 // dilation, rows
#endif
#ifndef DW
#define DW 1 // dilation, columns
#endif
#ifndef TO
#define TO 4 // output channels in a work-item's tile
#endif
#ifndef TV
#define TV 4 // vectors of an image in a tile (PASS 0)
#endif
#ifndef TC
#define TC 2 // input channels in a tile (PASS 2)
#endif
// Without defaults: CI, CO channels of a group's input and output; H W of the input, OH OW of the
// output, KH KW of the kernel, PT PL zeros above and at the left.

#define IN_AREA (H * W)
#define AREA (OH * OW)
#define TAPS (KH * KW)
#define VECTORS BLOCKS(AREA, VW) // of an image of the output

// Where the column that place p meets by tap (0, 0) lies, were there no edges.
#define MEETS(p) ((p) / OW * S * W + (p) % OW * S)

// What a vector of places meets by a tap, which is offset places away; lanes outside the image may
// hold anything. p: where the vector's first place meets the input, q: its middle one.
inline floatv load_tap(__global const float *plane, const int p, const int q, const int offset) {
#if S == 1
  return LOADV(plane + clamp(p + offset, -VW, IN_AREA));
#elif VW > 1
  return EVEN_LANES(LOADV(plane + clamp(p + offset, -VW, IN_AREA)),
                    LOADV(plane + clamp(q + offset, -VW, IN_AREA)));
#else
  return plane[clamp(p + offset, 0, IN_AREA - 1)];
#endif
}

#define OFFSET(u, v) (((u) * DH - PT) * W + (v) * DW - PL)

// Whether all places, or all of a vector from place first on, meet the input's columns by column v of
// the kernel, or its rows by row u: no mask is needed there.
#define COLUMN_IS_IN(v) ((v) * DW >= PL && (OW - 1) * S + (v) * DW - PL < W)
#define ROW_IS_IN(first, u)                                                                        \
  ((first) / OW * S + (u) * DH >= PT && ((first) + VW - 1) / OW * S + (u) * DH - PT < H)

// Which lanes of the vector of places from first on do so.
inline intv rows_in(const int first, const int u, const int height) {
  const intv row = ((intv)(first) + LANES) / (intv)(OW) * (intv)(S) + (intv)(u * DH - PT);
  return (intv)((row >= (intv)0) & (row < (intv)(height)));
}
inline intv columns_in(const int first, const int v, const int width) {
  if (COLUMN_IS_IN(v))
    return (intv)(-1);
  const intv column = ((intv)(first) + LANES) % (intv)(OW) * (intv)(S) + (intv)(v * DW - PL);
  return (intv)((column >= (intv)0) & (column < (intv)(width)));
}

#if PASS == 0
#define WHOLE (TV == VECTORS) // a tile is a whole image: where its vectors begin is known
#if TURNED
#define W_OUT TAPS       // from one output channel's weights to the next one's
#define W_IN (CO * TAPS) // from one input channel's to the next one's
#define W_TAP(t) (TAPS - 1 - (t))
#else
#define W_OUT (CI * TAPS)
#define W_IN TAPS
#define W_TAP(t) (t)
#endif

// Work-item (tile of the image; group and block of TO output channels; example).
__kernel void conv_flat(IN(x), IN(w),
#if BIAS
                        IN(bias),
#endif
#if GATE
                        IN(gate),
#endif
                        OUT(y), const int width, const int height, const int count) {
  const int vector0 = get_global_id(0) * TV, example = get_global_id(2);
  const int group = get_global_id(1) / BLOCKS(CO, TO);
  const int o0 = get_global_id(1) % BLOCKS(CO, TO) * TO; // in its group
  if (vector0 >= VECTORS || group >= GROUPS || example >= count)
    return;
  OPEN_IN(x);
  OPEN_IN(w);
  OPEN_OUT(y);
  x += (example * GROUPS + group) * (CI * IN_AREA);
  w += group * (CO * CI * TAPS);
  // Vectors and channels beyond the edge compute the last one again and are not stored.
  int p[TV], q[TV];
  intv rows[TV][KH], columns[TV][KW];
  __global const float *w_of[TO];
  floatv acc[TO][TV];
#if BIAS
  OPEN_IN(bias);
#endif
#pragma unroll
  for (int t = 0; t < TV; t++) {
    const int first = WHOLE ? t * VW : min(vector0 + t, VECTORS - 1) * VW;
    p[t] = MEETS(first);
    q[t] = MEETS(first + VW / 2);
#pragma unroll
    for (int u = 0; u < KH; u++)
      rows[t][u] =
          WHOLE && ROW_IS_IN(t * VW, u) ? (intv)(-1) : rows_in(first, u, height);
#pragma unroll
    for (int v = 0; v < KW; v++)
      columns[t][v] = columns_in(first, v, width);
  }
#pragma unroll
  for (int o = 0; o < TO; o++) {
    const int channel = min(o0 + o, CO - 1);
    w_of[o] = w + channel * W_OUT;
#pragma unroll
    for (int t = 0; t < TV; t++)
#if BIAS
      acc[o][t] = (floatv)(bias[group * CO + channel]);
#else
      acc[o][t] = (floatv)0;
#endif
  }
  for (int c = 0; c < CI; c++) {
    __global const float *plane = x + c * IN_AREA;
#pragma unroll
    for (int k = 0; k < TAPS; k++) {
      const int u = k / KW, v = k % KW;
      floatv xv[TV];
#pragma unroll
      for (int t = 0; t < TV; t++) {
        const floatv met = load_tap(plane, p[t], q[t], OFFSET(u, v));
        xv[t] = select((floatv)0, met, rows[t][u] & columns[t][v]);
      }
#pragma unroll
      for (int o = 0; o < TO; o++) {
        const floatv wv = (floatv)(w_of[o][c * W_IN + W_TAP(k)]);
#pragma unroll
        for (int t = 0; t < TV; t++)
          acc[o][t] += wv * xv[t];
      }
    }
  }
#if GATE
  OPEN_IN(gate);
#endif
#pragma unroll
  for (int o = 0; o < TO; o++)
#pragma unroll
    for (int t = 0; t < TV; t++) {
      const int first = (vector0 + t) * VW;
      if (o0 + o >= CO || first >= AREA)
        continue;
      const int place = ((example * GROUPS + group) * CO + o0 + o) * AREA + first;
      floatv value = acc[o][t];
#if RELU
      value = relu(value);
#endif
#if GATE
      value = relu_gate(LOADV(gate + place), value);
#endif
#if ACCUMULATE
      value += LOADV(y + place);
#endif
      store_first(value, y + place, AREA - first);
    }
}
#endif

#if PASS == 2
// Work-item (row u of the kernel, block of TC input channels; group and block of TO output channels;
// split). Split s sums examples [s·SPLIT, (s+1)·SPLIT); its result, weights and then bias, goes to
// partial + s · (size of weights and bias), or to the gradients themselves where there is one split.
__kernel void conv_flat_wgrad(IN(x), IN(dy), OUT(partial), const int width, const int height,
                              const int area, const int count) {
  const int u = get_global_id(0) % KH, c0 = get_global_id(0) / KH * TC;
  const int group = get_global_id(1) / BLOCKS(CO, TO), split = get_global_id(2);
  const int o0 = get_global_id(1) % BLOCKS(CO, TO) * TO; // in its group, as c0
  if (c0 >= CI || group >= GROUPS)
    return;
  OPEN_IN(x);
  OPEN_IN(dy);
  OPEN_OUT(partial);
  partial += split * (GROUPS * CO * CI * TAPS + BIAS * GROUPS * CO);
  floatv acc[TO][TC][KW];
  int dy_plane[TO], x_plane[TC];
  intv met[VECTORS][KW]; // the lanes that meet the input
#pragma unroll
  for (int t = 0; t < VECTORS; t++) {
    intv rows = (intv)(-1);
    if (!(ROW_IS_IN(t * VW, 0) && ROW_IS_IN(t * VW, KH - 1)))
      rows = rows_in(t * VW, u, height);
    if (t * VW + VW > AREA) // what lies beyond the last place may be no number
      rows &= (intv)(LANES < (intv)(area - t * VW));
#pragma unroll
    for (int v = 0; v < KW; v++)
      met[t][v] = rows & columns_in(t * VW, v, width);
  }
#pragma unroll
  for (int c = 0; c < TC; c++)
    x_plane[c] = (group * CI + min(c0 + c, CI - 1)) * IN_AREA;
#pragma unroll
  for (int o = 0; o < TO; o++) {
    dy_plane[o] = (group * CO + min(o0 + o, CO - 1)) * AREA;
#pragma unroll
    for (int c = 0; c < TC; c++)
#pragma unroll
      for (int v = 0; v < KW; v++)
        acc[o][c][v] = (floatv)0;
  }
  const int stop = min((split + 1) * SPLIT, count);
  for (int example = split * SPLIT; example < stop; example++) {
    __global const float *x_of = x + example * (GROUPS * CI * IN_AREA);
    __global const float *dy_of = dy + example * (GROUPS * CO * AREA);
#pragma unroll
    for (int t = 0; t < VECTORS; t++) {
      floatv dyv[TO];
#pragma unroll
      for (int o = 0; o < TO; o++) {
        dyv[o] = LOADV(dy_of + dy_plane[o] + t * VW);
        if (t * VW + VW > AREA)
          dyv[o] = select((floatv)0, dyv[o], (intv)(LANES < (intv)(area - t * VW)));
      }
#pragma unroll
      for (int c = 0; c < TC; c++)
#pragma unroll
        for (int v = 0; v < KW; v++) {
          const floatv xv =
              select((floatv)0,
                     load_tap(x_of + x_plane[c], MEETS(t * VW), MEETS(t * VW + VW / 2), OFFSET(u, v)),
                     met[t][v]);
#pragma unroll
          for (int o = 0; o < TO; o++)
            acc[o][c][v] += dyv[o] * xv;
        }
    }
  }
#pragma unroll
  for (int o = 0; o < TO; o++)
#pragma unroll
    for (int c = 0; c < TC; c++)
#pragma unroll
      for (int v = 0; v < KW; v++)
        if (o0 + o < CO && c0 + c < CI)
          partial[(((group * CO + o0 + o) * CI + c0 + c) * KH + u) * KW + v] =
              sum_lanes(acc[o][c][v]);
#if BIAS
  if (get_global_id(0) == 0)
    for (int o = group * CO + o0; o < group * CO + min(o0 + TO, CO); o++) {
      floatv sum = (floatv)0;
      for (int example = split * SPLIT; example < stop; example++) {
        __global const float *plane = dy + (example * GROUPS * CO + o) * AREA;
        floatv of_image = (floatv)0; // summed apart, which rounds less
        for (int i = 0; i < AREA; i += VW)
          of_image += select((floatv)0, LOADV(plane + i), (intv)(LANES < (intv)(AREA - i)));
        sum += of_image;
      }
      partial[GROUPS * CO * CI * TAPS + o] = sum_lanes(sum);
    }
#endif
}
#endif
