// The loss of a block, and its backward pass: weights' gradients are added up, row after row.
#pragma once
#include "layered_forward.hpp"

class Backward : public Forward {
  protected:
    using Forward::Forward;

    // Cross entropy of the rows that carry loss; in STREAM_G the gradient by the stream after the last layer.
    __device__ void predict() const {
        const Matrix outputs = matrix(OUTPUTS, v), final = matrix(FINAL, d), stream_g = matrix(STREAM_G, d);
        const Int start = data + Int(first) * s;
        const int *const listed = ints(LOSS_ROWS), *const firsts = ints(FIRST_LOSS_ROWS);
        float *const of_rows = at(ROW_LOSSES);
        product(outputs, final, unembedding(parameters), loss_rows, v, d);
        each(loss_rows, [&](int i) {
            const int target = int(plan.targets[start + listed[i]]);
            const float weight = plan.weights[start + listed[i]];
            float top = outputs(i, 0), total = 0;
            ROLLED for (int e = 1; e < v; e++) top = outputs(i, e) > top ? outputs(i, e) : top;
            const float picked = outputs(i, target);
            ROLLED for (int e = 0; e < v; e++) total += outputs(i, e) = exponential(outputs(i, e) - top);
            of_rows[i] = logarithm(total) - (picked - top);
            const float factor = weight / total;
            ROLLED for (int e = 0; e < v; e++) outputs(i, e) *= factor;
            outputs(i, target) -= weight;
        });
        double *const losses = reinterpret_cast<double *>(at(LOSSES));
        each(by_s.quotient(rows), [&](int sequence) {
            double sum = 0;
            ROLLED for (int i = firsts[sequence]; i < firsts[sequence + 1]; i++)
                sum += double(plan.weights[start + listed[i]]) * double(of_rows[i]);
            losses[first + sequence] = sum;
        });
        if (plan.tied)
            product({gradient() + plan.ends[READING], d}, outputs.turned(), final, v, d, loss_rows, ADDED);
        else
            product(unembedding(gradient()), final.turned(), outputs, d, v, loss_rows, ADDED);
        product(stream_g, outputs, unembedding(parameters).turned(), loss_rows, d, v);
        if (plan.pre_norm)
            return_through(stream_g, matrix(FINAL_UNIT, d), at(FINAL_FACTORS), loss_rows, plan.ends[NORM],
                           plan.ends[NORM_BIAS]);
    }

    // Through a norm, in place; its gain and bias learn.
    __device__ void return_through(Matrix g, Matrix unit, const float *factors, int count, Int gain, Int bias) const {
        float *const to = gradient();
        each(bias >= 0 ? 2 * d : d, [&](int n) {
            const int e = n < d ? n : n - d;
            float &sum_at = to[(n < d ? gain : bias) + e];
            float sum = sum_at;
            ROLLED for (int i = 0; i < count; i++) sum = multiply_add(n < d ? unit(i, e) : 1.0f, g(i, e), sum);
            sum_at = sum;
        });
        each_of(count, d, [&](int i, int e) { g(i, e) *= parameters[gain + e]; });
        return_through_norm(unit, g, factors, norm_shape(count));
    }
    // The gradient by what a dropout site was given.
    __device__ Matrix thin(Matrix g, int l, bool drop, const Byte *keep, float scale) const {
        if (!drop) return g;
        const Matrix branch = matrix(BRANCH_G, d);
        each_of(ends(l), d, [&](int i, int e) {
            branch(i, e) = keep[row_of(l, i) * d + e] ? g(i, e) * scale : 0.0f;
        });
        return branch;
    }

    // From the gradient by the stream after the MLP to that by the stream before it, in place.
    __device__ void return_through_mlp(int l, Matrix g, Matrix spare) const {
        const int count = ends(l), wide = int(plan.gates) * f;
        const Matrix given = matrix(l, MLP_GIVEN, d + 1), slopes = matrix(l, SLOPES, wide);
        const Matrix active = matrix(l, ACTIVE, f + 1), active_g = matrix(ACTIVE_G, f), unit = matrix(l, MLP_UNIT, d);
        const Int gain = place(l, MLP_NORM), bias = place(l, MLP_NORM_BIAS);
        if (!plan.pre_norm) return_through(g, unit, at(l, MLP_FACTORS), count, gain, bias);
        const Matrix branch = thin(g, l, plan.dropped & OF_MLP, bytes(at(l, KEPT_MLP)), knobs[MLP_SCALE]);
        product(weight_g(l, MLP_OUT, d), active.turned(), branch, f + biased(l, MLP_OUT_BIAS), d, count, ADDED);
        product(active_g, branch, weight(l, MLP_OUT, d).turned(), count, f, d);
        each_of(count, f, [&](int i, int e) {
            slopes(i, e) *= active_g(i, e);
            if (plan.gates == 2) slopes(i, f + e) *= active_g(i, e);
        });
        product(weight_g(l, MLP_IN, wide), given.turned(), slopes, d + biased(l, MLP_IN_BIAS), wide, count, ADDED);
        if (!plan.pre_norm) {
            product(g, slopes, weight(l, MLP_IN, wide).turned(), count, d, wide, ADDED);
            return;
        }
        product(spare, slopes, weight(l, MLP_IN, wide).turned(), count, d, wide);
        return_through(spare, unit, at(l, MLP_FACTORS), count, gain, bias);
        each_of(count, d, [&](int i, int e) { g(i, e) += spare(i, e); });
    }

    // From the gradient by the stream after attention to that by the stream before it, at `to`.
    __device__ void return_through_attention(int l, Matrix g, Matrix to) const {
        const int count = ends(l);
        const Matrix unit = matrix(l, UNIT, d), mixed_g = matrix(MIXED_G, d);
        const Int gain = place(l, ATTENTION_NORM), bias = place(l, ATTENTION_NORM_BIAS);
        if (!plan.pre_norm) return_through(g, unit, at(l, FACTORS), count, gain, bias);
        const bool drop = plan.dropped & OF_ATTENTION;
        const Matrix branch = thin(g, l, drop, bytes(at(l, KEPT_ATTENTION)), knobs[ATTENTION_SCALE]);
        product(weight_g(l, OUTPUT, d), matrix(l, MIXED, d + 1).turned(), branch, d + biased(l, OUTPUT_BIAS), d, count,
                ADDED);
        product(mixed_g, branch, weight(l, OUTPUT, d).turned(), count, d, d);
        return_through_weights(l);
        return_through_maps(l, to);
        if (plan.pre_norm) return_through(to, unit, at(l, FACTORS), rows, gain, bias);
        each_of(count, d, [&](int i, int e) { to(row_of(l, i), e) += g(i, e); });
    }
    // The gradients by queries, keys and values.
    __device__ void return_through_weights(int l) const {
        const int count = ends(l);
        const Matrix queries = matrix(l, QUERIES, d), keys = matrix(l, KEYS, d), values = matrix(l, VALUES, d);
        const Matrix weights = matrix(l, WEIGHTS, s), weights_g = matrix(WEIGHTS_G, s), mixed_g = matrix(MIXED_G, d);
        const Matrix queries_g = matrix(QUERIES_G, d), keys_g = matrix(KEYS_G, d), values_g = matrix(VALUES_G, d);
        each_of(count * h, s, [&](int line, int j) {
            const int i = by_h.quotient(line), head = line - i * h, row = row_of(l, i), start = first_of_sequence(row);
            if (j > row - start) return;
            float sum = 0;
            ROLLED for (int e = head * c; e < head * c + c; e++)
                sum = multiply_add(mixed_g(i, e), values(start + j, e), sum);
            weights_g(line, j) = sum;
        });
        each(count * h, [&](int line) {
            const int i = by_h.quotient(line), row = row_of(l, i), end = row - first_of_sequence(row);
            const float scale = factor_of(line - i * h) / sqrtf(float(c));
            float inner = 0;
            ROLLED for (int j = 0; j <= end; j++) inner = multiply_add(weights(line, j), weights_g(line, j), inner);
            ROLLED for (int j = 0; j <= end; j++)
                weights_g(line, j) = weights(line, j) * (weights_g(line, j) - inner) * scale;
        });
        each_of(count, d, [&](int i, int e) {
            const int row = row_of(l, i), start = first_of_sequence(row), line = i * h + by_c.quotient(e);
            float sum = 0;
            ROLLED for (int j = 0; j <= row - start; j++) sum = multiply_add(weights_g(line, j), keys(start + j, e), sum);
            queries_g(i, e) = sum;
        });
        each_of(rows, d, [&](int row, int e) {
            const int sequence = by_s.quotient(row), j = row - sequence * s, head = by_c.quotient(e);
            const int end = first_end(l, sequence + 1);
            int i = first_end(l, sequence);
            while (i < end && row_of(l, i) < row) i++; // earlier queries do not see this key
            float key = 0, value = 0;
            ROLLED for (; i < end; i++) {
                key = multiply_add(weights_g(i * h + head, j), queries(i, e), key);
                value = multiply_add(weights(i * h + head, j), mixed_g(i, e), value);
            }
            keys_g(row, e) = key, values_g(row, e) = value;
        });
        if (!plan.cosines) return;
        turn(queries_g, l, count, -1.0f);
        turn(keys_g, -1, rows, -1.0f);
    }
    // The gradient by what queries, keys and values are made of, at `to`; the maps learn.
    __device__ void return_through_maps(int l, Matrix to) const {
        const int count = ends(l), inputs = d + biased(l, QUERY_KEY_VALUE_BIAS), wide = 3 * d;
        const Matrix queries_g = matrix(QUERIES_G, d), keys_g = matrix(KEYS_G, d), values_g = matrix(VALUES_G, d);
        const Matrix given = matrix(l, GIVEN, d + 1).turned(), back = weight(l, QUERY_KEY_VALUE, wide).turned();
        const Matrix asked = matrix(l, l == last ? ASKED : GIVEN, d + 1).turned();
        product(weight_g(l, QUERY_KEY_VALUE, wide), asked, queries_g, inputs, d, count, ADDED);
        product(weight_g(l, QUERY_KEY_VALUE, wide, d), given, keys_g, inputs, d, rows, ADDED);
        product(weight_g(l, QUERY_KEY_VALUE, wide, 2 * d), given, values_g, inputs, d, rows, ADDED);
        product(to, keys_g, weight(l, QUERY_KEY_VALUE, wide, d).turned(), rows, d, d);
        product(to, values_g, weight(l, QUERY_KEY_VALUE, wide, 2 * d).turned(), rows, d, d, ADDED);
        if (l != last) {
            product(to, queries_g, back, rows, d, d, ADDED);
            return;
        }
        const Matrix of_queries = matrix(BRANCH_G, d);
        product(of_queries, queries_g, back, count, d, d);
        each_of(count, d, [&](int i, int e) { to(row_of(l, i), e) += of_queries(i, e); });
    }

    // Positions and tokens learn. A position's, and a token's, gradients are added by one thread, row after row.
    __device__ void learn_embedding(Matrix g) const {
        float *const to = gradient();
        const int *const tokens = ints(TOKENS);
        int *const leaders = ints(LEADERS);
        if (plan.dropped & OF_EMBEDDING) {
            const Byte *const keep = bytes(at(KEPT_EMBEDDING));
            each_of(rows, d, [&](int row, int e) {
                g(row, e) = keep[row * d + e] ? g(row, e) * knobs[EMBEDDING_SCALE] : 0.0f;
            });
        }
        if (plan.ends[POSITIONS] >= 0)
            each_of(s, d, [&](int i, int e) {
                float sum = to[plan.ends[POSITIONS] + i * d + e];
                ROLLED for (int row = i; row < rows; row += s) sum += g(row, e);
                to[plan.ends[POSITIONS] + i * d + e] = sum;
            });
        each(rows, [&](int row) {
            int leader = 0;
            while (tokens[leader] != tokens[row]) leader++;
            leaders[row] = leader;
        });
        each_of(rows, d, [&](int row, int e) {
            if (leaders[row] != row) return;
            float &sum_at = to[plan.ends[READING] + tokens[row] * d + e];
            float sum = sum_at;
            ROLLED for (int other = row; other < rows; other++)
                if (leaders[other] == row) sum += g(other, e);
            sum_at = sum;
        });
    }
};
