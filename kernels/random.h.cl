// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011); the same
// words as client/random.py.
inline uint4 philox4x32(uint4 c, uint2 k) {
  for (int i = 0; i < 10; i++) {
    const uint high0 = mul_hi(0xD2511F53u, c.x), low0 = 0xD2511F53u * c.x;
    const uint high1 = mul_hi(0xCD9E8D57u, c.z), low1 = 0xCD9E8D57u * c.z;
    c = (uint4)(high1 ^ c.y ^ k.x, low1, high0 ^ c.w ^ k.y, low0);
    k += (uint2)(0x9E3779B9u, 0xBB67AE85u);
  }
  return c;
}
