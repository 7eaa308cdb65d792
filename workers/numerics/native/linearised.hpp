// Loss and gradient of linearised attention (workers/networks/models/linearised_attention.py), one lane after another.
//
// A prompt's output at position q is (m - c_q / o) V + (S g - (1 + 1 / o) (g . c_q) c_q) V / (o t) with g = M x_q, the
// mean row m, rows c_i = r_i - m without it, S the sum of c_i c_i', o other positions and the temperature t; rows that
// are not given count nowhere. It is linear in V and in M, so that the gradient needs the same few sums.
//
// Legend: L lanes, N prompts, s positions, f features of a row, of which the last is the label.

#pragma once
#include <exception>
#include <vector>

#include "losses.hpp"
#include "memory.hpp"

// As `_Plan` of workers/networks/gradients/linearised.py, in the same order.
struct LinearisedPlan {
    int64_t lanes, batch, length, features, total, loss;
    const int64_t *places;   // [4] the scores' rows of inputs and label, then the values'
    const void *parameters;  // [L][P]
    void *gradient;          // [L][P]
    void *loss_values;       // [L]
    const void *inputs;      // [L][N][s][f]
    const void *targets;     // [L][N][s]
    const void *weights;     // [L][N][s] of a position's loss
    const int64_t *lengths;  // [L][N] positions that are given; null: all
    const void *temperatures; // [L]
};

namespace layered {

using namespace registers;

template <typename T> class Linearised {
  public:
    explicit Linearised(const LinearisedPlan &plan)
        : plan_(plan), f(plan.features), x(f - 1), score_(f * x), value_(f), score_g_(f * x), value_g_(f), mean_(f),
          asked_(f), asked_g_(f), reached_(f), worth_(f), centred_(std::size_t(plan.length) * f),
          values_(plan.length), scores_(plan.length) {}

    void gradient(int64_t lane) {
        const T *parameters = static_cast<const T *>(plan_.parameters) + lane * plan_.total;
        const int64_t *at = plan_.places;
        std::copy_n(parameters + at[0], x * x, score_.begin());
        std::copy_n(parameters + at[1], x, score_.begin() + x * x);
        std::copy_n(parameters + at[2], x, value_.begin());
        value_[x] = parameters[at[3]];
        std::fill(score_g_.begin(), score_g_.end(), T(0)), std::fill(value_g_.begin(), value_g_.end(), T(0));
        temperature_ = static_cast<const T *>(plan_.temperatures)[lane];
        double loss = 0;
        for (int64_t prompt = lane * plan_.batch; prompt < (lane + 1) * plan_.batch; prompt++) loss += pass_prompt(prompt);
        T *to = static_cast<T *>(plan_.gradient) + lane * plan_.total;
        std::copy_n(score_g_.begin(), x * x, to + at[0]);
        std::copy_n(score_g_.begin() + x * x, x, to + at[1]);
        std::copy_n(value_g_.begin(), x, to + at[2]);
        to[at[3]] = value_g_[x];
        static_cast<T *>(plan_.loss_values)[lane] = T(loss);
    }

  private:
    const LinearisedPlan &plan_;
    const int f, x; // features, and those without the label
    T temperature_ = 1;
    std::vector<T> score_, value_, score_g_, value_g_; // [f][x], [f]
    std::vector<T> mean_, asked_, asked_g_, reached_, worth_;
    std::vector<T> centred_;         // [s][f]
    std::vector<T> values_, scores_; // [s]

    static T dot(const T *a, const T *b, int count) {
        T total = 0;
        for (int e = 0; e < count; e++) total += a[e] * b[e];
        return total;
    }

    double pass_prompt(int64_t prompt) {
        const int s = int(plan_.length);
        const T *rows = static_cast<const T *>(plan_.inputs) + prompt * s * f;
        const int64_t told = plan_.lengths ? plan_.lengths[prompt] : s;
        const int given = int(told < 1 ? 1 : told > s ? s : told);
        std::fill(mean_.begin(), mean_.end(), T(0));
        for (int i = 0; i < given; i++)
            for (int e = 0; e < f; e++) mean_[e] += rows[i * f + e];
        for (int e = 0; e < f; e++) mean_[e] /= T(given);
        for (int i = 0; i < given; i++)
            for (int e = 0; e < f; e++) centred_[i * f + e] = rows[i * f + e] - mean_[e];
        std::fill(worth_.begin(), worth_.end(), T(0)); // S V
        for (int i = 0; i < given; i++) {
            values_[i] = dot(&centred_[i * f], value_.data(), f);
            for (int e = 0; e < f; e++) worth_[e] += centred_[i * f + e] * values_[i];
        }
        double loss = 0;
        for (int q = 0; q < s; q++) {
            const T weight = static_cast<const T *>(plan_.weights)[prompt * s + q];
            if (weight == T(0)) continue; // what is no number counts
            loss += pass_position(rows + q * f, q, given, weight, static_cast<const T *>(plan_.targets)[prompt * s + q]);
        }
        return loss;
    }

    // One position with loss, given or not.
    double pass_position(const T *row, int q, int given, T weight, T target) {
        const bool is_given = q < given;
        const int rest = is_given ? given - 1 : given;
        const T others = T(rest < 1 ? 1 : rest), self = is_given ? T(1) + T(1) / others : T(0);
        for (int e = 0; e < f; e++) asked_[e] = dot(&score_[e * x], row, x);
        std::fill(reached_.begin(), reached_.end(), T(0)); // S g
        for (int i = 0; i < given; i++) {
            scores_[i] = dot(&centred_[i * f], asked_.data(), f);
            for (int e = 0; e < f; e++) reached_[e] += centred_[i * f + e] * scores_[i];
        }
        const T *own = is_given ? &centred_[q * f] : nullptr;
        const T share = T(1) / (others * temperature_);
        const T own_score = own ? scores_[q] : T(0), own_value = own ? values_[q] : T(0);
        T output = 0;
        for (int e = 0; e < f; e++) { // what V is multiplied by, in the place of S g
            const T centred = own ? own[e] : T(0);
            reached_[e] = mean_[e] - centred / others + share * (reached_[e] - self * own_score * centred);
            asked_g_[e] = share * (worth_[e] - self * own_value * centred);
            output += reached_[e] * value_[e];
        }
        const double loss = error(Loss(plan_.loss), &output, target, weight); // its gradient in its place
        for (int e = 0; e < f; e++) {
            value_g_[e] += output * reached_[e];
            const T g = output * asked_g_[e];
            for (int c = 0; c < x; c++) score_g_[e * x + c] += g * row[c];
        }
        return loss;
    }
};

template <typename T> int linearised_all_lanes(const LinearisedPlan &plan) try {
    const FlushToZero flushed;
    Linearised<T> one(plan);
    for (int64_t lane = 0; lane < plan.lanes; lane++) one.gradient(lane);
    return 0;
} catch (const std::exception &) {
    return 1;
}

} // namespace layered
