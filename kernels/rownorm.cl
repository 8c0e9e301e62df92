// Group norm and layer norm: x is seen as rows of values that lie behind each other, each of which
// is normalised by itself: a group of an example's channels, or an example's last axes.
//   y = (x - mean)·r·weight + bias,  r = 1/sqrt(variance + eps) over the row
//   with g = dy·weight:  dx = r·(g - mean of g - (x - mean)·r²·mean of g·(x - mean))
// A row is made of units of `unit` values, each with one weight and bias (a channel of an image);
// or of one unit whose every place has its own (PLACES). Of `cycle` rows each has weights of its
// own, and then they are the first one's again.

#ifndef PLACES
#define PLACES 0 // 1: a weight for each place of the one unit, 0: one for each unit
#endif
#ifndef AFFINE
#define AFFINE 2 // 0: neither weight nor bias, 1: weights alone, 2: both
#endif
#ifndef GATE
#define GATE 0 // 1: zero dx where x (a ReLU's output) is not positive (backward)
#endif
#ifndef ACCUMULATE
#define ACCUMULATE 0 // 1: add to dx what it holds (backward)
#endif

// Of unit u of a row: where its weights begin, and the weight of its places from i on.
#if PLACES
#define FIRST_WEIGHT(row, u) ((row) % cycle * unit)
#define WEIGHT_AT(w, i) LOADV((w) + (i))
#else
#define FIRST_WEIGHT(row, u) ((row) % cycle * units + (u))
#define WEIGHT_AT(w, i) ((floatv)(*(w)))
#endif

inline floatv first_lanes(const floatv v, const int n) {
  return select((floatv)0, v, (intv)(LANES < (intv)(n)));
}

// moments[row] = mean, r
__kernel void row_forward(IN(x),
#if AFFINE
                          IN(weight),
#endif
#if AFFINE == 2
                          IN(bias),
#endif
                          OUT(moments), OUT(y), const float eps, const int units, const int unit,
                          const int cycle, const int rows) {
  const int row = get_global_id(0), size = units * unit;
  if (row >= rows)
    return;
  OPEN_IN(x);
  OPEN_OUT(y);
  OPEN_OUT(moments);
  x += row * size;
  y += row * size;
  floatv sum = (floatv)0;
  for (int i = 0; i < size; i += VW)
    sum += first_lanes(LOADV(x + i), size - i);
  const float near = sum_lanes(sum) / size;
  floatv rest = (floatv)0, squares = (floatv)0;
  for (int i = 0; i < size; i += VW) {
    const floatv v = first_lanes(LOADV(x + i) - (floatv)(near), size - i);
    rest += v;
    squares += v * v;
  }
  const float left = sum_lanes(rest) / size, mean = near + left; // rounding is put right
  const float r = 1 / sqrt(sum_lanes(squares) / size - left * left + eps);
  moments[2 * row] = mean;
  moments[2 * row + 1] = r;
#if AFFINE
  OPEN_IN(weight);
#endif
#if AFFINE == 2
  OPEN_IN(bias);
#endif
  for (int u = 0; u < units; u++)
    for (int i = 0; i < unit; i += VW) {
      floatv value = (LOADV(x + u * unit + i) - (floatv)(mean)) * (floatv)(r);
#if AFFINE
      value *= WEIGHT_AT(weight + FIRST_WEIGHT(row, u), i);
#endif
#if AFFINE == 2
      value += WEIGHT_AT(bias + FIRST_WEIGHT(row, u), i);
#endif
      store_first(value, y + u * unit + i, unit - i);
    }
}

// dx may be dy.
__kernel void row_backward(IN(x), IN(dy),
#if AFFINE
                           IN(weight),
#endif
                           IN(moments), OUT(dx), const int units, const int unit, const int cycle,
                           const int rows) {
  const int row = get_global_id(0), size = units * unit;
  if (row >= rows)
    return;
  OPEN_IN(x);
  OPEN_IN(dy);
  OPEN_IN(moments);
  OPEN_OUT(dx);
#if AFFINE
  OPEN_IN(weight);
#endif
  x += row * size;
  dy += row * size;
  dx += row * size;
  const floatv mean = (floatv)(moments[2 * row]);
  const float r = moments[2 * row + 1];
  floatv sum = (floatv)0, product = (floatv)0;
  for (int u = 0; u < units; u++)
    for (int i = 0; i < unit; i += VW) {
      const int at = u * unit + i;
      floatv g = LOADV(dy + at);
#if AFFINE
      g *= WEIGHT_AT(weight + FIRST_WEIGHT(row, u), i);
#endif
      g = first_lanes(g, unit - i);
      sum += g;
      product += first_lanes(g * (LOADV(x + at) - mean), unit - i);
    }
  const floatv offset = (floatv)(sum_lanes(sum) / size);
  const floatv slope = (floatv)(sum_lanes(product) / size * r * r);
  for (int u = 0; u < units; u++)
    for (int i = 0; i < unit; i += VW) {
      const int at = u * unit + i;
      const floatv xv = LOADV(x + at);
      floatv g = LOADV(dy + at);
#if AFFINE
      g *= WEIGHT_AT(weight + FIRST_WEIGHT(row, u), i);
#endif
      floatv value = (floatv)(r) * (g - offset - (xv - mean) * slope);
#if GATE
      value = relu_gate(xv, value);
#endif
#if ACCUMULATE
      value += LOADV(dx + at);
#endif
      store_first(value, dx + at, unit - i);
    }
}

#define TOGETHER (PLACES ? 64 : 1) // rows that are summed apart, which rounds less

// Work-item (weight, or VW neighbours with PLACES; split of the rows). sums[split] = gradients of
// all weights, then of all biases if there are any, over rows [split·share, (split + 1)·share),
// where share is a multiple of cycle.
__kernel void row_affine(IN(x), IN(dy), IN(moments), OUT(sums), const int units, const int unit,
                         const int cycle, const int share, const int rows) {
#if PLACES
  const int items = (unit + VW - 1) / VW, weights = cycle * unit;
#else
  const int items = units, weights = cycle * units;
#endif
  const int of_cycle = get_global_id(0) / items, item = get_global_id(0) % items;
  const int first = get_global_id(1) * share;
  if (of_cycle >= cycle)
    return;
  OPEN_IN(x);
  OPEN_IN(dy);
  OPEN_IN(moments);
  OPEN_OUT(sums);
  const int stop = min(first + share, rows);
  floatv products = (floatv)0, sum = (floatv)0;
  for (int begin = first + of_cycle; begin < stop; begin += TOGETHER * cycle) {
    floatv some_products = (floatv)0, some = (floatv)0;
    for (int row = begin; row < min(begin + TOGETHER * cycle, stop); row += cycle) {
      const floatv mean = (floatv)(moments[2 * row]), r = (floatv)(moments[2 * row + 1]);
#if PLACES
      const int at = row * unit + item * VW;
      const floatv g = LOADV(dy + at);
      some_products += g * ((LOADV(x + at) - mean) * r);
      some += g;
#else
      const int at = (row * units + item) * unit;
      for (int i = 0; i < unit; i += VW) {
        const floatv g = first_lanes(LOADV(dy + at + i), unit - i);
        some_products += first_lanes(g * ((LOADV(x + at + i) - mean) * r), unit - i);
        some += g;
      }
#endif
    }
    products += some_products;
    sum += some;
  }
  sums += get_global_id(1) * weights * AFFINE;
#if PLACES
  sums += of_cycle * unit + item * VW;
  store_first(products, sums, unit - item * VW);
#if AFFINE == 2
  store_first(sum, sums + weights, unit - item * VW);
#endif
#else
  sums += of_cycle * units + item;
  *sums = sum_lanes(products);
#if AFFINE == 2
  sums[weights] = sum_lanes(sum);
#endif
#endif
}
