// Convolution in NCHW (cross-correlation, as PyTorch's), directly on registers: no im2col.
//   y[n,o,i,j]   = b[o] + sum over c,u,v of w[o,c,u,v] · x[n, c, i·SH - PT + u·DH, j·SW - PL + v·DW]
//   dx           = its transpose in x
//   dw[o,c,u,v]  = sum over n,i,j of dy[n,o,i,j] · x[n, c, i·SH - PT + u·DH, j·SW - PL + v·DW]
// Channels fall into GROUPS, which have nothing to do with each other: o sees the c of its group.
// A tile lies in one group; w has the channels of a group alone, [O, C / GROUPS, KH, KW].
// Vectors go along the width. A row that lies in the padding is read from a row of zeros, and
// columns that lie in the padding are masked, so that the inner loops have no branches. Widths come
// as arguments once more, for the masks alone: a compiler that knows a mask tears loads apart.
// One pass is built at a time, by PASS; shapes are constants.

#ifndef PASS
#define PASS 0 // 0: forward, 1: gradient of the input, 2: gradient of weights and bias
#endif
#ifndef SH
#define SH 1 // stride, rows
#endif
#ifndef SW
#define SW 1 // stride, columns
#endif
#ifndef DH
#define DH 1 // dilation, rows
#endif
#ifndef DW
#define DW 1 // dilation, columns
#endif
#ifndef PT
#define PT 0 // rows of padding at the top
#endif
#ifndef PL
#define PL 0 // columns of padding at the left
#endif
#ifndef TC
#define TC 4 // channels in a work-item's tile: of the output (forward), of the input (gradients)
#endif
#ifndef TR
#define TR 2 // rows in a tile (forward, gradient of the input)
#endif
#ifndef TO
#define TO 4 // output channels in a tile (gradient of the weights)
#endif
#ifndef TV
#define TV KW // taps of a kernel's row in a tile (gradient of the weights)
#endif
// Without defaults: CG, OG channels of a group's input and output; H W of the input, OH OW of the
// output, KH KW of the kernel.

#define C (GROUPS * CG)
#define O (GROUPS * OG)
#define TAPS (KH * KW)
#define ZERO_MARGIN 64 // zeros before column 0 of the row of zeros

// Columns first, first + SW, ... of a row of the input; zero outside [0, width).
inline floatv load_columns(__global const float *row, const int first, const int width) {
  return select((floatv)0, load_strided(row, first, SW, W), in_row(first, SW, width));
}

#if PASS == 0
__kernel void conv_forward(IN(x), IN(w),
#if BIAS
                           IN(bias),
#endif
                           OUT(y), __global const float *zeros, const int width, const int count) {
  const int tile_columns = (OW + VW - 1) / VW, tile_rows = (OH + TR - 1) / TR;
  const int tile = get_global_id(0), image = get_global_id(2);
  const int group = get_global_id(1) / BLOCKS(OG, TC);
  const int o0 = get_global_id(1) % BLOCKS(OG, TC) * TC; // in its group
  if (tile >= tile_columns * tile_rows || group >= GROUPS || image >= count)
    return;
  OPEN_IN(x);
  OPEN_IN(w);
  OPEN_OUT(y);
  const int row0 = tile / tile_columns * TR, column0 = tile % tile_columns * VW;
  floatv acc[TC][TR];
  __global const float *w_of[TC];
#if BIAS
  OPEN_IN(bias);
#endif
#pragma unroll
  for (int o = 0; o < TC; o++) {
    const int channel = group * OG + min(o0 + o, OG - 1);
    w_of[o] = w + channel * (CG * TAPS);
#pragma unroll
    for (int r = 0; r < TR; r++)
#if BIAS
      acc[o][r] = (floatv)(bias[channel]);
#else
      acc[o][r] = (floatv)0;
#endif
  }
  for (int c = 0; c < CG; c++)
    for (int u = 0; u < KH; u++) {
      __global const float *row[TR];
#pragma unroll
      for (int r = 0; r < TR; r++) {
        const int i = (row0 + r) * SH - PT + u * DH;
        const int plane = image * C + group * CG + c;
        row[r] = (i >= 0 && i < H) ? x + (plane * H + i) * W : zeros + ZERO_MARGIN;
      }
      const int tap = (c * KH + u) * KW;
#if KW <= 8 // a longer row of taps stays a loop
#pragma unroll
#endif
      for (int v = 0; v < KW; v++) {
        floatv xv[TR];
#pragma unroll
        for (int r = 0; r < TR; r++)
          xv[r] = load_columns(row[r], column0 * SW - PL + v * DW, width);
#pragma unroll
        for (int o = 0; o < TC; o++) {
          const floatv wv = (floatv)(w_of[o][tap + v]);
#pragma unroll
          for (int r = 0; r < TR; r++)
            acc[o][r] += wv * xv[r];
        }
      }
    }
#pragma unroll
  for (int o = 0; o < TC; o++)
#pragma unroll
    for (int r = 0; r < TR; r++)
      if (o0 + o < OG && row0 + r < OH) {
#if RELU
        const floatv value = relu(acc[o][r]);
#else
        const floatv value = acc[o][r];
#endif
        const int plane = image * O + group * OG + o0 + o;
        store_first(value, y + (plane * OH + row0 + r) * OW + column0, OW - column0);
      }
}
#endif

#if PASS == 1
// Columns of dy that column first, first + 1, ... of the (padded) input met; zero if there is none.
inline floatv load_met(__global const float *row, const int first, const int width) {
  const intv at = (intv)(first) + LANES;
  const intv met =
      (intv)((at >= (intv)0) & (at < (intv)(width * SW)) & (at % (intv)(SW) == (intv)0));
  return select((floatv)0, load_spread(row, first, SW, OW), met);
}

__kernel void conv_dgrad(IN(dy), IN(w),
#if GATE
                         IN(x),
#endif
                         OUT(dx), __global const float *zeros, const int width, const int count) {
  const int tile_columns = (W + VW - 1) / VW, tile_rows = (H + TR - 1) / TR;
  const int tile = get_global_id(0), image = get_global_id(2);
  const int group = get_global_id(1) / BLOCKS(CG, TC);
  const int c0 = get_global_id(1) % BLOCKS(CG, TC) * TC; // in its group
  if (tile >= tile_columns * tile_rows || group >= GROUPS || image >= count)
    return;
  OPEN_IN(dy);
  OPEN_IN(w);
  OPEN_OUT(dx);
  const int row0 = tile / tile_columns * TR, column0 = tile % tile_columns * VW;
  floatv acc[TC][TR];
  int w_at[TC];
#pragma unroll
  for (int c = 0; c < TC; c++) {
    w_at[c] = min(c0 + c, CG - 1) * TAPS;
#pragma unroll
    for (int r = 0; r < TR; r++)
      acc[c][r] = (floatv)0;
  }
  for (int o = group * OG; o < (group + 1) * OG; o++)
    for (int u = 0; u < KH; u++) {
      __global const float *row[TR];
#pragma unroll
      for (int r = 0; r < TR; r++) {
        const int at = row0 + r + PT - u * DH, i = at / SH;
        const bool met = at >= 0 && at % SH == 0 && i < OH;
        row[r] = met ? dy + ((image * O + o) * OH + i) * OW : zeros + ZERO_MARGIN;
      }
      __global const float *taps = w + (o * CG * KH + u) * KW;
#if KW <= 8 // a longer row of taps stays a loop
#pragma unroll
#endif
      for (int v = 0; v < KW; v++) {
        floatv dyv[TR];
#pragma unroll
        for (int r = 0; r < TR; r++)
          dyv[r] = load_met(row[r], column0 + PL - v * DW, width);
#pragma unroll
        for (int c = 0; c < TC; c++) {
          const floatv wv = (floatv)(taps[w_at[c] + v]);
#pragma unroll
          for (int r = 0; r < TR; r++)
            acc[c][r] += wv * dyv[r];
        }
      }
    }
#if GATE
  OPEN_IN(x);
#endif
#pragma unroll
  for (int c = 0; c < TC; c++)
#pragma unroll
    for (int r = 0; r < TR; r++)
      if (c0 + c < CG && row0 + r < H) {
        const int plane = image * C + group * CG + c0 + c;
        const int at = (plane * H + row0 + r) * W + column0;
        floatv value = acc[c][r];
#if GATE
        value = relu_gate(LOADV(x + at), value);
#endif
#if ACCUMULATE
        value += LOADV(dx + at);
#endif
        store_first(value, dx + at, W - column0);
      }
}
#endif

#if PASS == 2
// Work-item (row u of the kernel, block of TV taps in it, block of TC input channels; group and block
// of TO output channels; split).
// Split s sums images [s·SPLIT, (s+1)·SPLIT); its result, weights and then bias, goes to
// partial + s · (O·CG·KH·KW + BIAS·O), or to the gradients themselves where there is one split.
__kernel void conv_wgrad(IN(x), IN(dy), OUT(partial), const int width, const int out_width,
                         const int count) {
  const int u = get_global_id(0) % KH, v0 = get_global_id(0) / KH % BLOCKS(KW, TV) * TV;
  const int c0 = get_global_id(0) / KH / BLOCKS(KW, TV) * TC;
  const int group = get_global_id(1) / BLOCKS(OG, TO), split = get_global_id(2);
  const int o0 = get_global_id(1) % BLOCKS(OG, TO) * TO; // in its group, as c0
  const int first = split * SPLIT;
  if (c0 >= CG || group >= GROUPS)
    return;
  OPEN_IN(x);
  OPEN_IN(dy);
  OPEN_OUT(partial);
  partial += split * (O * CG * TAPS + BIAS * O);
  const int stop = min(first + SPLIT, count);
  floatv acc[TO][TC][TV];
  int dy_plane[TO], x_plane[TC];
#pragma unroll
  for (int c = 0; c < TC; c++)
    x_plane[c] = (group * CG + min(c0 + c, CG - 1)) * (H * W);
#pragma unroll
  for (int o = 0; o < TO; o++) {
    dy_plane[o] = (group * OG + min(o0 + o, OG - 1)) * (OH * OW);
#pragma unroll
    for (int c = 0; c < TC; c++)
#pragma unroll
      for (int v = 0; v < TV; v++)
        acc[o][c][v] = (floatv)0;
  }
  for (int image = first; image < stop; image++)
    for (int i = 0; i < OH; i++) {
      const int x_row = i * SH - PT + u * DH;
      if (x_row < 0 || x_row >= H)
        continue;
#if OW <= 2 * VW
#pragma unroll
#endif
      for (int j = 0; j < OW; j += VW) {
        __global const float *dy_row = dy + (image * O * OH + i) * OW + j;
        floatv dyv[TO];
#pragma unroll
        for (int o = 0; o < TO; o++) {
          dyv[o] = LOADV(dy_row + dy_plane[o]);
#if OW % VW
          dyv[o] = select((floatv)0, dyv[o], (intv)(LANES < (intv)(out_width - j)));
#endif
        }
#pragma unroll
        for (int c = 0; c < TC; c++) {
          __global const float *row = x + (image * C * H + x_row) * W + x_plane[c];
#pragma unroll
          for (int v = 0; v < TV; v++) {
            const floatv xv = load_columns(row, j * SW - PL + (v0 + v) * DW, width);
#pragma unroll
            for (int o = 0; o < TO; o++)
              acc[o][c][v] += dyv[o] * xv;
          }
        }
      }
    }
#pragma unroll
  for (int o = 0; o < TO; o++)
#pragma unroll
    for (int c = 0; c < TC; c++)
#pragma unroll
      for (int v = 0; v < TV; v++)
        if (o0 + o < OG && c0 + c < CG && v0 + v < KW)
          partial[(((group * OG + o0 + o) * CG + c0 + c) * KH + u) * KW + v0 + v] =
              sum_lanes(acc[o][c][v]);
#if BIAS
  if (get_global_id(0) == 0)
    for (int o = group * OG + o0; o < group * OG + min(o0 + TO, OG); o++) {
      floatv sum = (floatv)0;
      for (int image = first; image < stop; image++) {
        __global const float *plane = dy + (image * O + o) * (OH * OW);
        floatv of_image = (floatv)0; // summed apart, which rounds less
        for (int i = 0; i < OH * OW; i += VW)
          of_image += select((floatv)0, LOADV(plane + i), (intv)(LANES < (intv)(OH * OW - i)));
        sum += of_image;
      }
      partial[O * CG * TAPS + o] = sum_lanes(sum);
    }
#endif
}
#endif
