// The small parts of a layered transformer: learned vectors, Canon layers, and what one layer holds.
#pragma once
#include <algorithm>
#include <vector>

#include "activations.hpp"
#include "attention.hpp"
#include "memory.hpp"
#include "norms.hpp"
#include "short_attention.hpp"

namespace layered {

using namespace registers;

constexpr int KERNEL = 4; // positions that a Canon layer's convolution reads

// A learned vector of one or two parts, each padded to whole registers, and its gradient.
template <typename T> struct Vector {
    T *values = nullptr, *gradient = nullptr; // null: the model has none
    int part = 0, parts = 1, step = 1;
    int64_t offset = -1;

    int count() const { return parts * padded(part, W<T>); }
    void lay_out(Memory &memory, int64_t offset_, int part_, int parts_ = 1, int step_ = 1) {
        offset = offset_, part = part_, parts = parts_, step = step_;
        if (offset < 0) return;
        values = memory.take<T>(count());
        gradient = memory.take<T>(count());
    }
    void read(const T *parameters) {
        for (int n = 0; values && n < parts; n++)
            for (int e = 0; e < part; e++)
                values[n * padded(part, W<T>) + e] = parameters[offset + (n * part + e) * step];
        if (values) std::memset(gradient, 0, sizeof(T) * count());
    }
    void write(T *to) const {
        for (int n = 0; values && n < parts; n++)
            for (int e = 0; e < part; e++) to[offset + (n * part + e) * step] += gradient[n * padded(part, W<T>) + e];
    }
    void learn(const T *rows, int stride, int count_) {
        if (!values) return;
        constexpr int GROUP = 4; // registers whose sums stay in the core: one sum alone would wait for itself
        int c = 0;
        for (; c + GROUP * W<T> <= count(); c += GROUP * W<T>) learn_columns<GROUP>(rows, stride, count_, c);
        for (; c < count(); c += W<T>) learn_columns<1>(rows, stride, count_, c);
    }

  private:
    template <int GROUP> void learn_columns(const T *rows, int stride, int count_, int c) {
        V<T> sums[GROUP];
#pragma GCC unroll 4
        for (int n = 0; n < GROUP; n++) sums[n] = load<T>(gradient + c + n * W<T>);
        rows += c;
        for (int r = 0; r < count_; r++, rows += stride) {
#pragma GCC unroll 4
            for (int n = 0; n < GROUP; n++) sums[n] += load<T>(rows + n * W<T>);
        }
#pragma GCC unroll 4
        for (int n = 0; n < GROUP; n++) store<T>(gradient + c + n * W<T>, sums[n]);
    }
};

// A Canon layer: a causal convolution of each channel by itself, added to its input (Allen-Zhu 2025, "Physics of Language
// Models: Part 4.1"). tap[KERNEL - 1] meets the position itself.
template <typename T> struct Convolution {
    Vector<T> taps[KERNEL];

    bool on() const { return taps[0].values; }
    void lay_out(Memory &memory, int64_t offset, int part, int parts = 1) {
        for (int n = 0; n < KERNEL; n++) taps[n].lay_out(memory, offset < 0 ? -1 : offset + n, part, parts, KERNEL);
    }
    void read(const T *parameters) { for (auto &tap : taps) tap.read(parameters); }
    void write(T *to) const { for (auto &tap : taps) tap.write(to); }

    void apply(T *out, const T *in, int stride, const std::vector<Sequence> &sequences) const {
        for (const Sequence &one : sequences)
            for (int i = 0; i < one.keys; i++)
                for (int c = 0; c < taps[0].count(); c += W<T>) {
                    const T *from = in + std::ptrdiff_t(one.first + i) * stride + c;
                    V<T> value = load<T>(from);
                    for (int n = std::max(0, KERNEL - 1 - i); n < KERNEL; n++)
                        value = multiply_add(load<T>(from + (n - KERNEL + 1) * std::ptrdiff_t(stride)),
                                             load<T>(taps[n].values + c), value);
                    store<T>(out + std::ptrdiff_t(one.first + i) * stride + c, value);
                }
    }
    // The gradient by `in` at `in_g`, from that by `out`.
    void apply_gradient(T *in_g, const T *out_g, const T *in, int stride, const std::vector<Sequence> &sequences) {
        for (const Sequence &one : sequences)
            for (int i = 0; i < one.keys; i++)
                for (int c = 0; c < taps[0].count(); c += W<T>) {
                    const std::ptrdiff_t at = std::ptrdiff_t(one.first + i) * stride + c;
                    V<T> value = load<T>(out_g + at);
                    for (int n = 0; n < KERNEL; n++) {
                        const int ahead = KERNEL - 1 - n; // this position is read by the one so far ahead
                        if (i + ahead < one.keys)
                            value = multiply_add(load<T>(out_g + at + ahead * std::ptrdiff_t(stride)),
                                                 load<T>(taps[n].values + c), value);
                        if (i - ahead < 0) continue;
                        T *sum = taps[n].gradient + c;
                        store<T>(sum, multiply_add(load<T>(out_g + at),
                                                   load<T>(in + at - ahead * std::ptrdiff_t(stride)), load<T>(sum)));
                    }
                    store<T>(in_g + at, value);
                }
    }
};

// One layer: what it has learned, and what a block's forward pass keeps of it for the backward pass.
template <typename T> struct Layer {
    Matrix<T> query, key, value, output, mlp_in, mlp_out;
    Vector<T> query_bias, key_bias, value_bias, output_bias, mlp_in_bias, mlp_out_bias;
    Vector<T> attention_gain, attention_bias, mlp_gain, mlp_bias;
    Convolution<T> canon_a, canon_query, canon_key, canon_value, canon_c, canon_d;
    Activation<T> activation;
    std::vector<Scorer<T>> scorers; // [h]
    Activation<T> phi;              // of the scorers' features

    Normed<T> attention_normed, mlp_normed;
    T *given_rows;                             // [R][D] room for `given`, where it is not the stream itself
    const T *given;                            // [R][D] what the maps to queries, keys and values read
    T *given_unmixed_rows;
    const T *given_unmixed;                    // [R][D] before the Canon layer A
    T *asked;                                  // [Q][D] rows of `given` that have queries
    T *q, *k, *v;                              // [R][H], or features of queries and keys
    T *q_slopes, *k_slopes, *q_points, *k_points; // [R][H] of the features; what these were made of, where phi learns
    T *q_before, *k_before, *v_before;         // [R][H] before the Canon layer B: of unit length with a norm
    T *q_factor, *k_factor;                    // [R][h]
    T *weights, *logits;                       // [Q][h][row], or as ShortAttention has it
    T *kept;                                   // [Q][h][kept_row] of the scorers, or as ShortAttention has it
    int kept_row = 0;
    T *mixed;                                  // [Q][H]
    T *middle;                                 // [Q][D] the stream between attention and MLP
    T *mlp_given_rows, *mlp_given_unmixed_rows;
    const T *mlp_given, *mlp_given_unmixed;    // [Q][D]
    T *slopes, *slopes_before;                 // [Q][F] the hidden numbers, then the activation's slopes
    T *points;                                 // [Q][F] the hidden numbers, where the activation learns
    T *active;                                 // [Q][F of one part]
    T *out;                                    // [Q][D]
    uint8_t *attention_bytes, *mlp_bytes;      // [R][d]
};

} // namespace layered
