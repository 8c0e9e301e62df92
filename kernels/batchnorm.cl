// Batch norm of x [count, channels, size], a plane of size values for each example and channel:
//   y = (x - mean)·scale + bias,  scale = weight·r,  r = 1/sqrt(variance + eps)
//   dweight = r·sum of dy·(x - mean);  dbias = sum of dy
//   dx = scale·(dy - dbias/m - (x - mean)·r·dweight/m),  m = count·size
// Sums over the batch are taken in two stages: batch_moments and batch_products write one row for
// each split of the examples; whoever needs a channel's sum adds its few rows up by itself, always
// in the same order. A plane's mean is taken away before its squares are added up.
// A single value (m = 1) is normalised by the running statistics, which it leaves as they are.
// weight, bias and the running mean, variance lie behind each other, as do the rows of all sums.

#ifndef ACROSS
#define ACROSS 0 // 1: vectors go across channels, of which each has one value (size is 1)
#endif
#ifndef AFFINE
#define AFFINE 1 // 0: there is neither weight nor bias
#endif
#ifndef RUNNING
#define RUNNING 0 // 1: by the running statistics, which stay (evaluation, a frozen layer)
#endif
#ifndef ADD
#define ADD 0 // 1: another tensor is added (forward)
#endif
#ifndef RELU
#define RELU 0 // 1: max(·, 0) last (forward); its gradient first (backward)
#endif
#ifndef PASS
#define PASS 0 // 1: the added tensor's gradient is written, 2: added to what is there (backward)
#endif
#ifndef DX
#define DX 1 // 0: the gradient of x is not needed (backward)
#endif
#ifndef GATE
#define GATE 0 // 1: zero dx where x (a ReLU's output) is not positive (backward)
#endif
#ifndef ACCUMULATE
#define ACCUMULATE 0 // 1: add to dx what it holds (backward)
#endif

// A number for each channel of a work-item: one channel, or VW neighbours.
#if ACROSS
typedef floatv stat;
#define WIDTH VW
#define LOAD_STAT(p) LOADV(p)
#define STORE_STAT(v, p, n) store_first(v, p, n)
#define OVER_PLANE(v) (v)
#else
typedef float stat;
#define WIDTH 1
#define LOAD_STAT(p) (*(p))
#define STORE_STAT(v, p, n) (*(p) = (v))
#define OVER_PLANE(v) sum_lanes(v)
#endif

#define AFTER(split, count) min(((int)get_global_id(1) + 1) * (split), count)

// The first n lanes of v, others zero.
inline floatv first_lanes(const floatv v, const int n) {
  return select((floatv)0, v, (intv)(LANES < (intv)(n)));
}

// Mean of a plane; *squares = sum of (x - mean)². What rounding left in the mean is put right.
inline float plane_moments(__global const float *plane, const int size, float *squares) {
  floatv a = (floatv)0, b = (floatv)0;
  int i = 0;
  for (; i + 2 * VW <= size; i += 2 * VW) {
    a += LOADV(plane + i);
    b += LOADV(plane + i + VW);
  }
  for (; i < size; i += VW)
    a += first_lanes(LOADV(plane + i), size - i);
  const float mean = sum_lanes(a + b) / size;
  floatv rest = (floatv)0, second = (floatv)0;
  a = b = (floatv)0;
  for (i = 0; i + 2 * VW <= size; i += 2 * VW) {
    const floatv u = LOADV(plane + i) - (floatv)(mean);
    const floatv v = LOADV(plane + i + VW) - (floatv)(mean);
    rest += u;
    second += v;
    a += u * u;
    b += v * v;
  }
  for (; i < size; i += VW) {
    const floatv u = first_lanes(LOADV(plane + i) - (floatv)(mean), size - i);
    rest += u;
    a += u * u;
  }
  const float left = sum_lanes(rest + second) / size;
  *squares = sum_lanes(a + b) - left * left * size;
  return mean + left;
}

// Mean and squared differences of two sets of values, of which the second is share of both.
// (Chan, Golub & LeVeque, "Updating formulae and a pairwise algorithm", 1979)
inline void join(stat *mean, stat *squares, const stat other_mean, const stat other_squares,
                 const float share, const float before) {
  const stat delta = other_mean - *mean;
  *mean += delta * share;
  *squares += other_squares + delta * delta * (share * before);
}

// sums[split] = means of the split's examples, then their squared differences.
__kernel void batch_moments(IN(x), OUT(sums), const int channels, const int size, const int split,
                            const int count) {
  const int c = get_global_id(0) * WIDTH, first = get_global_id(1) * split;
  if (c >= channels || first >= count)
    return;
  OPEN_IN(x);
  OPEN_OUT(sums);
  stat mean = 0, squares = 0;
  for (int image = first; image < AFTER(split, count); image++) {
    __global const float *plane = x + (image * channels + c) * size;
#if ACROSS
    const stat plane_mean = LOADV(plane), plane_squares = 0;
#else
    float plane_squares;
    const float plane_mean = plane_moments(plane, size, &plane_squares);
#endif
    const int done = image - first;
    join(&mean, &squares, plane_mean, plane_squares, 1.0f / (done + 1), (float)(done * size));
  }
  sums += get_global_id(1) * 2 * channels + c;
  STORE_STAT(mean, sums, channels - c);
  STORE_STAT(squares, sums + channels, channels - c);
}

// sums[split] = sums of dy, then of dy·(x - mean), over the split's examples.
__kernel void batch_products(IN(x), IN(dy),
#if RELU
                             IN(y),
#endif
                             IN(stats), OUT(sums), const int channels, const int size,
                             const int split, const int count) {
  const int c = get_global_id(0) * WIDTH, first = get_global_id(1) * split;
  if (c >= channels || first >= count)
    return;
  OPEN_IN(x);
  OPEN_IN(dy);
#if RELU
  OPEN_IN(y);
#endif
  OPEN_IN(stats);
  OPEN_OUT(sums);
  const floatv mean = (floatv)(LOAD_STAT(stats + c));
  floatv sum = (floatv)0, product = (floatv)0;
  for (int image = first; image < AFTER(split, count); image++) {
    const int plane = (image * channels + c) * size;
    floatv plane_sum = (floatv)0, plane_product = (floatv)0;
    for (int i = 0; i < size; i += VW) {
      floatv g = LOADV(dy + plane + i);
#if RELU
      g = relu_gate(LOADV(y + plane + i), g);
#endif
      floatv t = g * (LOADV(x + plane + i) - mean);
#if !ACROSS
      if (size - i < VW) {
        g = first_lanes(g, size - i);
        t = first_lanes(t, size - i);
      }
#endif
      plane_sum += g;
      plane_product += t;
    }
    sum += plane_sum;
    product += plane_product;
  }
  sums += get_global_id(1) * 2 * channels + c;
  STORE_STAT(OVER_PLANE(sum), sums, channels - c);
  STORE_STAT(OVER_PLANE(product), sums + channels, channels - c);
}

// Work-item (part of each plane, channel, split). The first one of a channel keeps its mean and r
// for the backward pass, and moves the running statistics.
__kernel void batch_forward(IN(x),
#if AFFINE
                            IN(affine),
#endif
#if ADD
                            IN(added),
#endif
#if !RUNNING
                            IN(sums), OUT(stats),
#endif
                            OUT(running), OUT(y), const float eps, const float momentum,
                            const int channels, const int size, const int parts, const int split,
                            const int count) {
  const int part = get_global_id(0), c = get_global_id(1) * WIDTH, first = get_global_id(2) * split;
  if (part >= parts || c >= channels || first >= count)
    return;
  OPEN_IN(x);
  OPEN_OUT(running);
  OPEN_OUT(y);
#if RUNNING
  const stat mean = LOAD_STAT(running + c);
  const stat r = 1 / sqrt(LOAD_STAT(running + channels + c) + eps);
#else
  OPEN_IN(sums);
  OPEN_OUT(stats);
  stat mean = LOAD_STAT(sums + c), squares = LOAD_STAT(sums + channels + c);
  for (int from = split; from < count; from += split) {
    sums += 2 * channels;
    const int after = min(from + split, count);
    join(&mean, &squares, LOAD_STAT(sums + c), LOAD_STAT(sums + channels + c),
         (float)(after - from) / after, (float)from * size);
  }
  const int m = count * size;
  stat variance = squares / m;
  if (m == 1) {
    mean = LOAD_STAT(running + c);
    variance = LOAD_STAT(running + channels + c);
  }
  const stat r = 1 / sqrt(variance + eps);
  if (part == 0 && first == 0) {
    STORE_STAT(mean, stats + c, channels - c);
    STORE_STAT(r, stats + channels + c, channels - c);
    if (m > 1) {
      const stat old_mean = LOAD_STAT(running + c), old = LOAD_STAT(running + channels + c);
      const stat unbiased = squares / (m - 1);
      STORE_STAT(old_mean + momentum * (mean - old_mean), running + c, channels - c);
      STORE_STAT(old + momentum * (unbiased - old), running + channels + c, channels - c);
    }
  }
#endif
#if AFFINE
  OPEN_IN(affine);
  const floatv scale = (floatv)(LOAD_STAT(affine + c) * r);
  const floatv bias = (floatv)(LOAD_STAT(affine + channels + c));
#else
  const floatv scale = (floatv)(r), bias = (floatv)0;
#endif
#if ADD
  OPEN_IN(added);
#endif
  for (int image = first; image < min(first + split, count); image++)
    for (int i = part * VW; i < size; i += parts * VW) {
      const int at = (image * channels + c) * size + i;
      floatv value = (LOADV(x + at) - (floatv)(mean)) * scale + bias;
#if ADD
      value += LOADV(added + at);
#endif
#if RELU
      value = relu(value);
#endif
      store_first(value, y + at, ACROSS ? channels - c : size - i);
    }
}

// Work-item as in batch_forward. The first one of a channel writes the gradients of its weight and
// bias. dx and passed may be dy.
__kernel void batch_backward(IN(x), IN(dy),
#if RELU
                             IN(y),
#endif
#if AFFINE
                             IN(affine),
#endif
#if RUNNING
                             IN(running), const float eps,
#else
                             IN(stats), IN(sums),
#if AFFINE
                             OUT(daffine),
#endif
#endif
#if PASS
                             OUT(passed),
#endif
#if DX
                             OUT(dx),
#endif
                             const int channels, const int size, const int parts, const int split,
                             const int count) {
  const int part = get_global_id(0), c = get_global_id(1) * WIDTH, first = get_global_id(2) * split;
  if (part >= parts || c >= channels || first >= count)
    return;
  OPEN_IN(x);
  OPEN_IN(dy);
#if RUNNING
  OPEN_IN(running);
  const stat r = 1 / sqrt(LOAD_STAT(running + channels + c) + eps);
#else
  OPEN_IN(stats);
  OPEN_IN(sums);
  const floatv mean = (floatv)(LOAD_STAT(stats + c));
  const stat r = LOAD_STAT(stats + channels + c);
  stat sum = LOAD_STAT(sums + c), product = LOAD_STAT(sums + channels + c);
  for (int from = split; from < count; from += split) {
    sums += 2 * channels;
    sum += LOAD_STAT(sums + c);
    product += LOAD_STAT(sums + channels + c);
  }
#if AFFINE
  if (part == 0 && first == 0) {
    OPEN_OUT(daffine);
    STORE_STAT(product * r, daffine + c, channels - c);
    STORE_STAT(sum, daffine + channels + c, channels - c);
  }
#endif
  const float m = (float)(count * size), of_batch = m > 1 ? 1 / m : 0;
  const floatv offset = (floatv)(sum * of_batch), slope = (floatv)(product * r * r * of_batch);
#endif
#if AFFINE
  OPEN_IN(affine);
  const floatv scale = (floatv)(LOAD_STAT(affine + c) * r);
#else
  const floatv scale = (floatv)(r);
#endif
#if RELU
  OPEN_IN(y);
#endif
#if PASS
  OPEN_OUT(passed);
#endif
#if DX
  OPEN_OUT(dx);
#endif
#if DX || PASS
  for (int image = first; image < min(first + split, count); image++)
    for (int i = part * VW; i < size; i += parts * VW) {
      const int at = (image * channels + c) * size + i;
      const int left = ACROSS ? channels - c : size - i;
      floatv g = LOADV(dy + at);
#if RELU
      g = relu_gate(LOADV(y + at), g);
#endif
#if PASS == 1
      store_first(g, passed + at, left);
#elif PASS == 2
      store_first(g + LOADV(passed + at), passed + at, left);
#endif
#if DX
      const floatv xv = LOADV(x + at);
#if RUNNING
      floatv value = scale * g;
#else
      floatv value = scale * (g - offset - (xv - mean) * slope);
#endif
#if GATE
      value = relu_gate(xv, value);
#endif
#if ACCUMULATE
      value += LOADV(dx + at);
#endif
      store_first(value, dx + at, left);
#endif
    }
#endif
}
