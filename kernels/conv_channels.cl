// Gradients of a convolution's weights and bias, vectors along the channels of the input:
//   dw[o,c,u,v] = sum over n,i,j of dy[n,o,i,j] · x[n, c, i·SH - PT + u·DH, j·SW - PL + v·DW]
// x comes as interleave.cl packs channels: packed[block of VW channels, n, place, lane]. All lanes of
// a vector meet the same place: nothing is masked, no lanes are summed, and a stride costs nothing.

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
#define PT 0 // zeros above
#endif
#ifndef PL
#define PL 0 // zeros at the left
#endif
#ifndef TO
#define TO 8 // output channels in a work-item's tile
#endif
#ifndef TC
#define TC 3 // vectors of input channels in a tile
#endif
// Without defaults: CG, OG channels of the input and the output; H W of the input, OH OW of the
// output, KH KW of the kernel.

#define AREA (OH * OW)
#define TAPS (KH * KW)
#define VECTORS BLOCKS(CG, VW) // of channels

// Work-item (tap and block of TC vectors of input channels; block of TO output channels; split).
// Split s sums examples [s·SPLIT, (s+1)·SPLIT); its result, weights and then bias, goes to
// partial + s · (size of weights and bias), or to the gradients themselves where there is one split.
__kernel void conv_channels_wgrad(IN(packed), IN(dy), OUT(partial), const int count) {
  const int tap = get_global_id(0) % TAPS, vector0 = get_global_id(0) / TAPS * TC;
  const int o0 = get_global_id(1) * TO, split = get_global_id(2);
  if (vector0 >= VECTORS || o0 >= OG)
    return;
  OPEN_IN(packed);
  OPEN_IN(dy);
  OPEN_OUT(partial);
  partial += split * (OG * CG * TAPS + BIAS * OG);
  // Vectors and channels beyond the edge compute the last one again and are not stored.
  floatv acc[TO][TC];
  int dy_plane[TO], x_block[TC];
#pragma unroll
  for (int c = 0; c < TC; c++)
    x_block[c] = min(vector0 + c, VECTORS - 1) * count * (H * W * VW);
#pragma unroll
  for (int o = 0; o < TO; o++) {
    dy_plane[o] = min(o0 + o, OG - 1) * AREA;
#pragma unroll
    for (int c = 0; c < TC; c++)
      acc[o][c] = (floatv)0;
  }
  // Outputs in rows [i0, i1) and columns [j0, j1) meet the input by this tap.
  const int down = tap / KW * DH - PT, right = tap % KW * DW - PL;
  const int i0 = clamp(ceil_div(-down, SH), 0, OH);
  const int i1 = clamp(floor_div(H - 1 - down, SH) + 1, i0, OH);
  const int j0 = clamp(ceil_div(-right, SW), 0, OW);
  const int j1 = clamp(floor_div(W - 1 - right, SW) + 1, j0, OW);
  const int stop = min((split + 1) * SPLIT, count);
  for (int example = split * SPLIT; example < stop; example++)
    for (int i = i0; i < i1; i++) {
      __global const float *x_row = packed + ((example * H + i * SH + down) * W + right) * VW;
      __global const float *dy_row = dy + example * (OG * AREA) + i * OW;
      for (int j = j0; j < j1; j++) {
        floatv xv[TC];
#pragma unroll
        for (int c = 0; c < TC; c++)
          xv[c] = LOADV(x_row + x_block[c] + j * (SW * VW));
#pragma unroll
        for (int o = 0; o < TO; o++) {
          const floatv dyv = (floatv)(dy_row[dy_plane[o] + j]);
#pragma unroll
          for (int c = 0; c < TC; c++)
            acc[o][c] += dyv * xv[c];
        }
      }
    }
#pragma unroll
  for (int o = 0; o < TO; o++) {
    if (o0 + o >= OG)
      break;
#pragma unroll
    for (int c = 0; c < TC; c++) {
      float lanes[VW];
      STOREV(acc[o][c], lanes);
      const int first = (vector0 + c) * VW;
      for (int lane = 0; lane < min(VW, CG - first); lane++)
        partial[((o0 + o) * CG + first + lane) * TAPS + tap] = lanes[lane];
    }
  }
#if BIAS
  if (get_global_id(0) == 0)
    for (int o = o0; o < min(o0 + TO, OG); o++) {
      floatv sum = (floatv)0;
      for (int example = split * SPLIT; example < stop; example++) {
        __global const float *plane = dy + (example * OG + o) * AREA;
        floatv of_image = (floatv)0; // summed apart, which rounds less
        for (int i = 0; i < AREA; i += VW)
          of_image += select((floatv)0, LOADV(plane + i), (intv)(LANES < (intv)(AREA - i)));
        sum += of_image;
      }
      partial[OG * CG * TAPS + o] = sum_lanes(sum);
    }
#endif
}
