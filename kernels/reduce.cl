// out[i] = partial[0][i] + partial[1][i] + ... in that order; rows of n elements.
__kernel void sum_partials(IN(partial), OUT(out), const int rows, const int n) {
  const int at = get_global_id(0) * VW;
  if (at >= n)
    return;
  OPEN_IN(partial);
  OPEN_OUT(out);
  floatv sum = LOADV(partial + at);
  for (int i = 1; i < rows; i++)
    sum += LOADV(partial + i * n + at);
  store_first(sum, out + at, n - at);
}
