// What the convolutions' kernels are built with alike. Put after common.h.cl, before their sources.

#ifndef GROUPS
#define GROUPS 1 // groups of channels, which have nothing to do with each other
#endif
#ifndef SPLIT
#define SPLIT 1 // examples that one partial sum (gradients of weights) or work-item goes over
#endif
#ifndef TURNED
#define TURNED 0 // 1: the gradient of the input; CI are then the channels of dy, CO those of dx
#endif
#ifndef BIAS
#define BIAS 0 // 1: there is a bias
#endif
#ifndef RELU
#define RELU 0 // 1: max(·, 0) last (forward)
#endif
#ifndef GATE
#define GATE 0 // 1: zero the result where the gate (a ReLU's output) is not positive (dx)
#endif
#ifndef ACCUMULATE
#define ACCUMULATE 0 // 1: add to the result what it holds (dx)
#endif

#define BLOCKS(channels, tile) (((channels) + (tile) - 1) / (tile))

// a / b rounded up, for b > 0.
inline int ceil_div(const int a, const int b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }

// a / b rounded down, for b > 0.
inline int floor_div(const int a, const int b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }
