// One step of an optimizer as PyTorch's, on a run of n trained parameters, their gradients, and what
// the optimizer keeps; with FedProx's proximal term, also their values at the round's start:
//   g = clip(grad + mu·(w - w_start))
// where clip multiplies all of the gradient by min(1, clip_norm / (its norm + 1e-6)).

#ifndef PROXIMAL
#define PROXIMAL 0 // 1: there is a proximal term
#endif

#if PROXIMAL
#define GRADIENT(at)                                                                               \
  (LOADV(grads + (at)) + (floatv)(mu) * (LOADV(params + (at)) - LOADV(round_start + (at))))
#else
#define GRADIENT(at) LOADV(grads + (at))
#endif

// Each work-item sums the squares of every parts-th vector of the gradient.
__kernel void clip_squares(IN(params), IN(grads),
#if PROXIMAL
                           IN(round_start),
#endif
                           OUT(sums), const int n, const int parts
#if PROXIMAL
                           ,
                           const float mu
#endif
) {
  const int part = get_global_id(0);
  if (part >= parts)
    return;
  OPEN_IN(grads);
#if PROXIMAL
  OPEN_IN(params);
  OPEN_IN(round_start);
#endif
  OPEN_OUT(sums);
  floatv sum = (floatv)0;
  for (int at = part * VW; at < n; at += parts * VW) {
    const floatv g = GRADIENT(at);
    sum += select((floatv)0, g * g, (intv)(LANES < (intv)(n - at)));
  }
  sums[part] = sum_lanes(sum);
}

// By one work-item. "Not a number" stays what it is.
__kernel void clip_factor(IN(sums), __global float *factor, const int parts,
                          const float clip_norm) {
  OPEN_IN(sums);
  floatv sum = (floatv)0;
  for (int at = 0; at < parts; at += VW)
    sum += select((floatv)0, LOADV(sums + at), (intv)(LANES < (intv)(parts - at)));
  const float ratio = clip_norm / (sqrt(sum_lanes(sum)) + 1e-6f);
  *factor = ratio > 1 ? 1 : ratio;
}

// g += decay·w;  v = momentum·v + g;  w -= lr · (nesterov ? g + momentum·v : v)
__kernel void sgd(OUT(params), IN(grads), OUT(velocity),
#if PROXIMAL
                  IN(round_start),
#endif
                  __global const float *factor, const int n, const float lr, const float momentum,
                  const int nesterov, const float decay, const int clipped
#if PROXIMAL
                  ,
                  const float mu
#endif
) {
  const int at = get_global_id(0) * VW;
  if (at >= n)
    return;
  OPEN_OUT(params);
  OPEN_IN(grads);
  OPEN_OUT(velocity);
#if PROXIMAL
  OPEN_IN(round_start);
#endif
  const int left = n - at;
  const floatv w = LOADV(params + at);
  floatv g = GRADIENT(at);
  if (clipped)
    g *= (floatv)(*factor);
  if (decay != 0)
    g += (floatv)(decay) * w;
  if (momentum != 0) {
    const floatv v = (floatv)(momentum) * LOADV(velocity + at) + g;
    store_first(v, velocity + at, left);
    g = nesterov ? g + (floatv)(momentum) * v : v;
  }
  store_first(w - (floatv)(lr) * g, params + at, left);
}

// g += decay·w;  m = a·m + (1-a)·g;  s = b·s + (1-b)·g²;
// w = keep·w - m_scale · m / (s_scale·√s + eps)
// Adam has a decay, AdamW keep = 1 - lr·decay. What is 1 - ... comes with all its digits.
__kernel void adam(OUT(params), IN(grads), OUT(mean), OUT(squares),
#if PROXIMAL
                   IN(round_start),
#endif
                   __global const float *factor, const int n, const float a, const float rest_a,
                   const float b, const float rest_b, const float eps, const float decay,
                   const float keep, const int clipped, const float m_scale, const float s_scale
#if PROXIMAL
                   ,
                   const float mu
#endif
) {
  const int at = get_global_id(0) * VW;
  if (at >= n)
    return;
  OPEN_OUT(params);
  OPEN_IN(grads);
  OPEN_OUT(mean);
  OPEN_OUT(squares);
#if PROXIMAL
  OPEN_IN(round_start);
#endif
  const int left = n - at;
  const floatv w = LOADV(params + at);
  floatv g = GRADIENT(at);
  if (clipped)
    g *= (floatv)(*factor);
  if (decay != 0)
    g += (floatv)(decay) * w;
  const floatv m = (floatv)(a) * LOADV(mean + at) + (floatv)(rest_a) * g;
  const floatv s = (floatv)(b) * LOADV(squares + at) + (floatv)(rest_b) * g * g;
  store_first(m, mean + at, left);
  store_first(s, squares + at, left);
  const floatv step = (floatv)(m_scale) * m / ((floatv)(s_scale) * sqrt(s) + (floatv)(eps));
  store_first((floatv)(keep) * w - step, params + at, left);
}

// A batch in slices: to = from, or to += from.
__kernel void accumulate(IN(from), OUT(to), const int n, const int add) {
  const int at = get_global_id(0) * VW;
  if (at >= n)
    return;
  OPEN_IN(from);
  OPEN_OUT(to);
  const floatv v = LOADV(from + at);
  store_first(add ? LOADV(to + at) + v : v, to + at, n - at);
}
