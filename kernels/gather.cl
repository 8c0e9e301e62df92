// Bring a batch in: examples order[start ...] of a data set on the device.

#ifndef RAW
#define RAW uchar // type of the data: uchar or float
#endif
#ifndef CHANNELS
#define CHANNELS 1 // channels of an example, each with a factor and a shift of its own
#endif
#ifndef LABELS
#define LABELS 1 // 1: an example has one label, which comes along; 0: see gather_labels
#endif
#ifndef SPATIAL
#define SPATIAL 1 // values in a channel
#endif

#if VW == 1
#define RAW_TO_FLOAT(p) ((float)*(p))
#else
#define RAW_TO_FLOAT(p) JOIN(convert_float, VW)(JOIN(vload, VW)(0, p))
#endif

// x = raw · factor + shift, and what gather_rows brings. The rows of data are examples by number
// where chunk_start < 0, else those of a chunk of the epoch's order that begins at chunk_start.
// data has VW values of slack at its end.
__kernel void gather(OUT(x), __global int *examples, __global int *labels, const int count,
                     const int start, const int chunk_start, __global const RAW *data,
                     __global const int *order, __global const int *classes,
                     __global const float *factor, __global const float *shift) {
  const int at = get_global_id(0) * VW, channel = get_global_id(1), row = get_global_id(2);
  if (at >= SPATIAL || channel >= CHANNELS || row >= count)
    return;
  OPEN_OUT(x);
  const int example = order[start + row];
  if (at == 0 && channel == 0) {
    examples[row] = example;
    if (LABELS)
      labels[row] = classes[example];
  }
  const int source = chunk_start < 0 ? example : start + row - chunk_start;
  __global const RAW *raw = data + ((size_t)source * CHANNELS + channel) * SPATIAL + at;
  store_first(RAW_TO_FLOAT(raw) * (floatv)(factor[channel]) + (floatv)(shift[channel]),
              x + (row * CHANNELS + channel) * SPATIAL + at, SPATIAL - at);
}

// Numbers of the batch's examples (dropout counts by them), and their labels if they have one each.
__kernel void gather_rows(__global int *examples, __global int *labels, const int count,
                          const int start, __global const int *order,
                          __global const int *classes) {
  const int row = get_global_id(0);
  if (row >= count)
    return;
  const int example = order[start + row];
  examples[row] = example;
  if (LABELS)
    labels[row] = classes[example];
}

// Several labels for each example, of 4 bytes whatever they are.
__kernel void gather_labels(__global int *labels, const int size, const int count,
                            const int start, __global const int *order,
                            __global const int *data) {
  const int at = get_global_id(0), row = get_global_id(1);
  if (at >= size || row >= count)
    return;
  labels[row * size + at] = data[(size_t)order[start + row] * size + at];
}
