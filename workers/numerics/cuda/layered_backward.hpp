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
        product(outputs, final, unembedding(parameters()), loss_rows, v, d);
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
        each(by_s().quotient(rows), [&](int sequence) {
            double sum = 0;
            ROLLED for (int i = firsts[sequence]; i < firsts[sequence + 1]; i++)
                sum += double(plan.weights[start + listed[i]]) * double(of_rows[i]);
            losses[first + sequence] = sum;
        });
        if (plan.tied)
            product({gradient() + plan.ends[READING], d}, outputs.turned(), final, v, d, loss_rows, ADDED);
        else
            product(unembedding(gradient()), final.turned(), outputs, d, v, loss_rows, ADDED);
        product(stream_g, outputs, unembedding(parameters()).turned(), loss_rows, d, v);
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
        each_of(count, d, [&](int i, int e) { g(i, e) *= parameters()[gain + e]; });
        return_through_norm(unit, g, factors, norm_shape(count));
    }
    // The gradient by what a dropout site was given.
    __device__ Matrix thin(Matrix g, int l, const Byte *keep, float scale) const {
        if (!keep) return g;
        const Matrix branch = matrix(BRANCH_G, d);
        each_of(ends(l), d, [&](int i, int e) {
            branch(i, e) = keep[row_of(l, i) * d + e] ? g(i, e) * scale : 0.0f;
        });
        return branch;
    }

    // From the gradient by the stream after the MLP to that by the stream before it, in place.
    __device__ void return_through_mlp(int l, Matrix g, Matrix spare) const {
        const int wide = int(plan.gates) * f;
        if (!plan.pre_norm) return_through_mlp_norm(l, g);
        const Matrix branch = thin(g, l, kept(OF_MLP, at(l, KEPT_MLP)), knob(MLP_SCALE));
        product(weight_g(l, MLP_OUT, d), matrix(l, ACTIVE, f + 1).turned(), branch, f + biased(l, MLP_OUT_BIAS), d,
                ends(l), ADDED);
        product(matrix(ACTIVE_G, f), branch, weight(l, MLP_OUT, d).turned(), ends(l), f, d);
        return_through_activation(l);
        product(weight_g(l, MLP_IN, wide), matrix(l, MLP_GIVEN, d + 1).turned(), matrix(l, SLOPES, wide),
                d + biased(l, MLP_IN_BIAS), wide, ends(l), ADDED);
        product(plan.pre_norm ? spare : g, matrix(l, SLOPES, wide), weight(l, MLP_IN, wide).turned(), ends(l), d, wide,
                plan.pre_norm ? REPLACED : ADDED);
        if (!plan.pre_norm) return;
        return_through_mlp_norm(l, spare);
        each_of(ends(l), d, [&](int i, int e) { g(i, e) += spare(i, e); });
    }
    __device__ void return_through_mlp_norm(int l, Matrix g) const {
        return_through(g, matrix(l, MLP_UNIT, d), at(l, MLP_FACTORS), ends(l), place(l, MLP_NORM),
                       place(l, MLP_NORM_BIAS));
    }
    __device__ void return_through_activation(int l) const {
        if (plan.splines) learn_spline(l);
        const Matrix slopes = matrix(l, SLOPES, int(plan.gates) * f), active_g = matrix(ACTIVE_G, f);
        each_of(ends(l), f, [&](int i, int e) {
            slopes(i, e) *= active_g(i, e);
            if (plan.gates == 2) slopes(i, f + e) *= active_g(i, e);
        });
    }

    // Each thread adds up what its own entries say of the cells that they are in.
    __device__ void learn_spline(int l) const {
        const Spline spline = this->spline(l);
        const Matrix points = matrix(l, POINTS, f), active_g = matrix(ACTIVE_G, f);
        const int cells = spline.knots + 1, entries = ends(l) * f;
        float *const sums = at(CELLS) + (plan.splines > 1 ? l : 0) * 2 * cells * THREADS;
        const Divisor by_f(f);
        each(THREADS, [&](int thread) {
            ROLLED for (int n = thread; n < entries; n += THREADS) {
                const int i = by_f.quotient(n), e = n - i * f;
                float share;
                const int cell = spline.cell(points(i, e), share);
                sums[cell * THREADS + thread] += active_g(i, e);
                sums[(cells + cell) * THREADS + thread] += active_g(i, e) * share;
            }
        });
    }
    // The knots' gradient, of all layers and blocks. A cell's value is left + share * (right - left); beyond the ends
    // nothing rises.
    __device__ void learn_knots() const {
        const int knots = int(plan.knots), cells = knots + 1;
        double *const totals = reinterpret_cast<double *>(at(CELL_SUMS));
        ROLLED for (int l = 0; l < plan.splines; l++) {
            const float *const sums = at(CELLS) + l * 2 * cells * THREADS;
            each(2 * cells, [&](int n) {
                double total = 0;
                ROLLED for (int thread = 0; thread < THREADS; thread++) total += double(sums[n * THREADS + thread]);
                totals[n] = n == cells || n == 2 * cells - 1 ? 0 : total;
            });
            float *const to = gradient() + place(l, KNOTS);
            each(knots, [&](int k) {
                const double ends = k == 0 ? totals[0] : 0; // the first cell's value is the first knot's
                to[k] = float(ends + totals[k + 1] - totals[cells + k + 1] + totals[cells + k]);
            });
        }
    }

    // From the gradient by the stream after attention to that by the stream before it, at `to`.
    __device__ void return_through_attention(int l, Matrix g, Matrix to) const {
        if (!plan.pre_norm) return_through_attention_norm(l, g, ends(l));
        const Matrix branch = thin(g, l, kept(OF_ATTENTION, at(l, KEPT_ATTENTION)), knob(ATTENTION_SCALE));
        product(weight_g(l, OUTPUT, d), matrix(l, MIXED, d + 1).turned(), branch, d + biased(l, OUTPUT_BIAS), d,
                ends(l), ADDED);
        product(matrix(MIXED_G, d), branch, weight(l, OUTPUT, d).turned(), ends(l), d, d);
        return_through_weights(l);
        mix(l, matrix(QUERIES_G, d), matrix(WEIGHTS_G, s), matrix(l, KEYS, d));
        return_to_keys(l);
        if (plan.cosines) turn(matrix(QUERIES_G, d), l, ends(l), -1.0f), turn(matrix(KEYS_G, d), -1, rows, -1.0f);
        return_through_maps(l, to);
        if (plan.pre_norm) return_through_attention_norm(l, to, rows);
        each_of(ends(l), d, [&](int i, int e) { to(row_of(l, i), e) += g(i, e); });
    }
    __device__ void return_through_attention_norm(int l, Matrix g, int count) const {
        return_through(g, matrix(l, UNIT, d), at(l, FACTORS), count, place(l, ATTENTION_NORM),
                       place(l, ATTENTION_NORM_BIAS));
    }
    // The gradient by products of queries and keys.
    __device__ void return_through_weights(int l) const {
        const Matrix values = matrix(l, VALUES, d), mixed_g = matrix(MIXED_G, d), weights_g = matrix(WEIGHTS_G, s);
        each_of(ends(l) * h, s, [&](int line, int j) {
            const int i = by_h().quotient(line), head = line - i * h, row = row_of(l, i);
            const int start = first_of_sequence(row);
            if (j > row - start) return;
            float sum = 0;
            for (int e = head * c; e < head * c + c; e++)
                sum = multiply_add(mixed_g(i, e), values(start + j, e), sum);
            weights_g(line, j) = sum;
        });
        const Matrix weights = matrix(l, WEIGHTS, s);
        each(ends(l) * h, [&](int line) {
            const int i = by_h().quotient(line), row = row_of(l, i), end = row - first_of_sequence(row);
            const float scale = factor_of(line - i * h) / sqrtf(float(c));
            float inner = 0;
            ROLLED for (int j = 0; j <= end; j++) inner = multiply_add(weights(line, j), weights_g(line, j), inner);
            ROLLED for (int j = 0; j <= end; j++)
                weights_g(line, j) = weights(line, j) * (weights_g(line, j) - inner) * scale;
        });
        if (plan.bent) unbend(l);
    }
    // From the gradient by bent logits to that by logits, in place; b and n learn. What is in place has the scale already that
    // products of queries and keys are multiplied by, which b and n do not have.
    __device__ void unbend(int l) const {
        const Matrix weights_g = matrix(WEIGHTS_G, s), logits = matrix(l, LOGITS, s);
        float *const by_b = at(BENT_G), *const by_n = by_b + rows * h, *const to = gradient();
        const float scale = 1.0f / sqrtf(float(c));
        each(ends(l) * h, [&](int line) {
            const int i = by_h().quotient(line), row = row_of(l, i), end = row - first_of_sequence(row);
            const float b = b_of(l, line - i * h), n = n_of(l, line - i * h);
            float of_b = 0, of_n = 0;
            ROLLED for (int j = 0; j <= end; j++) {
                const float z = logits(line, j), g = weights_g(line, j), size = b * absolute(z);
                const float bent = logarithm_of_1_plus(size);
                of_b += g * (n * z / (1.0f + size));
                of_n += g * (z < 0.0f ? -bent : bent);
                weights_g(line, j) = g * (n * b / (1.0f + size));
            }
            by_b[line] = of_b / scale, by_n[line] = of_n / scale;
        });
        if (plan.learned[l][0] < 0) return;
        each(2 * h, [&](int which) {
            const int head = which < h ? which : which - h;
            const float *const of = which < h ? by_b : by_n;
            float sum = 0;
            ROLLED for (int line = head; line < ends(l) * h; line += h) sum += of[line];
            const float own = learned(l, which >= h, head);
            const bool turned = which < h ? own < 0.0f : own < 1.0f;
            to[plan.learned[l][which >= h] + head] += turned ? -sum : sum;
        });
    }
    // The gradients by keys and values: of each what the queries send back that see it, one after another.
    __device__ void return_to_keys(int l) const {
        const Matrix queries = matrix(l, QUERIES, d), weights = matrix(l, WEIGHTS, s), mixed_g = matrix(MIXED_G, d);
        const Matrix keys_g = matrix(KEYS_G, d), values_g = matrix(VALUES_G, d), weights_g = matrix(WEIGHTS_G, s);
        each_of(rows, d, [&](int row, int e) {
            const int sequence = by_s().quotient(row), j = row - sequence * s, head = by_c().quotient(e);
            const int end = first_end(l, sequence + 1);
            int i = first_end(l, sequence);
            while (i < end && row_of(l, i) < row) i++;
            float key = 0, value = 0;
            for (; i < end; i++) {
                key = multiply_add(weights_g(i * h + head, j), queries(i, e), key);
                value = multiply_add(weights(i * h + head, j), mixed_g(i, e), value);
            }
            keys_g(row, e) = key, values_g(row, e) = value;
        });
    }
    // The gradient by what queries, keys and values are made of, at `to`; the maps learn.
    __device__ void return_through_maps(int l, Matrix to) const {
        const int inputs = d + biased(l, QUERY_KEY_VALUE_BIAS), wide = 3 * d;
        product(weight_g(l, QUERY_KEY_VALUE, wide), matrix(l, l == last ? ASKED : GIVEN, d + 1).turned(),
                matrix(QUERIES_G, d), inputs, d, ends(l), ADDED);
        product(weight_g(l, QUERY_KEY_VALUE, wide, d), matrix(l, GIVEN, d + 1).turned(), matrix(KEYS_G, d), inputs, d,
                rows, ADDED);
        product(weight_g(l, QUERY_KEY_VALUE, wide, 2 * d), matrix(l, GIVEN, d + 1).turned(), matrix(VALUES_G, d),
                inputs, d, rows, ADDED);
        product(to, matrix(KEYS_G, d), weight(l, QUERY_KEY_VALUE, wide, d).turned(), rows, d, d);
        product(to, matrix(VALUES_G, d), weight(l, QUERY_KEY_VALUE, wide, 2 * d).turned(), rows, d, d, ADDED);
        const Matrix of_queries = l == last ? matrix(BRANCH_G, d) : to;
        product(of_queries, matrix(QUERIES_G, d), weight(l, QUERY_KEY_VALUE, wide).turned(), ends(l), d, d,
                l == last ? REPLACED : ADDED);
        if (l == last) each_of(loss_rows, d, [&](int i, int e) { to(row_of(l, i), e) += of_queries(i, e); });
    }

    // Positions and tokens learn. A position's, and a token's, gradients are added by one thread, row after row.
    __device__ void learn_embedding(Matrix g) const {
        float *const to = gradient();
        const int *const tokens = ints(TOKENS);
        int *const leaders = ints(LEADERS);
        if (const Byte *const keep = kept(OF_EMBEDDING, at(KEPT_EMBEDDING)))
            each_of(rows, d, [&](int row, int e) {
                g(row, e) = keep[row * d + e] ? g(row, e) * knob(EMBEDDING_SCALE) : 0.0f;
            });
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
