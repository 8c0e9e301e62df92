// Layers for sequences that have no state: embedding, the last of the steps, transposition.

#ifndef ACCUMULATE
#define ACCUMULATE 0 // 1: add to the output what it holds (backward passes)
#endif

// y[row, :] = weight[x[row], :], rows of dim values; x holds whole numbers below vocabulary. What
// is no token (a tensor that was never written) reads row 0 or the last one, nothing outside.
__kernel void embedding_forward(IN(x), IN(weight), OUT(y), const int rows, const int vocabulary,
                                const int dim) {
  const int at = get_global_id(0) * VW, row = get_global_id(1);
  if (at >= dim || row >= rows)
    return;
  OPEN_IN(x);
  OPEN_IN(weight);
  OPEN_OUT(y);
  const int token = clamp((int)fmax(x[row], 0.0f), 0, vocabulary - 1);
  store_first(LOADV(weight + token * dim + at), y + row * dim + at, dim - at);
}

#define SUM_ROWS 1024 // rows that are summed up by themselves: longer sums round more

// partial[split][token, :] = sum of dy[row, :] over the rows of a split with that token, in their
// order. Each work-item looks through the rows for its own token: no two write to one place.
__kernel void embedding_backward(IN(x), IN(dy), OUT(partial), const int rows, const int vocabulary,
                                 const int dim, const int split_rows) {
  const int at = get_global_id(0) * VW, token = get_global_id(1), split = get_global_id(2);
  if (at >= dim || token >= vocabulary)
    return;
  OPEN_IN(x);
  OPEN_IN(dy);
  OPEN_OUT(partial);
  const int stop = min((split + 1) * split_rows, rows);
  floatv total = (floatv)0;
  for (int begin = split * split_rows; begin < stop; begin += SUM_ROWS) {
    const int end = min(begin + SUM_ROWS, stop);
    floatv sum = (floatv)0;
    for (int row = begin; row < end; row += VW) {
#if VW > 1
      if (!any(LOADV(x + row) == (floatv)((float)token)))
        continue;
#endif
      for (int i = row; i < min(row + VW, end); i++)
        if (x[i] == token)
          sum += LOADV(dy + i * dim + at);
    }
    total += sum;
  }
  store_first(total, partial + (split * vocabulary + token) * dim + at, dim - at);
}

// y[row, :] = x[row, steps - 1, :]
__kernel void last_step_forward(IN(x), OUT(y), const int rows, const int steps,
                                const int features) {
  const int at = get_global_id(0) * VW, row = get_global_id(1);
  if (at >= features || row >= rows)
    return;
  OPEN_IN(x);
  OPEN_OUT(y);
  store_first(LOADV(x + ((row + 1) * steps - 1) * features + at), y + row * features + at,
              features - at);
}

// dx[row, t, :] = dy[row, :] at the last step, else zero.
__kernel void last_step_backward(IN(dy), OUT(dx), const int rows, const int steps,
                                 const int features) {
  const int at = get_global_id(0) * VW, t = get_global_id(1), row = get_global_id(2);
  if (at >= features || t >= steps || row >= rows)
    return;
  OPEN_IN(dy);
  OPEN_OUT(dx);
  floatv value = (floatv)0;
  if (t == steps - 1)
    value = LOADV(dy + row * features + at);
  dx += (row * steps + t) * features + at;
#if ACCUMULATE
  value += LOADV(dx);
#endif
  store_first(value, dx, features - at);
}

// y[n, j, i] = x[n, i, j] for rows x columns matrices. A work-item goes down VW rows, so that both
// sides' lines are still in the cache when they are needed again.
__kernel void transpose(IN(x), OUT(y), const int count, const int rows, const int columns) {
  const int j = get_global_id(0), first = get_global_id(1) * VW, n = get_global_id(2);
  if (j >= columns || first >= rows || n >= count)
    return;
  OPEN_IN(x);
  OPEN_OUT(y);
  x += n * rows * columns;
  y += n * rows * columns + j * rows;
  for (int i = first; i < min(first + VW, rows); i++) {
#if ACCUMULATE
    y[i] += x[i * columns + j];
#else
    y[i] = x[i * columns + j];
#endif
  }
}
