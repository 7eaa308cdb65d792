// Losses of rows of outputs, and their gradients in the outputs' place.
#pragma once
#include <cmath>

#include "functions.hpp"

namespace registers {

// In the order of `LOSSES` of workers/networks/gradients/plans.py: cross entropy of a token, squared error, and log(1 + e^-m) of the margin m.
enum class Loss { cross_entropy, squared, margin };

// Cross entropy times `weight` under softmax(logits [count]), which become its gradient.
template <typename T> inline double cross_entropy(T *logits, int count, int64_t target, T weight) {
    V<T> highest = load_within<T>(logits, 0, count);
    if (count < W<T>) highest = counting<T>() < Integer<T>(count) ? highest : all(logits[0]);
    for (int c = W<T>; c < count; c += W<T>) {
        const V<T> z = load<T>(logits + c);
        highest = larger<T>(highest, c + W<T> <= count ? z : (counting<T>() < Integer<T>(count - c) ? z : highest));
    }
    const T top = largest<T>(highest), picked = logits[target] - top;
    V<T> total = {};
    for (int c = 0; c < count; c += W<T>) {
        V<T> power = exponential(V<T>(load<T>(logits + c) - top));
        if (c + W<T> > count) power = counting<T>() < Integer<T>(count - c) ? power : V<T>{};
        store<T>(logits + c, power);
        total += power;
    }
    const T powers = sum<T>(total), share = weight / powers;
    for (int c = 0; c < count; c += W<T>) store<T>(logits + c, load<T>(logits + c) * share);
    logits[target] -= weight;
    return double(weight) * (std::log(double(powers)) - double(picked));
}

// Squared error or log(1 + e^-m) of output 0, times `weight`; its gradient takes its place.
template <typename T> inline double regression_loss(Loss kind, T *output, T target, T weight) {
    const double y = double(*output), t = double(target);
    if (kind == Loss::squared) {
        *output = T(2 * double(weight) * (y - t));
        return double(weight) * (y - t) * (y - t);
    }
    const double margin = y * t, small = std::exp(margin < 0 ? margin : -margin);
    const double wrong = (margin < 0 ? 1 : small) / (1 + small); // logistic of -margin
    *output = T(-double(weight) * wrong * t);
    return double(weight) * ((margin < 0 ? -margin : 0) + std::log1p(small));
}

} // namespace registers
