// Losses, their gradients and the metrics in one. Each work-item adds to a place of its own in the
// metrics, so that nothing is summed across work-items: rows of so many places, [0] loss (a float's
// bits), [1] predictions that are right, [2] what they weigh (a float's bits; with WEIGHTED alone).
// scale is 1 / what the whole batch weighs.

#ifndef SMOOTH
#define SMOOTH 0 // 1: targets are smoothed
#endif
#ifndef WEIGHTED
#define WEIGHTED 0 // 1: classes have weights
#endif
#ifndef CHUNK
#define CHUNK 16 // vectors that one work-item of an elementwise loss goes over
#endif
#define WEIGHT_PARTS 64 // as in lower/loss.py

// batch_weight[p] = sum of the weights of every WEIGHT_PARTS-th of n labels, from the p-th on
__kernel void weigh_labels(__global const int *labels, __global const float *class_weights,
                           __global float *batch_weight, const int n) {
  const int part = get_global_id(0);
  if (part >= WEIGHT_PARTS)
    return;
  float sum = 0;
  for (int i = part; i < n; i += WEIGHT_PARTS)
    sum += class_weights[labels[i]];
  batch_weight[part] = sum;
}

// Softmax and cross-entropy, a work-item for each prediction: row n / steps, step n % steps of
// logits (rows, classes, steps). With q_i = rest·w_label·[i = label] + smoothing·w_i (w = 1 without
// weights), and mass = their sum, of which smooth_mass comes from smoothing:
//   loss = -Σ q_i · log softmax(z)_i;  dz_i = (softmax(z)_i · mass - q_i) · scale
// Where scale is 0, it is 1 / the sum of batch_weight.
__kernel void cross_entropy(IN(logits), OUT(dlogits), __global const int *labels,
                            __global int *metrics, __global const float *class_weights,
                            __global const float *batch_weight, const int classes,
                            const int steps, const int places, const float rest,
                            const float smoothing, const float smooth_mass, const int n,
                            const float given_scale) {
  const int at = get_global_id(0);
  if (at >= n)
    return;
  OPEN_IN(logits);
  OPEN_OUT(dlogits);
  const int first = at / steps * classes * steps + at % steps;
  logits += first;
  dlogits += first;
  const int label = labels[at];
  float weight = 1, scale = given_scale;
#if WEIGHTED
  weight = class_weights[label];
  if (scale == 0) {
    float sum = 0;
    for (int i = 0; i < WEIGHT_PARTS; i++)
      sum += batch_weight[i];
    scale = 1 / sum;
  }
#endif
  float largest = logits[0], own = 0;
  int predicted = 0;
  for (int i = 0; i < classes; i++) {
    const float z = logits[i * steps];
    if (z > largest) {
      largest = z;
      predicted = i;
    }
    own = i == label ? z : own;
  }
  float sum = 0, smooth = 0;
  for (int i = 0; i < classes; i++) {
    const float z = logits[i * steps] - largest, e = exp(z);
    dlogits[i * steps] = e;
    sum += e;
#if SMOOTH
    smooth += WEIGHTED ? class_weights[i] * z : z;
#endif
  }
  const float target = rest * weight, mass = target + smooth_mass;
  const float inverse = mass * scale / sum;
  for (int i = 0; i < classes; i++) {
    float q = i == label ? target : 0;
#if SMOOTH
    q += WEIGHTED ? smoothing * class_weights[i] : smoothing;
#endif
    dlogits[i * steps] = dlogits[i * steps] * inverse - q * scale;
  }
  const float loss = mass * log(sum) - target * (own - largest) - smoothing * smooth;
  metrics[at] = as_int(as_float(metrics[at]) + loss);
  metrics[places + at] += predicted == label;
#if WEIGHTED
  metrics[2 * places + at] = as_int(as_float(metrics[2 * places + at]) + weight);
#endif
}

// Sigmoid and binary cross-entropy of each element, with labels between 0 and 1:
//   loss = max(z, 0) - z·y + log(1 + exp(-|z|));  dz = (sigmoid(z) - y) · scale
// A work-item goes over CHUNK vectors of a row; right is (z > 0) == (y > 0.5).
__kernel void bce_with_logits(IN(z), OUT(dz), __global const float *labels, __global int *metrics,
                              const int elements, const int parts, const int places,
                              const int count, const float scale) {
  const int part = get_global_id(0), row = get_global_id(1);
  if (part >= parts || row >= count)
    return;
  OPEN_IN(z);
  OPEN_OUT(dz);
  floatv sum = (floatv)0, right = (floatv)0;
  const int end = min((part + 1) * CHUNK * VW, elements);
  for (int i = part * CHUNK * VW; i < end; i += VW) {
    const int at = row * elements + i;
    const floatv x = LOADV(z + at), y = LOADV(labels + at), e = exp(-fabs(x));
    const intv inside = (intv)(LANES < (intv)(elements - i));
    sum += select((floatv)0, relu(x) - x * y + log1p(e), inside);
    const intv same = (intv)((x > (floatv)0) == (y > (floatv)0.5f));
    right += select((floatv)0, select((floatv)0, (floatv)1, same), inside);
    const floatv sigmoid = select(e, (floatv)1, (intv)(x >= (floatv)0)) / ((floatv)1 + e);
    store_first((sigmoid - y) * (floatv)(scale), dz + at, elements - i);
  }
  const int place = row * parts + part;
  metrics[place] = as_int(as_float(metrics[place]) + sum_lanes(sum));
  metrics[places + place] += (int)sum_lanes(right);
}

// Squared error of each element:  loss = (z - y)²;  dz = 2 · (z - y) · scale
__kernel void mse(IN(z), OUT(dz), __global const float *labels, __global int *metrics,
                  const int elements, const int parts, const int places, const int count,
                  const float scale) {
  const int part = get_global_id(0), row = get_global_id(1);
  if (part >= parts || row >= count)
    return;
  OPEN_IN(z);
  OPEN_OUT(dz);
  floatv sum = (floatv)0;
  const int end = min((part + 1) * CHUNK * VW, elements);
  for (int i = part * CHUNK * VW; i < end; i += VW) {
    const int at = row * elements + i;
    const floatv d = LOADV(z + at) - LOADV(labels + at);
    sum += select((floatv)0, d * d, (intv)(LANES < (intv)(elements - i)));
    store_first(d * (floatv)(2 * scale), dz + at, elements - i);
  }
  const int place = row * parts + part;
  metrics[place] = as_int(as_float(metrics[place]) + sum_lanes(sum));
}
