// What all kernels share: vectors of VW floats under one name, and how a tensor is passed.
// Put before every other source.
//
// A tensor is passed as a buffer and the place in it where the tensor begins, in elements, since
// parameters and activations of all layers lie in a few large buffers. Each buffer has at least
// 64 elements of slack after its last tensor, and the activations' buffer also before its first,
// so that a vector load may reach over the end of a row; lanes that lie outside are never used.

#ifndef VW
#define VW 4 // floats in a vector: 1, 2, 4, 8 or 16; what the device's registers hold
#endif

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

#define IN(name) __global const float *name##_buffer, const int name##_start
#define OUT(name) __global float *name##_buffer, const int name##_start
#define OPEN_IN(name) __global const float *name = name##_buffer + name##_start
#define OPEN_OUT(name) __global float *name = name##_buffer + name##_start

#if VW == 1
typedef float floatv;
typedef int intv;
#define LOADV(p) (*(p))
#define STOREV(v, p) (*(p) = (v))
#define LANES 0
#else
typedef JOIN(float, VW) floatv;
typedef JOIN(int, VW) intv;
#define LOADV(p) JOIN(vload, VW)(0, p)
#define STOREV(v, p) JOIN(vstore, VW)(v, 0, p)
#define EVEN_LANES(a, b) ((floatv)((a).even, (b).even))
// Each lane twice, from the first one on: 0 0 1 1 2 2 ..., or 0 1 1 2 2 3 ...
#if VW == 2
#define LANES ((intv)(0, 1))
#define TWICE(v) (v).s00
#define TWICE_FROM_HALF(v) (v).s01
#elif VW == 4
#define LANES ((intv)(0, 1, 2, 3))
#define TWICE(v) (v).s0011
#define TWICE_FROM_HALF(v) (v).s0112
#elif VW == 8
#define LANES ((intv)(0, 1, 2, 3, 4, 5, 6, 7))
#define TWICE(v) (v).s00112233
#define TWICE_FROM_HALF(v) (v).s01122334
#else
#define LANES ((intv)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
#define TWICE(v) (v).s0011223344556677
#define TWICE_FROM_HALF(v) (v).s0112233445566778
#endif
#endif

// Sum of all lanes, in a fixed order.
inline float sum_lanes(const floatv v) {
#if VW == 1
  return v;
#else
#if VW == 16
  const float8 v8 = v.lo + v.hi;
#elif VW == 8
  const float8 v8 = v;
#endif
#if VW >= 8
  const float4 v4 = v8.lo + v8.hi;
#elif VW == 4
  const float4 v4 = v;
#endif
#if VW >= 4
  const float2 v2 = v4.lo + v4.hi;
#else
  const float2 v2 = v;
#endif
  return v2.x + v2.y;
#endif
}

// Store the first n lanes (all of them where n >= VW).
inline void store_first(const floatv v, __global float *p, const int n) {
  if (n >= VW) {
    STOREV(v, p);
    return;
  }
#if VW == 16
  float8 v8 = v.lo;
  if (n & 8) {
    vstore8(v8, 0, p);
    p += 8;
    v8 = v.hi;
  }
#elif VW == 8
  const float8 v8 = v;
#endif
#if VW >= 8
  float4 v4 = v8.lo;
  if (n & 4) {
    vstore4(v4, 0, p);
    p += 4;
    v4 = v8.hi;
  }
#elif VW == 4
  const float4 v4 = v;
#endif
#if VW >= 4
  float2 v2 = v4.lo;
  if (n & 2) {
    vstore2(v2, 0, p);
    p += 2;
    v2 = v4.hi;
  }
#elif VW == 2
  const float2 v2 = v;
#endif
#if VW >= 2
  if (n & 1)
    *p = v2.x;
#endif
}

// max(x, 0) that lets "not a number" through, so that a diverged training is seen.
inline floatv relu(const floatv x) { return select(x, (floatv)0, (intv)(x < (floatv)0)); }

// Gradient through a ReLU whose output was y.
inline floatv relu_gate(const floatv y, const floatv dy) {
  return select(dy, (floatv)0, (intv)(y <= (floatv)0));
}

// Columns first, first + stride, first + 2·stride, ... of a row of width columns. Lanes outside
// the row hold anything. stride is a constant.
inline floatv load_strided(__global const float *row, const int first, const int stride,
                           const int width) {
  if (stride == 1)
    return LOADV(row + clamp(first, -VW, width));
#if VW > 1
  if (stride == 2) {
    __global const float *p = row + clamp(first, -2 * VW, width);
    return EVEN_LANES(LOADV(p), LOADV(p + VW));
  }
#endif
  float lane[VW];
  for (int i = 0; i < VW; i++)
    lane[i] = row[clamp(first + i * stride, 0, width - 1)];
  return LOADV(lane);
}

// Columns first / stride, (first + 1) / stride, ... of a row of width columns, rounded down. Lanes
// outside the row hold anything. stride is a constant.
inline floatv load_spread(__global const float *row, const int first, const int stride,
                          const int width) {
  const int begin = (first < 0 ? first - stride + 1 : first) / stride;
  const int rest = first - begin * stride;
  if (stride == 1)
    return LOADV(row + clamp(begin, -VW, width));
#if VW > 1
  if (stride == 2) {
    const floatv v = LOADV(row + clamp(begin, -VW, width));
    return rest ? TWICE_FROM_HALF(v) : TWICE(v);
  }
#endif
  float lane[VW];
  for (int i = 0; i < VW; i++)
    lane[i] = row[clamp(begin + (rest + i) / stride, 0, width - 1)];
  return LOADV(lane);
}

// Which of first, first + step, ... lie in [0, width).
inline intv in_row(const int first, const int step, const int width) {
  const intv column = (intv)(first) + LANES * (intv)(step);
  return (intv)((column >= (intv)0) & (column < (intv)(width)));
}
