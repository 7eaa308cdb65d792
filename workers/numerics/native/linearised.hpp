// Loss and gradient of linearised attention (workers/networks/models/linearised_attention.py), or its outputs alone, one
// lane after another.
//
// A prompt's output at position q is (m - c_q / o) V + (S g - (1 + 1 / o) (g . c_q) c_q) V / (o t) with g = M x_q, the
// mean row m, rows c_i = r_i - m without it, S the sum of c_i c_i', o other positions and the temperature t; rows that
// are not given count nowhere. Linear attention, which is not centred, has c_i = r_i and (S g - (g . c_q) c_q) V / (o t).
// Both are linear in V and in M, so that the gradient needs the same few sums. Prompts are worked on side by side, one
// in each place of a register: a prompt's sums run in one order, however wide a register is.
//
// Legend: L lanes, N prompts, s positions, f features of a row, of which the last is the label.

#pragma once
#include <algorithm>
#include <vector>

#include "driver.hpp"
#include "losses.hpp"
#include "memory.hpp"

// As `_Plan` of workers/networks/gradients/linearised.py, in the same order.
struct LinearisedPlan {
    int64_t lanes, batch, length, features, total, loss, centred;
    const int64_t *offsets;  // [4] the scores' rows of inputs and label, then the values'
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
        : plan_(plan), s(int(plan.length)), f(int(plan.features)), x(f - 1), score_(f * x), value_(f), score_g_(f * x),
          value_g_(f),
          memory_(sizeof(T) * W<T> * (std::size_t(s) * (f + 2) + W<T> + 6 * f) + 64 * LINE_BYTES) {
        rows_ = memory_.template take<T>((std::size_t(s) * f + W<T>) * W<T>);
        for (T **numbers : {&values_, &scores_}) *numbers = memory_.template take<T>(std::size_t(s) * W<T>);
        for (T **numbers : {&mean_, &asked_, &asked_g_, &reached_, &worth_, &own_})
            *numbers = memory_.template take<T>(f * W<T>);
    }

    void gradient(int64_t lane) {
        open(lane);
        std::fill(score_g_.begin(), score_g_.end(), T(0)), std::fill(value_g_.begin(), value_g_.end(), T(0));
        double loss = 0;
        each_position(lane, [&](int64_t number, int n) { loss += learn(number, n); });
        const int64_t *at = plan_.offsets;
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
        each_position(lane, [&](int64_t number, int n) { outputs[number] = output_[n]; });
    }

  private:
    const LinearisedPlan &plan_;
    const int s, f, x; // positions, features, and those without the label
    V<T> temperature_ = {}, output_ = {};
    std::vector<T> score_, value_, score_g_, value_g_; // [f][x], [f]
    Memory memory_;

    // Of W prompts side by side.
    V<T> given_ = {};       // how many rows each has
    int least_ = 0;         // the smallest of these
    T *rows_;               // [s][f][W] without their mean, zero where none is given
    T *values_, *scores_;   // [s][W]
    T *mean_, *asked_, *asked_g_, *reached_, *worth_, *own_; // [f][W]

    static T number_at(const void *numbers, int64_t number) { return static_cast<const T *>(numbers)[number]; }
    const T *row_at(int64_t number) const { return static_cast<const T *>(plan_.inputs) + number * f; }

    void open(int64_t lane) {
        const T *parameters = static_cast<const T *>(plan_.parameters) + lane * plan_.total;
        const int64_t *at = plan_.offsets;
        std::copy_n(parameters + at[0], x * x, score_.begin());
        std::copy_n(parameters + at[1], x, score_.begin() + x * x);
        std::copy_n(parameters + at[2], x, value_.begin());
        value_[x] = parameters[at[3]];
        temperature_ = all(static_cast<const T *>(plan_.temperatures)[lane]);
    }

    // Calls work(number, place among W) for each position of the lane that weighs anything, its output computed.
    template <typename Work> void each_position(int64_t lane, Work work) {
        const int64_t end = (lane + 1) * plan_.batch;
        for (int64_t prompt = lane * plan_.batch; prompt < end; prompt += W<T>) {
            const int count = int(end - prompt < W<T> ? end - prompt : W<T>);
            open_prompts(prompt, count);
            for (int q = 0; q < s; q++) {
                bool some = false;
                for (int n = 0; n < count; n++) some |= weighs((prompt + n) * s + q);
                if (!some) continue;
                pass_position(prompt * s + q, q, count);
                for (int n = 0; n < count; n++)
                    if (weighs((prompt + n) * s + q)) work((prompt + n) * s + q, n);
            }
        }
    }
    bool weighs(int64_t number) const { // with a weight of NaN too, so that it reaches the loss
        return !plan_.weights || number_at(plan_.weights, number) != T(0);
    }

    // Rows of `count` prompts, turned, without their means.
    void open_prompts(int64_t prompt, int count) {
        least_ = s;
        for (int n = 0; n < W<T>; n++) {
            const int64_t told = plan_.lengths && n < count ? plan_.lengths[prompt + n] : s;
            const int given = int(told < 1 ? 1 : told > s ? s : told);
            given_[n] = T(given), least_ = given < least_ ? given : least_;
        }
        turn_rows(prompt, count);
        for (int e = 0; e < f; e++) store<T>(mean_ + e * W<T>, V<T>{}), store<T>(worth_ + e * W<T>, V<T>{}); // S V
        for (int i = 0; plan_.centred && i < s; i++)
            for (int e = 0; e < f; e++)
                store<T>(mean_ + e * W<T>, load<T>(mean_ + e * W<T>) + within(i, load<T>(row(i, e))));
        for (int e = 0; e < f; e++) store<T>(mean_ + e * W<T>, load<T>(mean_ + e * W<T>) / given_);
        for (int i = 0; i < s; i++) {
            V<T> value = {};
            for (int e = 0; e < f; e++) {
                const V<T> centred = within(i, load<T>(row(i, e)) - load<T>(mean_ + e * W<T>));
                store<T>(row(i, e), centred);
                value = multiply_add(centred, all(value_[e]), value);
            }
            store<T>(values_ + i * W<T>, value);
            for (int e = 0; e < f; e++)
                store<T>(worth_ + e * W<T>, multiply_add(load<T>(row(i, e)), value, load<T>(worth_ + e * W<T>)));
        }
    }
    T *row(int i, int e) const { return rows_ + (std::ptrdiff_t(i) * f + e) * W<T>; }
    // Zero where a prompt has no row i.
    V<T> within(int i, V<T> numbers) const { return i < least_ ? numbers : (all(T(i)) < given_ ? numbers : V<T>{}); }

    void turn_rows(int64_t prompt, int count) {
        const T *from = row_at(prompt * s);
        const int all_of = s * f, whole = all_of / W<T> * W<T>;
        transpose(rows_, W<T>, from, all_of, count, whole);
        for (int c = whole; c < all_of; c++) // a register more would be read past the last row
            for (int n = 0; n < W<T>; n++) rows_[c * W<T> + n] = n < count ? from[n * all_of + c] : T(0);
    }

    // The outputs of `count` prompts at position q, given or not, and what their gradients are made of; `number`: the
    // first prompt's position.
    void pass_position(int64_t number, int q, int count) {
        const auto is_given = all(T(q)) < given_;
        const V<T> rest = is_given ? given_ - T(1) : given_, others = rest < T(1) ? all(T(1)) : rest;
        const V<T> once = plan_.centred ? T(1) + T(1) / others : all(T(1)), self = is_given ? once : V<T>{};
        ask(number, count);
        for (int e = 0; e < f; e++) store<T>(reached_ + e * W<T>, V<T>{}); // S g
        for (int i = 0; i < s; i++) {
            V<T> score = {};
            for (int e = 0; e < f; e++) score = multiply_add(load<T>(row(i, e)), load<T>(asked_ + e * W<T>), score);
            store<T>(scores_ + i * W<T>, score);
            for (int e = 0; e < f; e++)
                store<T>(reached_ + e * W<T>, multiply_add(load<T>(row(i, e)), score, load<T>(reached_ + e * W<T>)));
        }
        const V<T> share = T(1) / (others * temperature_);
        const V<T> own_score = load<T>(scores_ + q * W<T>), own_value = load<T>(values_ + q * W<T>);
        output_ = V<T>{};
        for (int e = 0; e < f; e++) { // what V is multiplied by, in the place of S g
            const V<T> centred = load<T>(row(q, e));
            const V<T> mean = plan_.centred ? load<T>(mean_ + e * W<T>) - centred / others : V<T>{};
            const V<T> reached = mean + share * (load<T>(reached_ + e * W<T>) - self * own_score * centred);
            store<T>(reached_ + e * W<T>, reached);
            store<T>(asked_g_ + e * W<T>, share * (load<T>(worth_ + e * W<T>) - self * own_value * centred));
            output_ += reached * all(value_[e]);
        }
    }

    // g = M x_q of each prompt.
    void ask(int64_t number, int count) {
        for (int e = 0; e < x; e++)
            for (int n = 0; n < W<T>; n++)
                own_[e * W<T> + n] = n < count ? row_at(number + std::ptrdiff_t(n) * s)[e] : T(0);
        for (int e = 0; e < f; e++) {
            V<T> total = {};
            for (int c = 0; c < x; c++) total = multiply_add(all(score_[e * x + c]), load<T>(own_ + c * W<T>), total);
            store<T>(asked_ + e * W<T>, total);
        }
    }

    // The loss of prompt n at the position that was passed last; adds its gradient.
    double learn(int64_t number, int n) {
        T output = output_[n];
        const T *own = row_at(number);
        const T weight = number_at(plan_.weights, number), target = number_at(plan_.targets, number);
        const double loss = regression_loss(Loss(plan_.loss), &output, target, weight); // its gradient in its place
        for (int e = 0; e < f; e++) {
            value_g_[e] += output * reached_[e * W<T> + n];
            const T g = output * asked_g_[e * W<T> + n];
            for (int c = 0; c < x; c++) score_g_[e * x + c] += g * own[c];
        }
        return loss;
    }
};

} // namespace layered
