// Loss and gradient of linearised attention (workers/networks/models/linearised_attention.py), or its outputs alone, one lane
// after another.
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
    const void *weights;     // [L][N][s] of a position's loss; null: of outputs, all are computed
    const int64_t *lengths;  // [L][N] positions that are given; null: all
    const void *temperatures; // [L]
    void *outputs_values;    // [L][N][s] where positions weigh anything, else 0; null: the gradient is computed
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
        open(lane);
        std::fill(score_g_.begin(), score_g_.end(), T(0)), std::fill(value_g_.begin(), value_g_.end(), T(0));
        double loss = 0;
        each_position(lane, [&](int64_t number, const T *row) {
            loss += learn(row, number_at(plan_.weights, number), number_at(plan_.targets, number));
        });
        const int64_t *at = plan_.places;
        T *to = static_cast<T *>(plan_.gradient) + lane * plan_.total;
        std::copy_n(score_g_.begin(), x * x, to + at[0]);
        std::copy_n(score_g_.begin() + x * x, x, to + at[1]);
        std::copy_n(value_g_.begin(), x, to + at[2]);
        to[at[3]] = value_g_[x];
        static_cast<T *>(plan_.loss_values)[lane] = T(loss);
    }

    void evaluate(int64_t lane) {
        open(lane);
        T *outputs = static_cast<T *>(plan_.outputs_values);
        std::fill_n(outputs + lane * plan_.batch * plan_.length, plan_.batch * plan_.length, T(0));
        each_position(lane, [&](int64_t number, const T *) { outputs[number] = output_; });
    }

  private:
    const LinearisedPlan &plan_;
    const int f, x; // features, and those without the label
    T temperature_ = 1, output_ = 0;
    std::vector<T> score_, value_, score_g_, value_g_; // [f][x], [f]
    std::vector<T> mean_, asked_, asked_g_, reached_, worth_;
    std::vector<T> centred_;         // [s][f]
    std::vector<T> values_, scores_; // [s]

    static T dot(const T *a, const T *b, int count) {
        T total = 0;
        for (int e = 0; e < count; e++) total = multiply_add(a[e], b[e], total);
        return total;
    }

    static T number_at(const void *numbers, int64_t number) { return static_cast<const T *>(numbers)[number]; }

    void open(int64_t lane) {
        const T *parameters = static_cast<const T *>(plan_.parameters) + lane * plan_.total;
        const int64_t *at = plan_.places;
        std::copy_n(parameters + at[0], x * x, score_.begin());
        std::copy_n(parameters + at[1], x, score_.begin() + x * x);
        std::copy_n(parameters + at[2], x, value_.begin());
        value_[x] = parameters[at[3]];
        temperature_ = static_cast<const T *>(plan_.temperatures)[lane];
    }

    // Calls work(number, row) for each position of the lane that weighs anything, after its output is computed.
    template <typename Work> void each_position(int64_t lane, Work work) {
        const int64_t s = plan_.length;
        const T *rows = static_cast<const T *>(plan_.inputs);
        for (int64_t prompt = lane * plan_.batch; prompt < (lane + 1) * plan_.batch; prompt++) {
            const int given = open_prompt(prompt, rows + prompt * s * f);
            for (int64_t number = prompt * s; number < (prompt + 1) * s; number++) {
                if (plan_.weights && number_at(plan_.weights, number) == T(0)) continue; // what is no number counts
                pass_position(rows + number * f, int(number - prompt * s), given);
                work(number, rows + number * f);
            }
        }
    }

    // Its rows without their mean, and how many are given.
    int open_prompt(int64_t prompt, const T *rows) {
        const int s = int(plan_.length);
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
            for (int e = 0; e < f; e++) 
                worth_[e] = multiply_add(centred_[i * f + e], values_[i], worth_[e]);
        }
        return given;
    }

    // The output at one position, given or not, and what its gradient is made of.
    void pass_position(const T *row, int q, int given) {
        const bool is_given = q < given;
        const int rest = is_given ? given - 1 : given;
        const T others = T(rest < 1 ? 1 : rest), self = is_given ? T(1) + T(1) / others : T(0);
        for (int e = 0; e < f; e++) asked_[e] = dot(&score_[e * x], row, x);
        std::fill(reached_.begin(), reached_.end(), T(0)); // S g
        for (int i = 0; i < given; i++) {
            scores_[i] = dot(&centred_[i * f], asked_.data(), f);
            for (int e = 0; e < f; e++) 
                reached_[e] = multiply_add(centred_[i * f + e], scores_[i], reached_[e]);
        }
        const T *own = is_given ? &centred_[q * f] : nullptr;
        const T share = T(1) / (others * temperature_);
        const T own_score = own ? scores_[q] : T(0), own_value = own ? values_[q] : T(0);
        output_ = 0;
        for (int e = 0; e < f; e++) { // what V is multiplied by, in the place of S g
            const T centred = own ? own[e] : T(0);
            reached_[e] = mean_[e] - centred / others + share * (reached_[e] - self * own_score * centred);
            asked_g_[e] = share * (worth_[e] - self * own_value * centred);
            output_ += reached_[e] * value_[e];
        }
    }

    // The loss of the position that was passed last; adds its gradient.
    double learn(const T *row, T weight, T target) {
        const double loss = error(Loss(plan_.loss), &output_, target, weight); // its gradient in its place
        for (int e = 0; e < f; e++) {
            value_g_[e] += output_ * reached_[e];
            const T g = output_ * asked_g_[e];
            for (int c = 0; c < x; c++) score_g_[e * x + c] += g * row[c];
        }
        return loss;
    }
};

template <typename T> int linearised_all_lanes(const LinearisedPlan &plan) try {
    const FlushToZero flushed;
    Linearised<T> one(plan);
    for (int64_t lane = 0; lane < plan.lanes; lane++)
        if (plan.outputs_values)
            one.evaluate(lane);
        else
            one.gradient(lane);
    return 0;
} catch (const std::exception &) {
    return 1;
}

} // namespace layered
