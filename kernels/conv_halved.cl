// Gradient of the input of a convolution at stride 2, whose output is half as large, rounded up:
//   dx[n,c,i,j] = sum over o,u,v of w[o,c,u,v] · dy[n, o, (i + PT - u) / 2, (j + PL - v) / 2],
// where both divide evenly. Even and odd rows and columns of dx meet different taps: the four phases
// are convolutions of dy at stride 1 with the taps that each meets, and no tap is multiplied by the
// zeros in between. Vectors go along dy's image seen as one row of places; place (i, j) stands for
// the four places of dx from (2i, 2j) on. Sizes come as arguments once more, for the masks alone: a
// compiler that knows a mask tears loads apart.

#ifndef TC
#define TC 3 // channels of dx in a work-item's tile
#endif
#ifndef TV
#define TV 2 // vectors of places in a tile
#endif
// Without defaults: CG, OG channels of a group of dx and dy; H W of dx, OH OW of dy, KH KW of the
// kernel, PT PL zeros above and at the left.

#define AREA (OH * OW)
#define TAPS (KH * KW)
#define VECTORS BLOCKS(AREA, VW)

#define PHASE(tap, pad) (((tap) - (pad)) & 1)                   // of dx's rows, or columns
#define AWAY(tap, pad) ((PHASE(tap, pad) + (pad) - (tap)) / 2) // from dx's place to dy's

#if W == 2 * OW && VW > 1 && OW % (VW / 2) == 0
#define EVEN_ROWS 1 // half a vector of places is one vector in a row of dx
#else
#define EVEN_ROWS 0
#endif

// Two phases' columns, one after the other: lanes of a and b in turn.
#if VW > 1
#define HALF_TURNS(name, a, b)                                                                     \
  floatv name;                                                                                     \
  name.even = a;                                                                                   \
  name.odd = b
#endif

// Work-item (tile of the places; group and block of TC channels of dx; example).
__kernel void conv_halved_dgrad(IN(dy), IN(w),
#if GATE
                                IN(x),
#endif
                                OUT(dx), const int width, const int height, const int count) {
  const int vector0 = get_global_id(0) * TV, example = get_global_id(2);
  const int group = get_global_id(1) / BLOCKS(CG, TC);
  const int c0 = get_global_id(1) % BLOCKS(CG, TC) * TC; // in its group
  if (vector0 >= VECTORS || group >= GROUPS || example >= count)
    return;
  OPEN_IN(dy);
  OPEN_IN(w);
  OPEN_OUT(dx);
#if GATE
  OPEN_IN(x);
#endif
  dy += (example * GROUPS + group) * (OG * AREA);
  w += group * (OG * CG * TAPS);
  // Vectors and channels beyond the edge compute the last one again and are not stored.
  int first[TV], w_at[TC];
  intv rows[TV][KH], columns[TV][KW];
  floatv acc[TC][TV][2][2];
#pragma unroll
  for (int t = 0; t < TV; t++) {
    first[t] = min(vector0 + t, VECTORS - 1) * VW;
    const intv place = (intv)(first[t]) + LANES;
#pragma unroll
    for (int u = 0; u < KH; u++) {
      const intv row = place / (intv)(OW) + (intv)(AWAY(u, PT));
      rows[t][u] = (intv)((row >= (intv)0) & (row < (intv)(height)));
    }
#pragma unroll
    for (int v = 0; v < KW; v++) {
      const intv column = place % (intv)(OW) + (intv)(AWAY(v, PL));
      columns[t][v] = (intv)((column >= (intv)0) & (column < (intv)(width)));
    }
  }
#pragma unroll
  for (int c = 0; c < TC; c++) {
    w_at[c] = min(c0 + c, CG - 1) * TAPS;
#pragma unroll
    for (int t = 0; t < TV; t++)
#pragma unroll
      for (int phase = 0; phase < 4; phase++)
        acc[c][t][phase / 2][phase % 2] = (floatv)0;
  }
  for (int o = 0; o < OG; o++) {
    __global const float *plane = dy + o * AREA;
    __global const float *taps = w + o * (CG * TAPS);
#pragma unroll
    for (int k = 0; k < TAPS; k++) {
      const int u = k / KW, v = k % KW;
      floatv dyv[TV];
#pragma unroll
      for (int t = 0; t < TV; t++) {
        const int at = clamp(first[t] + AWAY(u, PT) * OW + AWAY(v, PL), -VW, AREA);
        dyv[t] = select((floatv)0, LOADV(plane + at), rows[t][u] & columns[t][v]);
      }
#pragma unroll
      for (int c = 0; c < TC; c++) {
        const floatv wv = (floatv)(taps[w_at[c] + k]);
#pragma unroll
        for (int t = 0; t < TV; t++)
          acc[c][t][PHASE(u, PT)][PHASE(v, PL)] += wv * dyv[t];
      }
    }
  }
#pragma unroll
  for (int c = 0; c < TC; c++) {
    if (c0 + c >= CG)
      continue;
    const int dx_plane = ((example * GROUPS + group) * CG + c0 + c) * (H * W);
#pragma unroll
    for (int t = 0; t < TV; t++)
#pragma unroll
      for (int a = 0; a < 2; a++) {
#if EVEN_ROWS
        HALF_TURNS(low, acc[c][t][a][0].lo, acc[c][t][a][1].lo);
        HALF_TURNS(high, acc[c][t][a][0].hi, acc[c][t][a][1].hi);
        floatv halves[2] = {low, high};
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const int place = (vector0 + t) * VW + h * (VW / 2);
          const int row = place / OW * 2 + a;
          const int at = dx_plane + row * W + place % OW * 2;
          floatv value = halves[h];
          if (place >= AREA || row >= H)
            continue;
#if GATE
          value = relu_gate(LOADV(x + at), value);
#endif
#if ACCUMULATE
          value += LOADV(dx + at);
#endif
          STOREV(value, dx + at);
        }
#else
        float lanes[2][VW];
        STOREV(acc[c][t][a][0], lanes[0]);
        STOREV(acc[c][t][a][1], lanes[1]);
        for (int l = 0; l < 2 * VW; l++) {
          const int place = (vector0 + t) * VW + l / 2;
          const int row = place / OW * 2 + a, column = place % OW * 2 + l % 2;
          const int at = dx_plane + row * W + column;
          float value = lanes[l % 2][l / 2];
          if (place >= AREA || row >= H || column >= W)
            continue;
#if GATE
          value = x[at] <= 0 ? 0 : value;
#endif
#if ACCUMULATE
          value += dx[at];
#endif
          dx[at] = value;
        }
#endif
      }
  }
}
