// Softmax, cross-entropy, its gradient and the metrics in one: a work-item for each row.
//   loss = log(sum exp(z)) - z[label];  dz = (softmax(z) - onehot(label)) · scale
// Row r adds to place r of the metrics, so that nothing is summed across work-items:
// metrics[0][r] loss (a float's bits), [1][r] correct, [2][r] examples; rows of capacity.
__kernel void cross_entropy(IN(logits), OUT(dlogits), __global const int *labels,
                            __global int *metrics, const int classes, const int capacity,
                            const float scale, const int count) {
  const int row = get_global_id(0);
  if (row >= count)
    return;
  OPEN_IN(logits);
  OPEN_OUT(dlogits);
  logits += row * classes;
  dlogits += row * classes;
  const int label = labels[row];
  float largest = logits[0], own = 0;
  int predicted = 0;
  for (int i = 0; i < classes; i++) {
    if (logits[i] > largest) {
      largest = logits[i];
      predicted = i;
    }
    own = i == label ? logits[i] : own;
  }
  float sum = 0;
  for (int i = 0; i < classes; i++) {
    const float e = exp(logits[i] - largest);
    dlogits[i] = e;
    sum += e;
  }
  const float inverse = scale / sum;
  for (int i = 0; i < classes; i++)
    dlogits[i] = dlogits[i] * inverse - (i == label ? scale : 0);
  metrics[row] = as_int(as_float(metrics[row]) + (log(sum) - (own - largest)));
  metrics[capacity + row] += predicted == label;
  metrics[2 * capacity + row] += 1;
}
