// General matrix product with a register tile in each work-item:
//   C[m, n] = A·B, with an epilogue; C is row-major. Sizes come at run time, so that all layers of a
// model share one program for each of:
// linear forward          Y = X·Wᵀ + b       B_TRANS, BIAS; relu_last: max(·, 0) last
// linear, input gradient  dX = dY·W          perhaps GATE or ACCUMULATE
// linear, weight gradient dW = dYᵀ·X         A_TRANS, ROW_SUM: db = sum of dY over the batch
//
// Where B is transposed, both operands run along k: vectors go along k, and their lanes are summed
// at the end. Elsewhere vectors go along n and A is broadcast. No local memory, no barriers.

#ifndef TM
#define TM 4 // rows of C in a work-item's tile
#endif
#ifndef TN
#define TN 4 // columns of C in a tile: scalars if B_TRANS, else vectors of VW
#endif
#ifndef A_TRANS
#define A_TRANS 0 // 1: A is stored as [k, m]
#endif
#ifndef B_TRANS
#define B_TRANS 0 // 1: B is stored as [n, k]
#endif
#ifndef ROWS_FIRST
#define ROWS_FIRST 0 // 1: neighbouring work-items go down the rows of C, which keeps B in the cache
#endif
#ifndef BIAS
#define BIAS 0 // 1: add bias[n] to every row (B_TRANS)
#endif
#ifndef GATE
#define GATE 0 // 1: zero C where gate (shaped as C, a ReLU's output) is not positive
#endif
#ifndef ACCUMULATE
#define ACCUMULATE 0 // 1: add to C what it holds
#endif
#ifndef K_BLOCK
#define K_BLOCK 0 // > 0: a work-item goes down all rows of C, by so many terms at a time (ROWS_FIRST)
#endif
#ifndef ROW_SUM
#define ROW_SUM 0 // 1: row_sum[m] = sum over k of A (A_TRANS)
#endif

__kernel void gemm(IN(a), IN(b),
#if B_TRANS
                   const int relu_last,
#endif
#if BIAS
                   IN(bias),
#endif
#if GATE
                   IN(gate),
#endif
#if ROW_SUM
                   OUT(row_sum),
#endif
                   OUT(c), const int m, const int n, const int k) {
  OPEN_IN(a);
  OPEN_IN(b);
  OPEN_OUT(c);
#if B_TRANS
  const int row0 = get_global_id(!ROWS_FIRST) * TM, col0 = get_global_id(ROWS_FIRST) * TN;
  if (row0 >= m || col0 >= n)
    return;
  // Rows and columns beyond the edge compute the last one again and are not stored.
  __global const float *a_row[TM], *b_row[TN];
#pragma unroll
  for (int i = 0; i < TM; i++)
    a_row[i] = a + min(row0 + i, m - 1) * k;
#pragma unroll
  for (int j = 0; j < TN; j++)
    b_row[j] = b + min(col0 + j, n - 1) * k;
  floatv acc[TM][TN];
#pragma unroll
  for (int i = 0; i < TM; i++)
#pragma unroll
    for (int j = 0; j < TN; j++)
      acc[i][j] = (floatv)0;
  int p = 0;
  for (; p + VW <= k; p += VW) {
    floatv bv[TN];
#pragma unroll
    for (int j = 0; j < TN; j++)
      bv[j] = LOADV(b_row[j] + p);
#pragma unroll
    for (int i = 0; i < TM; i++) {
      const floatv av = LOADV(a_row[i] + p);
#pragma unroll
      for (int j = 0; j < TN; j++)
        acc[i][j] += av * bv[j];
    }
  }
  if (p < k) {
    const intv inside = (intv)(LANES < (intv)(k - p));
    floatv bv[TN];
#pragma unroll
    for (int j = 0; j < TN; j++)
      bv[j] = select((floatv)0, LOADV(b_row[j] + p), inside);
#pragma unroll
    for (int i = 0; i < TM; i++) {
      const floatv av = select((floatv)0, LOADV(a_row[i] + p), inside);
#pragma unroll
      for (int j = 0; j < TN; j++)
        acc[i][j] += av * bv[j];
    }
  }
#if BIAS
  OPEN_IN(bias);
#endif
#pragma unroll
  for (int j = 0; j < TN; j++) {
    if (col0 + j >= n)
      break;
#pragma unroll
    for (int i = 0; i < TM; i++) {
      float value = sum_lanes(acc[i][j]);
#if BIAS
      value += bias[col0 + j];
#endif
      value = relu_last && value < 0 ? 0 : value;
      if (row0 + i < m)
        c[(row0 + i) * n + col0 + j] = value;
    }
  }
#else
  const int col0 = get_global_id(ROWS_FIRST) * (TN * VW);
#if A_TRANS
  const int a_step = m;
#else
  const int a_step = 1;
#endif
#if K_BLOCK
  if (get_global_id(0) > 0 || col0 >= n)
    return;
  // Rows of a wide B lie pages apart: the block's pages are found once for all rows of C, whose sums
  // wait in C itself from one block to the next.
  for (int k0 = 0; k0 < k; k0 += K_BLOCK)
    for (int row0 = 0; row0 < m; row0 += TM) {
      const int k_end = min(k0 + K_BLOCK, k);
#else
  const int row0 = get_global_id(!ROWS_FIRST) * TM, k0 = 0, k_end = k;
  if (row0 >= m || col0 >= n)
    return;
#endif
  int a_at[TM], col[TN];
#pragma unroll
  for (int i = 0; i < TM; i++)
    a_at[i] = min(row0 + i, m - 1) * (A_TRANS ? 1 : k);
#pragma unroll
  for (int j = 0; j < TN; j++)
    col[j] = min(col0 + j * VW, n - 1);
  floatv acc[TM][TN];
#pragma unroll
  for (int i = 0; i < TM; i++)
#pragma unroll
    for (int j = 0; j < TN; j++)
      acc[i][j] = k0 > 0 ? LOADV(c + min(row0 + i, m - 1) * n + col[j]) : (floatv)0;
  for (int p = k0; p < k_end; p++) {
    floatv bv[TN];
#pragma unroll
    for (int j = 0; j < TN; j++)
      bv[j] = LOADV(b + p * n + col[j]);
#pragma unroll
    for (int i = 0; i < TM; i++) {
      const floatv av = (floatv)(a[a_at[i] + p * a_step]);
#pragma unroll
      for (int j = 0; j < TN; j++)
        acc[i][j] += av * bv[j];
    }
  }
#if GATE
  OPEN_IN(gate);
#endif
#pragma unroll
  for (int i = 0; i < TM; i++) {
    if (row0 + i >= m)
      break;
#pragma unroll
    for (int j = 0; j < TN; j++) {
      const int left = n - (col0 + j * VW), at = (row0 + i) * n + col[j];
      floatv value = acc[i][j];
#if GATE
      if (k_end == k)
        value = relu_gate(LOADV(gate + at), value);
#endif
#if ACCUMULATE
      value += LOADV(c + at);
#endif
      if (left > 0)
        store_first(value, c + at, left);
    }
  }
#if K_BLOCK
    }
#endif
#if ROW_SUM
  if (col0 == 0) {
    OPEN_OUT(row_sum);
    for (int i = 0; i < TM && row0 + i < m; i++) {
      float sum = 0;
      for (int p = 0; p < k; p++)
        sum += a[a_at[i] + p * a_step];
      row_sum[row0 + i] = sum;
    }
  }
#endif
#endif
}
