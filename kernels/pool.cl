// Pooling in NCHW: maximum and mean over windows KH x KW moved by SH, SW. Shapes are constants.
// A work-item makes SPAN neighbours of one row of one plane (an image's channel).

#ifndef SPAN
#define SPAN 1 // elements of a row for each work-item: 1 on a GPU, a whole row on a CPU
#endif
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
// Without defaults: H W of the input, OH OW of the output, KH KW SH SW of the windows.

// Windows that hold position at: the first, and one after the last.
#define FIRST_WINDOW(at, pad, size, stride) (max(0, (at) + (pad) - (size) + (stride)) / (stride))
#define AFTER_WINDOW(at, pad, stride, windows) min((windows), ((at) + (pad)) / (stride) + 1)

// y = largest value of each window, which = its place in the window. Padding is never the largest;
// of equal values the first wins, and "not a number" wins over all, as in PyTorch. Where a tensor
// begins is counted in floats, two places each.
__kernel void max_forward(IN(x), OUT(y), __global ushort *which_buffer, const int which_start,
                          const int planes) {
  const int spans = (OW + SPAN - 1) / SPAN;
  const int i = get_global_id(0) / spans, plane = get_global_id(1);
  const int j0 = get_global_id(0) % spans * SPAN;
  if (i >= OH || plane >= planes)
    return;
  OPEN_IN(x);
  OPEN_OUT(y);
  __global ushort *which = which_buffer + 2 * which_start;
  __global const float *image = x + plane * (H * W);
  for (int j = j0; j < min(j0 + SPAN, OW); j++) {
    float best = -INFINITY;
    int place = -1;
    for (int u = 0; u < KH; u++)
      for (int v = 0; v < KW; v++) {
        const int row = i * SH - PH + u, column = j * SW - PW + v;
        if (row >= 0 && row < H && column >= 0 && column < W) {
          const float value = image[row * W + column];
          if (place < 0 || value > best || isnan(value)) {
            best = value;
            place = u * KW + v;
          }
        }
      }
    const int at = (plane * OH + i) * OW + j;
    y[at] = best;
    which[at] = (ushort)place;
  }
}

// dx[at] = sum of dy over the windows whose largest value lay there.
__kernel void max_backward(IN(dy), __global const ushort *which_buffer, const int which_start,
#if GATE
                           IN(x),
#endif
                           OUT(dx), const int planes) {
  const int spans = (W + SPAN - 1) / SPAN;
  const int row = get_global_id(0) / spans, plane = get_global_id(1);
  const int column0 = get_global_id(0) % spans * SPAN;
  if (row >= H || plane >= planes)
    return;
  OPEN_IN(dy);
#if GATE
  OPEN_IN(x);
#endif
  OPEN_OUT(dx);
  __global const ushort *which = which_buffer + 2 * which_start + plane * (OH * OW);
  dy += plane * (OH * OW);
  for (int column = column0; column < min(column0 + SPAN, W); column++) {
    float sum = 0;
    for (int i = FIRST_WINDOW(row, PH, KH, SH); i < AFTER_WINDOW(row, PH, SH, OH); i++)
      for (int j = FIRST_WINDOW(column, PW, KW, SW); j < AFTER_WINDOW(column, PW, SW, OW); j++) {
        const int place = (row + PH - i * SH) * KW + column + PW - j * SW;
        sum += which[i * OW + j] == place ? dy[i * OW + j] : 0;
      }
    const int at = (plane * H + row) * W + column;
#if GATE
    sum = x[at] <= 0 ? 0 : sum;
#endif
#if ACCUMULATE
    sum += dx[at];
#endif
    dx[at] = sum;
  }
}

// y = sum of each window / (KH·KW); padding counts as zeros.
__kernel void mean_forward(IN(x), OUT(y), const int planes) {
  const int spans = (OW + SPAN - 1) / SPAN;
  const int i = get_global_id(0) / spans, plane = get_global_id(1);
  const int j0 = get_global_id(0) % spans * SPAN;
  if (i >= OH || plane >= planes)
    return;
  OPEN_IN(x);
  OPEN_OUT(y);
  __global const float *image = x + plane * (H * W);
  for (int j = j0; j < min(j0 + SPAN, OW); j++) {
    float sum = 0;
    for (int u = 0; u < KH; u++)
      for (int v = 0; v < KW; v++) {
        const int row = i * SH - PH + u, column = j * SW - PW + v;
        if (row >= 0 && row < H && column >= 0 && column < W)
          sum += image[row * W + column];
      }
    y[(plane * OH + i) * OW + j] = sum / (KH * KW);
  }
}

// dx[at] = sum of dy over the windows that hold it / (KH·KW).
__kernel void mean_backward(IN(dy),
#if GATE
                            IN(x),
#endif
                            OUT(dx), const int planes) {
  const int spans = (W + SPAN - 1) / SPAN;
  const int row = get_global_id(0) / spans, plane = get_global_id(1);
  const int column0 = get_global_id(0) % spans * SPAN;
  if (row >= H || plane >= planes)
    return;
  OPEN_IN(dy);
#if GATE
  OPEN_IN(x);
#endif
  OPEN_OUT(dx);
  dy += plane * (OH * OW);
  for (int column = column0; column < min(column0 + SPAN, W); column++) {
    float sum = 0;
    for (int i = FIRST_WINDOW(row, PH, KH, SH); i < AFTER_WINDOW(row, PH, SH, OH); i++)
      for (int j = FIRST_WINDOW(column, PW, KW, SW); j < AFTER_WINDOW(column, PW, SW, OW); j++)
        sum += dy[i * OW + j];
    sum /= (KH * KW);
    const int at = (plane * H + row) * W + column;
#if GATE
    sum = x[at] <= 0 ? 0 : sum;
#endif
#if ACCUMULATE
    sum += dx[at];
#endif
    dx[at] = sum;
  }
}
