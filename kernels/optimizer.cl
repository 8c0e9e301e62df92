// One step of SGD as PyTorch's, with FedProx's proximal term, on flat buffers of n elements:
//   g += decay·w + mu·(w - w_start);  v = momentum·v + g;  w -= lr · (nesterov ? g + momentum·v : v)
__kernel void sgd(__global float *params, __global const float *grads, __global float *velocity,
                  __global const float *round_start, const int n, const float lr,
                  const float momentum, const int nesterov, const float decay, const float mu) {
  const int at = get_global_id(0) * VW;
  if (at >= n)
    return;
  const int left = n - at;
  const floatv w = LOADV(params + at);
  floatv g = LOADV(grads + at);
  if (decay != 0)
    g += (floatv)(decay) * w;
  if (mu != 0)
    g += (floatv)(mu) * (w - LOADV(round_start + at));
  if (momentum != 0) {
    const floatv v = (floatv)(momentum) * LOADV(velocity + at) + g;
    store_first(v, velocity + at, left);
    g = nesterov ? g + (floatv)(momentum) * v : v;
  }
  store_first(w - (floatv)(lr) * g, params + at, left);
}
