// What scorers make of a row of scaled logits, and the gradients (workers/networks/scorers). One query's keys are a row; the first
// `visible` of them are seen, and the others weigh exactly 0.
#pragma once
#include <cmath>
#include <limits>

#include "functions.hpp"

namespace registers {

// In the order of workers/networks/gradients/layered.py.
enum class Score {
    softmax,        // exp(factor z), or with a learned logarithm of the temperature
    signed_power,   // (1 + b |z|)^(sign(z) n)
    average,        // 1 / count
    norm_softmax,   // softmax of z over its deviation
    self_adjusting, // softmax times the place in the row's range
    linear,         // factor z / count
    linearised,     // (1 + factor (z - mean z)) / count
    relu,
    square,
    tanh,
    sigmoid,
    polynomial,     // z^power / sqrt(count)
};

// A head's scorer, its numbers and what it learns.
template <typename T> struct Scorer {
    Score kind = Score::softmax;
    T factor = 1;            // what logits are multiplied by
    bool by_count = false;   // softmax: and by the logarithm of the number of visible keys
    T b = 1, n = 1;
    int power = 1;
    bool counts_all = false; // polynomial: all keys there are, seen or not
    int64_t places[2] = {-1, -1}; // in the lane's parameters: b and n, or the logarithm of the temperature; -1: fixed
    double gradients[2] = {0, 0};

    bool keeps_logits() const {
        switch (kind) {
        case Score::softmax: return places[0] >= 0;
        case Score::signed_power:
        case Score::norm_softmax:
        case Score::self_adjusting:
        case Score::relu:
        case Score::square:
        case Score::polynomial: return true;
        default: return false;
        }
    }
    void read(const T *parameters) {
        gradients[0] = gradients[1] = 0;
        if (kind == Score::softmax && places[0] >= 0) factor = std::exp(-parameters[places[0]]);
        if (kind == Score::signed_power && places[0] >= 0) b = parameters[places[0]], n = parameters[places[1]];
    }
    void write(T *gradient) const {
        for (int i = 0; i < 2; i++)
            if (places[i] >= 0) gradient[places[i]] += T(gradients[i]);
    }
    T factor_at(int visible) const { return by_count ? factor * std::log(T(visible)) : factor; }
    T size_of_b() const { return std::fabs(b); }       // what an optimizer takes out of the range is reflected into it
    T size_of_n() const { return n >= T(1) ? n : T(2) - n; }
};

// Softmax of row[0 .. visible) times `factor`, in place.
template <typename T> inline void softmax(T *row, int visible, T factor) {
    const V<T> least = all(-std::numeric_limits<T>::infinity());
    V<T> highest = least, total = {};
    for (int c = 0; c < visible; c += W<T>) {
        const V<T> z = load<T>(row + c) * factor;
        store<T>(row + c, z);
        highest = larger<T>(highest, c + W<T> <= visible ? z : (counting<T>() < Integer<T>(visible - c) ? z : least));
    }
    const V<T> top = all(largest<T>(highest));
    for (int c = 0; c < visible; c += W<T>) {
        V<T> power = exponential(V<T>(load<T>(row + c) - top));
        if (c + W<T> > visible) power = counting<T>() < Integer<T>(visible - c) ? power : V<T>{};
        store<T>(row + c, power);
        total += power;
    }
    const V<T> share = all(T(1) / sum<T>(total));
    for (int c = 0; c < visible; c += W<T>) store<T>(row + c, load<T>(row + c) * share);
}
// The gradient by what softmax was given, from that by its weights; times `factor`, in place.
template <typename T> inline void softmax_gradient(T *gradient, const T *weights, int visible, T factor) {
    V<T> inner = {};
    for (int c = 0; c < visible; c += W<T>) 
        inner = multiply_add(load_within<T>(gradient + c, c, visible), load<T>(weights + c), inner);
    const V<T> mean = all(sum<T>(inner));
    for (int c = 0; c < visible; c += W<T>)
        store<T>(gradient + c, load<T>(weights + c) * (load<T>(gradient + c) - mean) * factor);
}

// row[c] becomes function(row[c]) for all visible keys.
template <typename T, typename Function> inline void each_key(T *row, int visible, Function function) {
    for (int c = 0; c < visible; c += W<T>) store<T>(row + c, function(load<T>(row + c)));
}
// The sum of function(register, place) over all visible keys.
template <typename T, typename Function> inline T sum_of_keys(int visible, Function function) {
    V<T> total = {};
    for (int c = 0; c < visible; c += W<T>) {
        const V<T> value = function(c);
        total += c + W<T> <= visible ? value : (counting<T>() < Integer<T>(visible - c) ? value : V<T>{});
    }
    return sum<T>(total);
}
template <typename T> inline V<T> to_the(V<T> z, int power) {
    V<T> product = all(T(1));
    for (int n = 0; n < power; n++) product *= z;
    return product;
}

// A row's deviation, by which norm_softmax divides where it is below 1.
template <typename T> struct Deviation {
    T mean, value, divisor;
    Deviation(const T *logits, int visible) {
        mean = sum_of_keys<T>(visible, [&](int c) { return load<T>(logits + c); }) / T(visible);
        const T squares = sum_of_keys<T>(visible, [&](int c) {
            const V<T> centred = load<T>(logits + c) - mean;
            return centred * centred;
        });
        value = std::sqrt(squares / T(visible) + T(1e-12));
        divisor = value > T(1) ? T(1) : value;
    }
};
// The range that self-adjusting softmax places logits in: always around zero.
template <typename T> struct Range {
    T low = 0, high = 0, lows = 0, highs = 0; // and how many keys are at either end, if they and not zero are the end
    Range(const T *logits, int visible) {
        for (int c = 0; c < visible; c++) {
            low = logits[c] < low ? logits[c] : low;
            high = logits[c] > high ? logits[c] : high;
        }
        for (int c = 0; c < visible; c++) lows += low < 0 && logits[c] == low, highs += high > 0 && logits[c] == high;
    }
    T width() const { return high - low < T(1e-10) ? T(1e-10) : high - low; }
};

// A row of logits becomes weights, in place; zeros up to `end`. `keys`: how many there are, seen or not.
template <typename T> inline void weigh(const Scorer<T> &scorer, T *row, int visible, int keys, int end) {
    const T count = T(visible);
    switch (scorer.kind) {
    case Score::softmax: softmax(row, visible, scorer.factor_at(visible)); break;
    case Score::signed_power: {
        const T b = scorer.size_of_b(), n = scorer.size_of_n();
        each_key(row, visible, [&](V<T> z) {
            const V<T> bent = n * logarithm_of_1_plus(V<T>(b * absolute<T>(z)));
            return z < T(0) ? -bent : bent;
        });
        softmax(row, visible, T(1));
        break;
    }
    case Score::average: each_key(row, visible, [&](V<T>) { return all(T(1) / count); }); break;
    case Score::norm_softmax: {
        const Deviation<T> spread(row, visible);
        each_key(row, visible, [&](V<T> z) { return (z - spread.mean) / spread.divisor; });
        softmax(row, visible, T(1));
        break;
    }
    case Score::self_adjusting: {
        const Range<T> range(row, visible);
        T top = row[0];
        for (int c = 0; c < visible; c++) top = row[c] > top ? row[c] : top;
        const T total = sum_of_keys<T>(visible, [&](int c) { return exponential(V<T>(load<T>(row + c) - top)); });
        each_key(row, visible, [&](V<T> z) {
            return exponential(V<T>(z - top)) / total * ((z - range.low) / range.width());
        });
        break;
    }
    case Score::linear: each_key(row, visible, [&](V<T> z) { return z * (scorer.factor / count); }); break;
    case Score::linearised: {
        const T mean = sum_of_keys<T>(visible, [&](int c) { return load<T>(row + c); }) / count;
        each_key(row, visible, [&](V<T> z) { return (T(1) + (z - mean) * scorer.factor) / count; });
        break;
    }
    case Score::relu: each_key(row, visible, [&](V<T> z) { return (z < T(0) ? V<T>{} : z) / count; }); break;
    case Score::square: each_key(row, visible, [&](V<T> z) { return z * z / count; }); break;
    case Score::tanh: each_key(row, visible, [&](V<T> z) { return hyperbolic_tangent(z) / count; }); break;
    case Score::sigmoid: {
        const T shift = std::log(count);
        each_key(row, visible, [&](V<T> z) { return logistic<T>(z - shift); });
        break;
    }
    case Score::polynomial: {
        const T root = std::sqrt(scorer.counts_all ? T(keys) : count);
        each_key(row, visible, [&](V<T> z) { return to_the<T>(z, scorer.power) / root; });
        break;
    }
    }
    for (int c = visible; c < padded(visible, W<T>); c++) row[c] = T(0);
    for (int c = padded(visible, W<T>); c < end; c += W<T>) store<T>(row + c, V<T>{});
}

// The gradient by a row's logits, from that by its weights: in place, zeros up to `end`. `logits`: if the scorer keeps
// them. Adds the gradients of what the scorer learns.
template <typename T>
inline void weigh_gradient(Scorer<T> &scorer, T *gradient, const T *weights, const T *logits, int visible, int keys,
                           int end) {
    const T count = T(visible);
    const auto combine = [&](auto function) { // gradient[c] becomes function(gradient, place)
        for (int c = 0; c < visible; c += W<T>) store<T>(gradient + c, function(load<T>(gradient + c), c));
    };
    switch (scorer.kind) {
    case Score::softmax: {
        const T factor = scorer.factor_at(visible);
        softmax_gradient(gradient, weights, visible, factor);
        if (scorer.places[0] >= 0)
            scorer.gradients[0] -=
                sum_of_keys<T>(visible, [&](int c) { return load<T>(gradient + c) * load<T>(logits + c); });
        break;
    }
    case Score::signed_power: {
        const T b = scorer.size_of_b(), n = scorer.size_of_n();
        softmax_gradient(gradient, weights, visible, T(1));
        if (scorer.places[0] >= 0) {
            V<T> by_b = {}, by_n = {};
            for (int c = 0; c < visible; c += W<T>) {
                const V<T> g = load_within<T>(gradient + c, c, visible), z = load_within<T>(logits + c, c, visible);
                const V<T> size = b * absolute<T>(z), bent = logarithm_of_1_plus(size);
                by_b += g * (n * z / (T(1) + size));
                by_n += g * (z < T(0) ? -bent : bent);
            }
            scorer.gradients[0] += (scorer.b > 0 ? 1 : scorer.b < 0 ? -1 : 0) * double(sum<T>(by_b));
            scorer.gradients[1] += (scorer.n >= 1 ? 1 : -1) * double(sum<T>(by_n));
        }
        combine([&](V<T> g, int c) { return g * (n * b / (T(1) + b * absolute<T>(load<T>(logits + c)))); });
        break;
    }
    case Score::average: combine([&](V<T>, int) { return V<T>{}; }); break;
    case Score::norm_softmax: {
        const Deviation<T> spread(logits, visible);
        softmax_gradient(gradient, weights, visible, T(1));
        T along = 0; // what each centred logit is multiplied by, for the deviation's sake
        if (spread.value <= T(1)) {
            const T inner = sum_of_keys<T>(visible, [&](int c) {
                return load<T>(gradient + c) * (load<T>(logits + c) - spread.mean);
            });
            along = -inner / (spread.divisor * spread.divisor * spread.value * count);
        }
        combine([&](V<T> g, int c) { return g / spread.divisor + along * (load<T>(logits + c) - spread.mean); });
        const T mean = sum_of_keys<T>(visible, [&](int c) { return load<T>(gradient + c); }) / count;
        combine([&](V<T> g, int) { return g - mean; });
        break;
    }
    case Score::self_adjusting: {
        const Range<T> range(logits, visible);
        T top = logits[0];
        for (int c = 0; c < visible; c++) top = logits[c] > top ? logits[c] : top;
        const T total = sum_of_keys<T>(visible, [&](int c) { return exponential(V<T>(load<T>(logits + c) - top)); });
        const T width = range.width();
        const T inner =
            sum_of_keys<T>(visible, [&](int c) { return load<T>(gradient + c) * load<T>(weights + c); });
        T by_low = -sum_of_keys<T>(visible, [&](int c) {
            return load<T>(gradient + c) * exponential(V<T>(load<T>(logits + c) - top)) / total;
        }) / width;
        T ends = 0; // the gradient by the highest logit
        if (range.high - range.low >= T(1e-10)) ends = -inner / width;
        by_low -= ends;
        combine([&](V<T> g, int c) {
            const V<T> z = load<T>(logits + c), share = exponential(V<T>(z - top)) / total;
            V<T> own = g * load<T>(weights + c) - share * inner + g * share / width;
            if (range.lows > 0) own += z == range.low ? all(by_low / range.lows) : V<T>{};
            if (range.highs > 0) own += z == range.high ? all(ends / range.highs) : V<T>{};
            return own;
        });
        break;
    }
    case Score::linear: combine([&](V<T> g, int) { return g * (scorer.factor / count); }); break;
    case Score::linearised: {
        const T mean = sum_of_keys<T>(visible, [&](int c) { return load<T>(gradient + c); }) / count;
        combine([&](V<T> g, int) { return (g - mean) * (scorer.factor / count); });
        break;
    }
    case Score::relu:
        combine([&](V<T> g, int c) { return load<T>(logits + c) > T(0) ? g / count : V<T>{}; });
        break;
    case Score::square: combine([&](V<T> g, int c) { return g * load<T>(logits + c) * (T(2) / count); }); break;
    case Score::tanh:
        combine([&](V<T> g, int c) {
            const V<T> t = load<T>(weights + c) * count;
            return g * (T(1) - t * t) / count;
        });
        break;
    case Score::sigmoid:
        combine([&](V<T> g, int c) { return g * load<T>(weights + c) * (T(1) - load<T>(weights + c)); });
        break;
    case Score::polynomial: {
        const T slope = T(scorer.power) / std::sqrt(scorer.counts_all ? T(keys) : count);
        combine([&](V<T> g, int c) { return g * to_the<T>(load<T>(logits + c), scorer.power - 1) * slope; });
        break;
    }
    }
    for (int c = visible; c < padded(visible, W<T>); c++) gradient[c] = T(0);
    for (int c = padded(visible, W<T>); c < end; c += W<T>) store<T>(gradient + c, V<T>{});
}

} // namespace registers
