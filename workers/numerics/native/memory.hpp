// One piece of memory for all that a call needs, and how the processor treats the smallest numbers while it lasts.
#pragma once
#include <cstddef>
#include <cstring>
#include <new>

#include "registers.hpp"
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace registers {

// Hands out pieces one after another. A layout is run twice: first without memory, to learn how much it takes.
class Memory {
  public:
    Memory() = default;
    explicit Memory(std::size_t bytes) : start_(static_cast<char *>(operator new(bytes, std::align_val_t(LINE_BYTES)))) {
        std::memset(start_, 0, bytes); // padding of rows is never read as numbers of the model, but is computed with
    }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
    ~Memory() { release(); }

    // So many bytes to hand out from the start. If there are as many already they are kept as they are, unless they are
    // to be `cleared`: the system clears each page that it gives, which costs large models more than their update.
    void begin(std::size_t bytes, bool cleared) {
        if (bytes != bytes_) {
            release();
            start_ = static_cast<char *>(operator new(bytes, std::align_val_t(LINE_BYTES)));
            bytes_ = bytes, cleared = true;
        }
#if defined(__SANITIZE_ADDRESS__)
        __asan_unpoison_memory_region(start_, bytes_);
#endif
        if (cleared) std::memset(start_, 0, bytes_);
        used_ = 0;
    }

    template <typename T> T *take(std::size_t count) {
        T *piece = start_ ? reinterpret_cast<T *>(start_ + used_) : nullptr;
        // A register may be read past a row's end, so every piece has one to spare.
        used_ += (count * sizeof(T) + REGISTER_BYTES + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
#if defined(__SANITIZE_ADDRESS__)
        if (start_) __asan_poison_memory_region(start_ + used_, LINE_BYTES); // so that no piece runs into the next
        used_ += LINE_BYTES;
#endif
        return piece;
    }
    std::size_t used() const { return used_; }

  private:
    char *start_ = nullptr;
    std::size_t used_ = 0, bytes_ = 0;

    void release() {
        if (start_) operator delete(start_, std::align_val_t(LINE_BYTES));
        start_ = nullptr, bytes_ = 0;
    }
};

// While it lives, numbers below the smallest normal one are zero in this thread: each of them costs a hundred cycles, and
// gradients of a fitted model are full of them. What the thread had before holds again afterwards.
class FlushToZero {
  public:
#if defined(__SSE__)
    FlushToZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); } // flush results, and take operands for zero
    ~FlushToZero() { _mm_setcsr(before_); }

  private:
    unsigned before_;
#elif defined(__aarch64__)
    FlushToZero() {
        asm volatile("mrs %0, fpcr" : "=r"(before_));
        asm volatile("msr fpcr, %0" ::"r"(before_ | (uint64_t(1) << 24)));
    }
    ~FlushToZero() { asm volatile("msr fpcr, %0" ::"r"(before_)); }

  private:
    uint64_t before_;
#endif
};

} // namespace registers
