// Pooling in NCHW: maximum and mean over windows KH x KW moved by SH, SW, which are
// constants; image sizes come at run time, so that equal windows share a program.
// A work-item makes VW neighbours of one row of one plane (an image's channel).

#ifndef PH
#define PH 0 // rows of padding above and below
#endif
#ifndef PW
#define PW 0 // columns of padding left and right
#endif
#ifndef GATE
#define GATE 0 // 1: zero dx where x (a ReLU's output) is not positive (backward)
#endif
#ifndef ACCUMULATE
#define ACCUMULATE 0 // 1: add to dx what it holds (backward)
#endif
// Without defaults: KH KW SH SW of the windows. H W: the input's size, OH OW: the output's.

// Windows that hold row r (padding counted): the first, and one after the last.
#define FIRST_WINDOW(r) (max(0, (r) - KH + SH) / SH)
#define AFTER_WINDOW(r) min(OH, (r) / SH + 1)
#define WINDOWS_ACROSS ((KW + SW - 1) / SW) // that hold one column, at most

// y = largest value of each window, places = where in the window it lies. Padding is never the
// largest; of equal values the first wins; "not a number" wins over all, as in PyTorch.
__kernel void max_forward(IN(x), OUT(y), OUT(places), const int planes, const int H,
                          const int W, const int OH, const int OW) {
  const int vectors = (OW + VW - 1) / VW;
  const int i = get_global_id(0) / vectors, j = get_global_id(0) % vectors * VW;
  const int plane = get_global_id(1);
  if (i >= OH || plane >= planes)
    return;
  OPEN_IN(x);
  OPEN_OUT(y);
  OPEN_OUT(places);
  floatv best = (floatv)(-INFINITY), place = (floatv)(-1);
  for (int u = 0; u < KH; u++) {
    const int row = i * SH - PH + u;
    if (row < 0 || row >= H)
      continue;
    for (int v = 0; v < KW; v++) {
      const int first = j * SW - PW + v;
      const floatv value = load_strided(x + (plane * H + row) * W, first, SW, W);
      intv better = (intv)((place < (floatv)0) | (value > best) | (value != value));
#if PW > 0
      better &= in_row(first, SW, W);
#endif
      best = select(best, value, better);
      place = select(place, (floatv)(u * KW + v), better);
    }
  }
  const int at = (plane * OH + i) * OW + j;
  store_first(best, y + at, OW - j);
  store_first(place, places + at, OW - j);
}

// y = sum of each window / (KH·KW); padding counts as zeros.
__kernel void mean_forward(IN(x), OUT(y), const int planes, const int H,
                           const int W, const int OH, const int OW) {
  const int vectors = (OW + VW - 1) / VW;
  const int i = get_global_id(0) / vectors, j = get_global_id(0) % vectors * VW;
  const int plane = get_global_id(1);
  if (i >= OH || plane >= planes)
    return;
  OPEN_IN(x);
  OPEN_OUT(y);
  floatv sum = (floatv)0;
  for (int u = 0; u < KH; u++) {
    const int row = i * SH - PH + u;
    if (row < 0 || row >= H)
      continue;
    for (int v = 0; v < KW; v++) {
      const int first = j * SW - PW + v;
      const floatv value = load_strided(x + (plane * H + row) * W, first, SW, W);
#if PW > 0
      sum += select((floatv)0, value, in_row(first, SW, W));
#else
      sum += value;
#endif
    }
  }
  store_first(sum / (floatv)(KH * KW), y + (plane * OH + i) * OW + j, OW - j);
}

// Gradient of a row's columns from the windows that hold them. With places: from those windows
// whose largest value lay there; else from all. Zero in the windows' gaps.
inline floatv gather_windows(__global const float *dy, __global const float *places, const int row,
                             const int column, const int OH, const int OW) {
  floatv sum = (floatv)0;
  for (int i = FIRST_WINDOW(row + PH); i < AFTER_WINDOW(row + PH); i++)
    for (int across = 0; across < WINDOWS_ACROSS; across++) {
      const int first = column + PW - across * SW;
      const intv j = ((intv)(column + PW) + LANES) / (intv)(SW) - (intv)(across);
      const intv v = (intv)(column + PW) + LANES - j * (intv)(SW);
      intv holds = (intv)((j >= (intv)0) & (j < (intv)(OW)) & (v < (intv)(KW)));
      if (places) {
        const intv place = (intv)((row + PH - i * SH) * KW) + v;
        const floatv largest = load_spread(places + i * OW, first, SW, OW);
#if VW == 1
        holds &= largest == (float)place;
#else
        holds &= largest == JOIN(convert_float, VW)(place);
#endif
      }
      sum += select((floatv)0, load_spread(dy + i * OW, first, SW, OW), holds);
    }
  return sum;
}

inline void store_gradient(floatv value, __global const float *x, __global float *dx,
                           const int left) {
#if GATE
  value = relu_gate(LOADV(x), value);
#endif
#if ACCUMULATE
  value += LOADV(dx);
#endif
  store_first(value, dx, left);
}

__kernel void max_backward(IN(dy), IN(places),
#if GATE
                           IN(x),
#endif
                           OUT(dx), const int planes, const int H, const int W, const int OH,
                           const int OW) {
  const int vectors = (W + VW - 1) / VW;
  const int row = get_global_id(0) / vectors, column = get_global_id(0) % vectors * VW;
  const int plane = get_global_id(1);
  if (row >= H || plane >= planes)
    return;
  OPEN_IN(dy);
  OPEN_IN(places);
  OPEN_OUT(dx);
#if GATE
  OPEN_IN(x);
#else
  __global const float *x = dx;
#endif
  const int at = (plane * H + row) * W + column;
  const floatv value =
      gather_windows(dy + plane * (OH * OW), places + plane * (OH * OW), row, column, OH, OW);
  store_gradient(value, x + at, dx + at, W - column);
}

// dx = sum of dy over the windows that hold it / (KH·KW).
__kernel void mean_backward(IN(dy),
#if GATE
                            IN(x),
#endif
                            OUT(dx), const int planes, const int H, const int W, const int OH,
                            const int OW) {
  const int vectors = (W + VW - 1) / VW;
  const int row = get_global_id(0) / vectors, column = get_global_id(0) % vectors * VW;
  const int plane = get_global_id(1);
  if (row >= H || plane >= planes)
    return;
  OPEN_IN(dy);
  OPEN_OUT(dx);
#if GATE
  OPEN_IN(x);
#else
  __global const float *x = dx;
#endif
  const int at = (plane * H + row) * W + column;
  const floatv sum = gather_windows(dy + plane * (OH * OW), 0, row, column, OH, OW);
  store_gradient(sum / (floatv)(KH * KW), x + at, dx + at, W - column);
}
