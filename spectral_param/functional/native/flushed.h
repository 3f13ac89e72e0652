// Numbers too small for full precision are taken for zero while this is there, in the thread that made it: states and
// gradients that vanish pass through them, and some processors take a hundred times as long there.
#pragma once
#if defined(__SSE__)
#include <xmmintrin.h>
class Flushed {
  const unsigned before = _mm_getcsr();

 public:
  Flushed() { _mm_setcsr(before | 0x8040); }  // results, and what is read
  ~Flushed() { _mm_setcsr(before); }
};
#elif defined(__aarch64__)
#include <cstdint>
class Flushed {
  uint64_t before;

 public:
  Flushed() {
    asm volatile("mrs %0, fpcr" : "=r"(before));
    asm volatile("msr fpcr, %0" ::"r"(before | (1ull << 24)));
  }
  ~Flushed() { asm volatile("msr fpcr, %0" ::"r"(before)); }
};
#else
struct Flushed {
  Flushed() {}
};
#endif
