// Random words, exponential and logarithm, number by number: the same as splitmix.hpp and minimal.hpp of
// workers/numerics/native. What is rounded once says so; compilers are told to fuse nothing by themselves
// (--fmad=false, -ffp-contract=off).
#pragma once
#include "threads.hpp"

constexpr Word GOLDEN = 0x9E3779B97F4A7C15ull;

__device__ inline Word mixed(Word z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}
// Word i, from 0, of the stream with this state.
__device__ inline Word word_of(Word state, Word i) { return mixed(state + (i + 1) * GOLDEN); }
// As Streams.of of workers/numerics/randomness.py.
enum Purpose { TRAINING_DATA = 2, DROPOUT = 4 };
__device__ inline Word stream_of(Word seed, Purpose purpose, int site, Word step) {
    const Word tagged = mixed(seed + (Word(purpose) + 256 * Word(site)) * GOLDEN);
    return mixed(tagged + step * GOLDEN);
}

// A dropout site of a lane at a step, as dropout_streams_and_thresholds: an element is kept if its byte of the stream is
// not below the threshold.
struct DropoutSite {
    Word state = 0;
    int threshold = 0;
    __device__ DropoutSite() {}
    __device__ DropoutSite(Word stream, double rate) : state(stream + GOLDEN) {
        const double dither = (double(word_of(stream, 0) >> 11) + 0.5) * (1.0 / 9007199254740992.0); // 2^-53
        threshold = int(256 * rate + dither);
    }
    __device__ bool keeps(int index) const {
        return int(word_of(state, Word(index >> 3)) >> 8 * (index & 7) & 255) >= threshold;
    }
};

// What a site keeps of so many elements from `start` on, a byte each: eight bytes of a word at a time.
__device__ inline void draw_mask(Byte *keep, const DropoutSite &site, int start, int count) {
    const int first = start >> 3, last = (start + count - 1) >> 3;
    each(last - first + 1, [&](int n) {
        const Word word = word_of(site.state, Word(first + n));
        for (int byte = 0; byte < 8; byte++) {
            const int i = (first + n) * 8 + byte - start;
            if (i >= 0 && i < count) keep[i] = int(word >> 8 * byte & 255) >= site.threshold;
        }
    });
}

// e^x for x <= 0; what is below the smallest normal number comes out as it.
__device__ inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    const float shifted = multiply_add(x, 1.44269504f, 12582912.0f); // 1.5 * 2^23: rounds to the nearest integer
    const float whole = shifted - 12582912.0f;
    const float r = multiply_add(whole, 2.12194440e-4f, multiply_add(whole, -0.693359375f, x));
    float p = 1.0f / 5040;
    p = multiply_add(p, r, 1.0f / 720);
    p = multiply_add(p, r, 1.0f / 120);
    p = multiply_add(p, r, 1.0f / 24);
    p = multiply_add(p, r, 1.0f / 6);
    p = multiply_add(p, r, 0.5f);
    p = multiply_add(p, r, 1.0f);
    p = multiply_add(p, r, 1.0f);
    // What is no number has no exponent; p is none either.
    const int exponent = whole > -128.0f ? int(whole) : 0;
    return p * as_float((exponent + 127) << 23);
}
// ln x for x >= 1; the bits of what is no number would look like one: x - x keeps it.
__device__ inline float logarithm(float x) {
    const int bits = as_int(x), exponent = (bits - 0x3F3504F3) >> 23;
    const float m = as_float(bits - (exponent << 23));
    const float t = (m - 1.0f) / (m + 1.0f), square = t * t;
    float p = 2.0f / 9;
    p = multiply_add(p, square, 2.0f / 7);
    p = multiply_add(p, square, 2.0f / 5);
    p = multiply_add(p, square, 2.0f / 3);
    p = multiply_add(p, square, 2.0f);
    return multiply_add(float(exponent), 0.693147181f, t * p) + (x - x);
}
