// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang and Sennrich 2019) of rows without what they learn, and their gradients.
#pragma once
#include "products.hpp"

struct NormShape {
    int rows, columns;
    bool centred; // the mean is taken off first
    float epsilon;
};

// Rows to unit length in the root mean square; `factors`: what each was multiplied by. `put(i, c, value)` gets what
// `to` gets.
template <typename Put>
__device__ inline void normalise(Matrix from, Matrix to, float *factors, const NormShape &shape, Put put) {
    const int d = shape.columns;
    each(shape.rows, [&](int i) {
        float total = 0, squares = 0;
        if (shape.centred) {
            ROLLED for (int c = 0; c < d; c++) total += from(i, c);
            total /= float(d);
            ROLLED for (int c = 0; c < d; c++) to(i, c) = from(i, c) - total;
        }
        const Matrix own = shape.centred ? to : from;
        ROLLED for (int c = 0; c < d; c++) squares = multiply_add(own(i, c), own(i, c), squares);
        factors[i] = 1.0f / sqrtf(squares / float(d) + shape.epsilon);
    });
    each_of(shape.rows, d, [&](int i, int c) {
        const float value = (shape.centred ? to(i, c) : from(i, c)) * factors[i];
        to(i, c) = value;
        put(i, c, value);
    });
}
// The gradient by what was normed, in the place of that by what became of it.
__device__ inline void return_through_norm(Matrix normed, Matrix gradient, const float *factors, const NormShape &shape) {
    const int d = shape.columns;
    each(shape.rows, [&](int i) {
        float inner = 0, mean = 0;
        ROLLED for (int c = 0; c < d; c++) inner = multiply_add(normed(i, c), gradient(i, c), inner);
        if (shape.centred) {
            ROLLED for (int c = 0; c < d; c++) mean += gradient(i, c);
            mean /= float(d);
        }
        inner /= float(d);
        ROLLED for (int c = 0; c < d; c++)
            gradient(i, c) = factors[i] * (gradient(i, c) - mean - normed(i, c) * inner);
    });
}
