// Activations other than ReLU, element by element: n elements, VW for each work-item. VALUE and
// SLOPE name one's functions, which stand below, of x and the one setting that a layer may have.
// The value of "not a number" is "not a number", so that a diverged training is seen.

#ifndef VALUE
#define VALUE relu6_value // the function
#endif
#ifndef SLOPE
#define SLOPE relu6_slope // its derivative
#endif
#ifndef GATE
#define GATE 0 // 1: zero dx where x (a ReLU's output) is not positive (backward)
#endif
#ifndef ACCUMULATE
#define ACCUMULATE 0 // 1: add to dx what it holds (backward)
#endif

inline floatv choose(const intv condition, const floatv yes, const floatv no) {
  return select(no, yes, condition);
}

// min(max(x, 0), 6)
inline floatv relu6_value(const floatv x, const float setting) {
  return choose((intv)(x > (floatv)6), (floatv)6, relu(x));
}

inline floatv relu6_slope(const floatv x, const float setting) {
  return choose((intv)((x <= (floatv)0) | (x >= (floatv)6)), (floatv)0, (floatv)1);
}

// x where it is positive, else setting·x
inline floatv leaky_relu_slope(const floatv x, const float setting) {
  return choose((intv)(x > (floatv)0), (floatv)1, (floatv)(setting));
}

inline floatv leaky_relu_value(const floatv x, const float setting) {
  return x * leaky_relu_slope(x, setting);
}

// The distribution function of the normal distribution.
inline floatv normal_cdf(const floatv x) {
  return (floatv)(0.5f) * ((floatv)1 + erf(x * (floatv)(M_SQRT1_2_F)));
}

// x·Φ(x); its slope is Φ(x) + x·φ(x)
inline floatv gelu_value(const floatv x, const float setting) { return x * normal_cdf(x); }

inline floatv gelu_slope(const floatv x, const float setting) {
  const floatv density = (floatv)(0.5f * M_2_SQRTPI_F * M_SQRT1_2_F) * exp((floatv)(-0.5f) * x * x);
  return normal_cdf(x) + x * density;
}

// 1 / (1 + exp(-x)); one minus it is that of -x, without the digits a subtraction would lose.
inline floatv sigmoid_value(const floatv x, const float setting) {
  const floatv e = exp(-fabs(x));
  return choose((intv)(x > (floatv)0), (floatv)1, e) / ((floatv)1 + e);
}

inline floatv sigmoid_slope(const floatv x, const float setting) {
  return sigmoid_value(x, setting) * sigmoid_value(-x, setting);
}

// x·sigmoid(x)
inline floatv silu_value(const floatv x, const float setting) {
  return x * sigmoid_value(x, setting);
}

inline floatv silu_slope(const floatv x, const float setting) {
  return sigmoid_value(x, setting) * ((floatv)1 + x * sigmoid_value(-x, setting));
}

// x·min(max(x + 3, 0), 6) / 6
inline floatv hardswish_value(const floatv x, const float setting) {
  return x * relu6_value(x + (floatv)3, setting) / (floatv)6;
}

inline floatv hardswish_slope(const floatv x, const float setting) {
  const floatv middle = x / (floatv)3 + (floatv)(0.5f);
  const floatv above = choose((intv)(x >= (floatv)3), (floatv)1, middle);
  return choose((intv)(x <= (floatv)(-3)), (floatv)0, above);
}

inline floatv tanh_value(const floatv x, const float setting) { return tanh(x); }

inline floatv tanh_slope(const floatv x, const float setting) {
  const floatv y = tanh(x);
  return (floatv)1 - y * y;
}

// y = f(x)
__kernel void nonlinear_forward(IN(x), OUT(y), const int n, const float setting) {
  const int at = get_global_id(0) * VW;
  if (at >= n)
    return;
  OPEN_IN(x);
  OPEN_OUT(y);
  store_first(VALUE(LOADV(x + at), setting), y + at, n - at);
}

// dx = dy · f'(x); dx may be dy.
__kernel void nonlinear_backward(IN(x), IN(dy), OUT(dx), const int n, const float setting) {
  const int at = get_global_id(0) * VW;
  if (at >= n)
    return;
  OPEN_IN(x);
  OPEN_IN(dy);
  OPEN_OUT(dx);
  const floatv xv = LOADV(x + at);
  floatv value = LOADV(dy + at) * SLOPE(xv, setting);
#if GATE
  value = relu_gate(xv, value);
#endif
#if ACCUMULATE
  value += LOADV(dx + at);
#endif
  store_first(value, dx + at, n - at);
}
