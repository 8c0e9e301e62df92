// packed[b, m, j, lane] = x[m, b·VW + lane, j]: of matrices [m, rows, columns], VW rows at a time lie
// side by side, so that a vector holds one column of them. Lanes beyond the last row hold it again.
// A work-item packs VW columns, whose lines are still in the cache for the next one.
__kernel void interleave(IN(x), OUT(packed), const int matrices, const int rows,
                         const int columns) {
  const int first = get_global_id(0) * VW, row0 = get_global_id(1) * VW, m = get_global_id(2);
  if (first >= columns || row0 >= rows || m >= matrices)
    return;
  OPEN_IN(x);
  OPEN_OUT(packed);
  __global const float *row[VW];
  for (int lane = 0; lane < VW; lane++)
    row[lane] = x + (m * rows + min(row0 + lane, rows - 1)) * columns;
  packed += (row0 / VW * matrices + m) * columns * VW;
  for (int j = first; j < min(first + VW, columns); j++) {
    float lanes[VW];
    for (int lane = 0; lane < VW; lane++)
      lanes[lane] = row[lane][j];
    STOREV(LOADV(lanes), packed + j * VW);
  }
}
