// The update of a lane's parameters, and the sums that it needs.
#pragma once
#include "plan.hpp"
#include "products.hpp"

// Clipping, AdamW or Adam, and averages of a lane at the n-th step of a launch: the formulas of
// workers/numerics/native/update.hpp, parameter by parameter. `length`: of the gradient.
class Update {
  public:
    __device__ Update(const Plan &given, int number, int n, float length)
        : plan(given), lane(number), scalars(given.scalars + (n * given.lanes + number) * (SCALARS + given.averages)) {
        const float ratio = float(scalars[CLIP_NORM]) / (length + 1e-6f);
        share = ratio > 1.0f ? 1.0f : ratio;
        rate = float(scalars[STEP_SIZE]), first_share = float(scalars[FIRST_SHARE]);
        correction = float(scalars[CORRECTION2]), epsilon = float(scalars[ADAM_EPSILON]);
    }
    // `index`: among the parameters of all lanes; `decays`: 1 where weight decay applies, else 0.
    __device__ void move(float &own, float gradient, float decays, Int index) const {
        const float decay = float(scalars[DECAY]) * decays;
        float g = gradient * share, x = own;
        if (plan.decoupled)
            x = x * (1.0f - decay);
        else
            g = g + decay * x;
        const float first = plan.first[index] + first_share * (g - plan.first[index]);
        const double before = plan.second[index];
        const double second = before + scalars[SECOND_SHARE] * (double(g) * double(g) - before);
        x = x - rate * (first / (sqrtf(float(second)) / correction + epsilon));
        own = x;
        plan.first[index] = first;
        plan.second[index] = second;
        ROLLED for (int k = 0; k < plan.averages; k++) {
            double &average = plan.shadow[index + (lane * (plan.averages - 1) + k) * plan.parameters];
            average = average + scalars[SCALARS + k] * (double(x) - average);
        }
    }

  private:
    const Plan &plan;
    const int lane;
    const double *const scalars;
    float share, rate, first_share, correction, epsilon;
};

// Each thread adds the squares of its own entries to its sum; which these are depends on the matrix alone.
__device__ inline void add_squares(double *sums, Matrix matrix, int rows, int columns) {
    const Divisor divisor(columns);
    each(THREADS, [&](int thread) {
        double sum = sums[thread];
        for (int n = thread; n < rows * columns; n += THREADS) {
            const int i = divisor.quotient(n);
            const double value = matrix(i, n - i * columns);
            sum += value * value;
        }
        sums[thread] = sum;
    });
}
// The sum of these numbers, by halves of THREADS partial sums.
__device__ inline double sum_in(double *sums, const float *numbers, int count) {
    each(THREADS, [&](int thread) {
        double total = 0;
        for (int n = thread; n < count; n += THREADS) total += double(numbers[n]);
        sums[thread] = total;
    });
    return sum_of(sums);
}
