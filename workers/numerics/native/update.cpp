// One update of all lanes: clipping, optimizer and averages in one pass over each lane's parameters.
//
// The formulas and their order are those of workers/training/optimizers and workers/training/averaging, element by element; only the
// gradient's norm is summed in another order: in double, in groups that depend on the number of parameters alone.
// Scalars, second moments and averages are float64, as small weights would be lost in float32 over millions of steps;
// all else has the parameters' precision T, to which scalars are rounded where the formulas say so.
//
// Legend: L lanes, P parameters, k averages.

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "memory.hpp"

using namespace registers;

// As `_Update` of workers/training/native_update.py, in the same order.
struct Update {
    int64_t lanes, parameters, averages, optimizer, nesterov;
    const double *scalars;  // [L][SCALARS + k]
    const void *decays;     // [P] 1 where weight decay applies, else 0
    const void *learns;     // [P] 0 where a parameter keeps its value, else 1; null: all learn
    const void *gradient;   // [L][P]
    const void *before;     // [L][P] parameters
    const void *first;      // [L][P] first moments, or SGD's buffer
    const double *second;   // [L][P] second moments
    const double *shadow;   // [L][k][P] averages
    void *after, *first_after;
    double *second_after, *shadow_after;
};
enum Optimizer { ADAMW, ADAM, SGD };
// What follows is the weights of the averages. FIRST_SHARE is 1 - beta1, or SGD's momentum.
enum Scalar { CLIP_NORM, RATE, DECAY, FIRST_SHARE, SECOND_SHARE, CORRECTION2, EPSILON, SCALARS };

namespace {

constexpr std::ptrdiff_t GROUP = 512; // numbers whose squares are summed before they are added to the total
constexpr int SUMS = 32;              // of a group, side by side

template <typename T> T length_of(const T *gradient, const T *learns, std::ptrdiff_t count) {
    double total = 0;
    for (std::ptrdiff_t group = 0; group < count; group += GROUP) {
        T sums[SUMS] = {};
        const std::ptrdiff_t end = group + GROUP < count ? group + GROUP : count;
        std::ptrdiff_t i = group;
        for (; i + SUMS <= end; i += SUMS)
            for (int n = 0; n < SUMS; n++) {
                const T value = learns ? gradient[i + n] * learns[i + n] : gradient[i + n];
                sums[n] += value * value;
            }
        for (int n = 0; i < end; i++, n++) {
            const T value = learns ? gradient[i] * learns[i] : gradient[i];
            sums[n] += value * value;
        }
        for (int n = 0; n < SUMS; n++) total += double(sums[n]);
    }
    return T(std::sqrt(total));
}

// The gradient as the optimizer gets it.
template <typename T> struct Clipped {
    const T *__restrict gradient, *__restrict learns;
    T share;
    T operator()(std::ptrdiff_t i) const { return (learns ? gradient[i] * learns[i] : gradient[i]) * share; }
};

template <typename T> struct Lane {
    const T *__restrict decays, *__restrict before, *__restrict first;
    const double *__restrict second;
    T *__restrict after, *__restrict first_after;
    double *__restrict second_after;
};

template <typename T, bool DECOUPLED>
void two_moments(const Lane<T> &lane, const Clipped<T> &clipped, const double *scalars, std::ptrdiff_t count) {
    const Lane<T> own = lane;
    const Clipped<T> gradient = clipped;
    const T rate = T(scalars[RATE]), decay = T(scalars[DECAY]), first_share = T(scalars[FIRST_SHARE]);
    const double second_share = scalars[SECOND_SHARE];
    const T correction = T(scalars[CORRECTION2]), epsilon = T(scalars[EPSILON]);
#pragma GCC ivdep
    for (std::ptrdiff_t i = 0; i < count; i++) {
        T g = gradient(i), x = own.before[i];
        if (DECOUPLED)
            x = x * (T(1) - decay * own.decays[i]);
        else
            g = g + decay * own.decays[i] * x;
        const T first = own.first[i] + first_share * (g - own.first[i]);
        const double second = own.second[i] + second_share * (double(g) * double(g) - own.second[i]);
        const T scale = std::sqrt(T(second)) / correction + epsilon;
        own.after[i] = x - rate * (first / scale);
        own.first_after[i] = first;
        own.second_after[i] = second;
    }
}

template <typename T, bool NESTEROV>
void momentum(const Lane<T> &lane, const Clipped<T> &clipped, const double *scalars, std::ptrdiff_t count) {
    const Lane<T> own = lane;
    const Clipped<T> gradient = clipped;
    const T rate = T(scalars[RATE]), decay = T(scalars[DECAY]), share = T(scalars[FIRST_SHARE]);
#pragma GCC ivdep
    for (std::ptrdiff_t i = 0; i < count; i++) {
        const T g = gradient(i) + decay * own.decays[i] * own.before[i];
        const T buffer = share * own.first[i] + g;
        own.after[i] = own.before[i] - rate * (NESTEROV ? g + share * buffer : buffer);
        own.first_after[i] = buffer;
    }
}

template <typename T>
void average(double *__restrict to, const double *__restrict from, const T *__restrict parameters, double weight,
             std::ptrdiff_t count) {
#pragma GCC ivdep
    for (std::ptrdiff_t i = 0; i < count; i++) to[i] = from[i] + weight * (double(parameters[i]) - from[i]);
}

// Pieces of a lane that stay in the first-level cache from the optimizer to the last average.
constexpr std::ptrdiff_t PIECE = 1024;

template <typename T> void one_lane(const Update &plan, std::ptrdiff_t number) {
    const std::ptrdiff_t P = plan.parameters, at = number * P;
    const double *scalars = plan.scalars + number * (SCALARS + plan.averages);
    const auto read = [](const void *pointer, std::ptrdiff_t from) {
        return pointer ? static_cast<const T *>(pointer) + from : nullptr;
    };
    const auto write = [](void *pointer, std::ptrdiff_t from) { return static_cast<T *>(pointer) + from; };
    const T length = length_of(read(plan.gradient, at), read(plan.learns, 0), P);
    const T share = T(scalars[CLIP_NORM]) / (length + T(1e-6));
    for (std::ptrdiff_t i = 0; i < P; i += PIECE) {
        const std::ptrdiff_t count = P - i < PIECE ? P - i : PIECE;
        const Clipped<T> gradient{read(plan.gradient, at + i), read(plan.learns, i), share > T(1) ? T(1) : share};
        const bool two = plan.second; // SGD has no second moments
        const Lane<T> lane{read(plan.decays, i),           read(plan.before, at + i),
                           read(plan.first, at + i),       two ? plan.second + at + i : nullptr,
                           write(plan.after, at + i),      write(plan.first_after, at + i),
                           two ? plan.second_after + at + i : nullptr};
        switch (plan.optimizer) {
        case ADAMW: two_moments<T, true>(lane, gradient, scalars, count); break;
        case ADAM: two_moments<T, false>(lane, gradient, scalars, count); break;
        default:
            if (plan.nesterov)
                momentum<T, true>(lane, gradient, scalars, count);
            else
                momentum<T, false>(lane, gradient, scalars, count);
        }
        for (std::ptrdiff_t n = 0; n < plan.averages; n++) {
            const std::ptrdiff_t own = (number * plan.averages + n) * P + i;
            average<T>(plan.shadow_after + own, plan.shadow + own, lane.after, scalars[SCALARS + n], count);
        }
    }
}

template <typename T> void all_lanes(const Update &plan) {
    const FlushToZero flushed;
    for (std::ptrdiff_t lane = 0; lane < plan.lanes; lane++) one_lane<T>(plan, lane);
}

} // namespace

extern "C" void update_float32(const Update *plan) { all_lanes<float>(*plan); }
extern "C" void update_float64(const Update *plan) { all_lanes<double>(*plan); }
extern "C" int update_plan_bytes() { return sizeof(Update); }
