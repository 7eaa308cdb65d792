// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang and Sennrich 2019) of rows, and their gradients.
#pragma once
#include <cmath>

#include "registers.hpp"

namespace registers {

// A norm's learned numbers, padded to whole registers, and their gradients.
template <typename T> struct Norm {
    T *gain = nullptr, *bias = nullptr, *gain_gradient = nullptr, *bias_gradient = nullptr; // [stride]; bias may be null
};

// What a norm keeps of its rows: the rows before gain and bias, and what they were multiplied by.
template <typename T> struct Normed {
    T *unit = nullptr;  // [rows][stride]
    T *factor = nullptr; // [rows]
};

// row[0 .. count) to unit length in the root mean square; returns the factor. `centre`: after the mean is taken off.
template <typename T> inline T to_unit(T *unit, const T *row, int count, bool centre, T epsilon) {
    V<T> total = {};
    if (centre)
        for (int c = 0; c < count; c += W<T>) total += load_within<T>(row + c, c, count);
    const V<T> mean = all<T>(centre ? sum<T>(total) / T(count) : T(0));
    V<T> squares = {};
    for (int c = 0; c < count; c += W<T>) {
        const V<T> centred = load<T>(row + c) - mean;
        store<T>(unit + c, centred);
        const V<T> inside = load_within<T>(unit + c, c, count);
        squares = multiply_add(inside, inside, squares);
    }
    const T factor = T(1) / std::sqrt(sum<T>(squares) / T(count) + epsilon);
    for (int c = 0; c < count; c += W<T>) store<T>(unit + c, load<T>(unit + c) * all(factor));
    return factor;
}

// The gradient by the row that `to_unit` was given, from that by what it made: in place.
template <typename T> inline void from_unit(T *gradient, const T *unit, T factor, int count, bool centre) {
    V<T> inner = {}, total = {};
    for (int c = 0; c < count; c += W<T>) {
        const V<T> g = load_within<T>(gradient + c, c, count);
        inner = multiply_add(g, load_within<T>(unit + c, c, count), inner);
        total += g;
    }
    const V<T> along = all<T>(sum<T>(inner) / T(count)), mean = all<T>(centre ? sum<T>(total) / T(count) : T(0));
    for (int c = 0; c < count; c += W<T>)
        store<T>(gradient + c, all(factor) * multiply_add(V<T>(-load<T>(unit + c)), along, V<T>(load<T>(gradient + c) - mean)));
}

template <typename T>
inline void normalise(T *out, const Normed<T> &kept, const T *rows, int stride, int count, int width, bool centre,
                      T epsilon, const Norm<T> &norm) {
    for (int r = 0; r < count; r++) {
        T *unit = kept.unit + std::size_t(r) * stride, *to = out + std::size_t(r) * stride;
        kept.factor[r] = to_unit(unit, rows + std::size_t(r) * stride, width, centre, epsilon);
        for (int c = 0; c < width; c += W<T>) {
            const V<T> row = load<T>(unit + c), gain = load<T>(norm.gain + c);
            store<T>(to + c, norm.bias ? multiply_add(row, gain, load<T>(norm.bias + c)) : row * gain);
        }
    }
}

// The gradient by the rows, from that by `out`: in place. Adds the gradients of gain and bias.
template <typename T>
inline void normalise_gradient(T *gradient, const Normed<T> &kept, int stride, int count, int width, bool centre,
                               const Norm<T> &norm) {
    for (int r = 0; r < count; r++) {
        T *row = gradient + std::size_t(r) * stride;
        const T *unit = kept.unit + std::size_t(r) * stride;
        for (int c = 0; c < width; c += W<T>) {
            const V<T> g = load<T>(row + c);
            store<T>(norm.gain_gradient + c, multiply_add(g, load<T>(unit + c), load<T>(norm.gain_gradient + c)));
            if (norm.bias) store<T>(norm.bias_gradient + c, load<T>(norm.bias_gradient + c) + g);
            store<T>(row + c, g * load<T>(norm.gain + c));
        }
        from_unit(row, unit, kept.factor[r], width, centre);
    }
}

} // namespace registers
