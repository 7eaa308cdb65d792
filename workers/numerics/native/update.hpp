// One update of all lanes: clipping, optimizer and averages in one pass over each lane's parameters; with Muon in three,
// as its matrices are orthogonalised between.
//
// The formulas and their order are those of workers/training/optimizers and workers/training/averaging, element by element; only the
// gradient's norm is summed in another order: in double, in groups that depend on the number of parameters alone.
// Scalars, second moments and averages are float64, as small weights would be lost in float32 over millions of steps;
// all else has the parameters' precision T, to which scalars are rounded where the formulas say so.
//
// Legend: L lanes, P parameters, k averages, m matrices of Muon.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "memory.hpp"
#include "newton_schulz.hpp"

using namespace registers;

// A matrix that Muon orthogonalises, in the parameters [P]; it may be a part of a wider one.
struct Turned {
    int64_t start, rows, columns, step; // numbers from one row to the next
    double adjustment;                  // of the rate, to the shape
};
// As `UpdatePlan` of workers/training/native_update.py, in the same order.
struct Update {
    int64_t lanes, parameters, averages, optimizer, nesterov, iterations, matrices;
    const double *scalars;  // [L][SCALARS + k]
    const void *decays;     // [P] 1 where weight decay applies, else 0
    const void *learns;     // [P] 0 where a parameter keeps its value, else 1; null: all learn
    const void *gradient;   // [L][P]
    const void *before;     // [L][P] parameters
    const void *first;      // [L][P] first moments, or SGD's buffer
    const double *second;   // [L][P] second moments
    const double *shadow;   // [L][k][P] averages
    const void *buffer;     // [L][P] Muon's
    const Turned *turned;   // [m]
    void *after, *first_after, *buffer_after;
    double *second_after, *shadow_after;
    const void *loss;           // [L]
    const int64_t *step;        // [L] steps made
    const double *loss_sum;     // [L]
    const int64_t *diverged_at; // [L] the first step whose loss was not finite; 0: none
    int64_t *step_after, *diverged_after;
    double *loss_sum_after;
};
enum Optimizer { ADAMW, ADAM, SGD, MUON };
// What follows is the weights of the averages. STEP_SIZE is SGD's rate, or Adam's over its bias correction 1 - beta1^n;
// FIRST_SHARE is 1 - beta1, or SGD's momentum. The last three are Muon's, of its matrices; the others are of the AdamW
// that moves all else.
enum Scalar {
    CLIP_NORM, STEP_SIZE, DECAY, FIRST_SHARE, SECOND_SHARE, CORRECTION2, EPSILON,
    MATRIX_RATE, MATRIX_DECAY, MATRIX_MOMENTUM, SCALARS
};

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

template <typename T> struct LanePointers {
    const T *__restrict decays, *__restrict before, *first;
    const double *second;
    T *__restrict after, *first_after; // moments may be written where they lie
    double *second_after;
};

template <typename T, bool DECOUPLED>
void two_moments(const LanePointers<T> &lane, const Clipped<T> &clipped, const double *scalars, std::ptrdiff_t count) {
    const LanePointers<T> own = lane;
    const Clipped<T> gradient = clipped;
    const T rate = T(scalars[STEP_SIZE]), decay = T(scalars[DECAY]), first_share = T(scalars[FIRST_SHARE]);
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
void momentum(const LanePointers<T> &lane, const Clipped<T> &clipped, const double *scalars, std::ptrdiff_t count) {
    const LanePointers<T> own = lane;
    const Clipped<T> gradient = clipped;
    const T rate = T(scalars[STEP_SIZE]), decay = T(scalars[DECAY]), share = T(scalars[FIRST_SHARE]);
#pragma GCC ivdep
    for (std::ptrdiff_t i = 0; i < count; i++) {
        const T g = gradient(i) + decay * own.decays[i] * own.before[i];
        const T buffer = share * own.first[i] + g;
        own.after[i] = own.before[i] - rate * (NESTEROV ? g + share * buffer : buffer);
        own.first_after[i] = buffer;
    }
}

template <typename T>
void average(double *to, const double *from, const T *__restrict parameters, double weight, std::ptrdiff_t count) {
#pragma GCC ivdep
    for (std::ptrdiff_t i = 0; i < count; i++) to[i] = from[i] + weight * (double(parameters[i]) - from[i]);
}

template <typename T>
void accumulate(T *to, const T *from, const Clipped<T> &clipped, const double *scalars,
                std::ptrdiff_t count) {
    const Clipped<T> gradient = clipped;
    const T share = T(1) - T(scalars[MATRIX_MOMENTUM]);
#pragma GCC ivdep
    for (std::ptrdiff_t i = 0; i < count; i++) to[i] = from[i] + share * (gradient(i) - from[i]);
}

// Moves a matrix by its orthogonalised direction; `lane` and `gradient` begin with the parameters, as does `buffer`.
template <typename T, bool NESTEROV>
void move_matrix(const Turned &one, const LanePointers<T> &lane, const T *buffer, const Clipped<T> &gradient,
                 const double *scalars, int iterations, NewtonSchulz<T> &turning) {
    const T rate = T(scalars[MATRIX_RATE]), decay = T(scalars[MATRIX_DECAY]), momentum = T(scalars[MATRIX_MOMENTUM]);
    const T adjustment = T(one.adjustment);
    const bool tall = one.rows > one.columns; // X is the transposed matrix then
    const auto place = [&](int i, int e) { return one.start + (tall ? e * one.step + i : i * one.step + e); };
    const int r = int(tall ? one.columns : one.rows), c = int(tall ? one.rows : one.columns);
    turning.read(r, c, [&](int i, int e) {
        const std::ptrdiff_t at = place(i, e);
        if (!NESTEROV) return buffer[at];
        const T g = gradient(at);
        return g + momentum * (buffer[at] - g);
    });
    for (int n = 0; n < iterations; n++) turning.iterate();
    for (int i = 0; i < r; i++)
        for (int e = 0; e < c; e++) {
            const std::ptrdiff_t at = place(i, e);
            lane.after[at] = lane.before[at] * (T(1) - decay * lane.decays[at]) - rate * (adjustment * turning(i, e));
        }
}

// Pieces of a lane that stay in the first-level cache from the optimizer to the last average.
constexpr std::ptrdiff_t PIECE = 1024;

template <typename T> class Updated {
  public:
    Updated(const Update &plan, std::ptrdiff_t number)
        : plan_(plan), number_(number), at_(number * plan.parameters),
          scalars_(plan.scalars + number * (SCALARS + plan.averages)) {
        const T length = length_of(read(plan.gradient, at_), read(plan.learns, 0), plan.parameters);
        const T share = T(scalars_[CLIP_NORM]) / (length + T(1e-6));
        share_ = share > T(1) ? T(1) : share;
    }

    void in_one_pass() {
        for_each_piece([this](std::ptrdiff_t i, std::ptrdiff_t count) { optimize(i, count), average_all(i, count); });
    }

    void with_matrices(NewtonSchulz<T> &turning) {
        for_each_piece([this](std::ptrdiff_t i, std::ptrdiff_t count) {
            optimize(i, count);
            accumulate<T>(write(plan_.buffer_after, at_ + i), read(plan_.buffer, at_ + i), clipped(i), scalars_, count);
        });
        const auto move = plan_.nesterov ? move_matrix<T, true> : move_matrix<T, false>;
        for (std::ptrdiff_t n = 0; n < plan_.matrices; n++)
            move(plan_.turned[n], lane(0), write(plan_.buffer_after, at_), clipped(0), scalars_, int(plan_.iterations),
                 turning);
        for_each_piece([this](std::ptrdiff_t i, std::ptrdiff_t count) { average_all(i, count); });
    }

  private:
    const Update &plan_;
    const std::ptrdiff_t number_, at_;
    const double *scalars_;
    T share_;

    static const T *read(const void *pointer, std::ptrdiff_t from) {
        return pointer ? static_cast<const T *>(pointer) + from : nullptr;
    }
    static T *write(void *pointer, std::ptrdiff_t from) { return static_cast<T *>(pointer) + from; }

    template <typename Work> void for_each_piece(Work work) {
        for (std::ptrdiff_t i = 0; i < plan_.parameters; i += PIECE)
            work(i, plan_.parameters - i < PIECE ? plan_.parameters - i : PIECE);
    }
    Clipped<T> clipped(std::ptrdiff_t i) const { return {read(plan_.gradient, at_ + i), read(plan_.learns, i), share_}; }
    LanePointers<T> lane(std::ptrdiff_t i) const {
        const bool two = plan_.second; // SGD has no second moments
        return {read(plan_.decays, i),           read(plan_.before, at_ + i),
                read(plan_.first, at_ + i),      two ? plan_.second + at_ + i : nullptr,
                write(plan_.after, at_ + i),     write(plan_.first_after, at_ + i),
                two ? plan_.second_after + at_ + i : nullptr};
    }

    void optimize(std::ptrdiff_t i, std::ptrdiff_t count) {
        const LanePointers<T> own = lane(i);
        const Clipped<T> gradient = clipped(i);
        switch (plan_.optimizer) {
        case ADAMW:
        case MUON: two_moments<T, true>(own, gradient, scalars_, count); break;
        case ADAM: two_moments<T, false>(own, gradient, scalars_, count); break;
        default:
            if (plan_.nesterov)
                momentum<T, true>(own, gradient, scalars_, count);
            else
                momentum<T, false>(own, gradient, scalars_, count);
        }
    }

    void average_all(std::ptrdiff_t i, std::ptrdiff_t count) {
        for (std::ptrdiff_t n = 0; n < plan_.averages; n++) {
            const std::ptrdiff_t own = (number_ * plan_.averages + n) * plan_.parameters + i;
            average<T>(plan_.shadow_after + own, plan_.shadow + own, write(plan_.after, at_ + i), scalars_[SCALARS + n],
                       count);
        }
    }
};

template <typename T> void note_progress(const Update &plan, std::ptrdiff_t lane) {
    const T loss = static_cast<const T *>(plan.loss)[lane];
    const int64_t step = plan.step[lane] + 1, before = plan.diverged_at[lane];
    plan.step_after[lane] = step;
    plan.loss_sum_after[lane] = plan.loss_sum[lane] + double(loss);
    plan.diverged_after[lane] = before == 0 && !std::isfinite(loss) ? step : before;
}

// Room for the largest of Muon's matrices.
template <typename T> void lay_out(NewtonSchulz<T> &turning, Memory &memory, const Update &plan) {
    int64_t rows = 0, columns = 0;
    for (std::ptrdiff_t n = 0; n < plan.matrices; n++) {
        rows = std::max(rows, std::min(plan.turned[n].rows, plan.turned[n].columns));
        columns = std::max({columns, plan.turned[n].rows, plan.turned[n].columns});
    }
    turning.lay_out(memory, int(rows), int(columns));
}

template <typename T> int all_lanes(const Update &plan) try {
    const FlushToZero flushed;
    NewtonSchulz<T> turning;
    Memory counted;
    lay_out(turning, counted, plan);
    Memory memory(plan.optimizer == MUON ? counted.used() : 0);
    if (plan.optimizer == MUON) lay_out(turning, memory, plan);
    for (std::ptrdiff_t lane = 0; lane < plan.lanes; lane++) {
        Updated<T> updated(plan, lane);
        if (plan.optimizer == MUON)
            updated.with_matrices(turning);
        else
            updated.in_one_pass();
        note_progress<T>(plan, lane);
    }
    return 0;
} catch (const std::exception &) { // no memory left
    return 1;
}

} // namespace
