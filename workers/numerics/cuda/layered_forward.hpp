// A block's forward pass, which keeps what the backward pass needs.
#pragma once
#include "layered_workspace.hpp"

class Forward : public Workspace {
  protected:
    using Workspace::Workspace;

    // What maps read ends with a one, which meets the bias; nothing overwrites it.
    __device__ void fill_ones(int most_rows) const {
        each_of(int(plan.depth), most_rows, [&](int l, int row) {
            matrix(l, GIVEN, d + 1)(row, d) = 1;
            matrix(l, MIXED, d + 1)(row, d) = 1;
            matrix(l, MLP_GIVEN, d + 1)(row, d) = 1;
            if (l == last) matrix(l, ASKED, d + 1)(row, d) = 1;
            matrix(l, ACTIVE, f + 1)(row, f) = 1;
        });
    }

    // Tokens of the block's rows, and the rows that carry loss.
    __device__ void read_rows() {
        const Int start = data + Int(first) * s;
        int *const tokens = ints(TOKENS), *const listed = ints(LOSS_ROWS), *const firsts = ints(FIRST_LOSS_ROWS);
        each(rows + 1, [&](int row) {
            int before = 0;
            ROLLED for (int other = 0; other < row; other++) before += plan.weights[start + other] != 0.0f;
            if (row - first_of_sequence(row) == 0) firsts[by_s().quotient(row)] = before;
            if (row == rows) return;
            tokens[row] = int(plan.inputs[start + row]);
            if (plan.weights[start + row] != 0.0f) listed[before] = row;
        });
        loss_rows = firsts[by_s().quotient(rows)];
    }

    __device__ void embed() const {
        const int *const tokens = ints(TOKENS);
        const Matrix to = plan.pre_norm ? matrix(STREAM, d) : matrix(0, GIVEN, d + 1);
        const float *const table = parameters() + plan.ends[READING];
        const float *const places = plan.ends[POSITIONS] >= 0 ? parameters() + plan.ends[POSITIONS]
                                    : plan.placed             ? plan.placed + Int(lane) * s * d
                                                              : nullptr;
        const Byte *const keep = drawn(OF_EMBEDDING, at(KEPT_EMBEDDING), 0, 0);
        each_of(rows, d, [&](int row, int e) {
            float value = table[tokens[row] * d + e];
            if (places) value += places[(row - first_of_sequence(row)) * d + e];
            to(row, e) = !keep ? value : keep[row * d + e] ? value * knob(EMBEDDING_SCALE) : 0.0f;
        });
    }

    // Rows of unit length, and these times the gain and plus the bias at `to`.
    __device__ void norm(Matrix from, Matrix unit, Matrix to, float *factors, int count, Int gain, Int bias) const {
        normalise(from, unit, factors, norm_shape(count), [&](int i, int e, float value) {
            const float scaled = value * parameters()[gain + e];
            to(i, e) = bias >= 0 ? scaled + parameters()[bias + e] : scaled;
        });
    }
    __device__ NormShape norm_shape(int count) const { return {count, d, plan.centred != 0, knob(EPSILON)}; }

    // Queries, keys and values.
    __device__ void map(int l) const {
        if (plan.pre_norm)
            norm(matrix(STREAM, d), matrix(l, UNIT, d), matrix(l, GIVEN, d + 1), at(l, FACTORS), rows,
                 place(l, ATTENTION_NORM), place(l, ATTENTION_NORM_BIAS));
        if (l == last) {
            const Matrix asked = matrix(l, ASKED, d + 1), given = matrix(l, GIVEN, d + 1);
            each_of(loss_rows, d, [&](int i, int e) { asked(i, e) = given(row_of(l, i), e); });
        }
        const int inputs = d + biased(l, QUERY_KEY_VALUE_BIAS);
        product(matrix(l, QUERIES, d), matrix(l, l == last ? ASKED : GIVEN, d + 1), weight(l, QUERY_KEY_VALUE, 3 * d),
                ends(l), d, inputs);
        product(matrix(l, KEYS, d), matrix(l, GIVEN, d + 1), weight(l, QUERY_KEY_VALUE, 3 * d, d), rows, d, inputs);
        product(matrix(l, VALUES, d), matrix(l, GIVEN, d + 1), weight(l, QUERY_KEY_VALUE, 3 * d, 2 * d), rows, d,
                inputs);
        if (!plan.cosines) return;
        turn(matrix(l, QUERIES, d), l, ends(l), 1.0f);
        turn(matrix(l, KEYS, d), -1, rows, 1.0f);
    }
    // Channels e and e + c / 2 of every head by their position's angles; `way` -1 turns back. `l`: whose ends the rows
    // are; -1: they are all of the block.
    __device__ void turn(Matrix matrix, int l, int count, float way) const {
        const int half = c / 2;
        const Divisor by_half(half);
        each_of(count, h * half, [&](int i, int n) {
            const int row = l < 0 ? i : row_of(l, i), head = by_half.quotient(n), e = n - head * half;
            const Int place = (Int(lane) * s + (row - first_of_sequence(row))) * half + e;
            float &one = matrix(i, head * c + e), &other = matrix(i, head * c + half + e);
            const float a = one, b = other, turn = way * plan.sines[place];
            one = multiply_add(a, plan.cosines[place], -b * turn);
            other = multiply_add(a, turn, b * plan.cosines[place]);
        });
    }

    // Scaled logits of each query with the keys that it sees. Row i h + head of WEIGHTS is of a query and a head.
    __device__ void score(int l) const {
        const Matrix queries = matrix(l, QUERIES, d), keys = matrix(l, KEYS, d), weights = matrix(l, WEIGHTS, s);
        const float scale = 1.0f / sqrtf(float(c));
        each_of(ends(l) * h, s, [&](int line, int j) {
            const int i = by_h().quotient(line), head = line - i * h, row = row_of(l, i);
            const int start = first_of_sequence(row);
            if (j > row - start) return;
            float logit = 0;
            for (int e = head * c; e < head * c + c; e++)
                logit = multiply_add(queries(i, e), keys(start + j, e), logit);
            logit *= scale;
            if (plan.slopes) logit -= plan.slopes[head] * float(row - start - j);
            weights(line, j) = logit * factor_of(head);
        });
        if (plan.bent) bend(l);
    }
    __device__ void bend(int l) const {
        const Matrix weights = matrix(l, WEIGHTS, s), logits = matrix(l, LOGITS, s);
        each_of(ends(l) * h, s, [&](int line, int j) {
            const int i = by_h().quotient(line), head = line - i * h, row = row_of(l, i);
            if (j > row - first_of_sequence(row)) return;
            const float z = weights(line, j), bent = n_of(l, head) * logarithm_of_1_plus(b_of(l, head) * absolute(z));
            logits(line, j) = z;
            weights(line, j) = z < 0.0f ? -bent : bent;
        });
    }
    __device__ void soften(int l) const {
        const Matrix weights = matrix(l, WEIGHTS, s);
        each(ends(l) * h, [&](int line) {
            const int row = row_of(l, by_h().quotient(line)), end = row - first_of_sequence(row);
            float top = weights(line, 0), total = 0;
            ROLLED for (int j = 1; j <= end; j++) top = weights(line, j) > top ? weights(line, j) : top;
            ROLLED for (int j = 0; j <= end; j++) total += weights(line, j) = exponential(weights(line, j) - top);
            ROLLED for (int j = 0; j <= end; j++) weights(line, j) /= total;
        });
    }
    // to[i] = sum of weights[i][j] from[j] over the keys j that query i sees, head by head.
    __device__ void mix(int l, Matrix to, Matrix weights, Matrix from) const {
        each_of(ends(l), d, [&](int i, int e) {
            const int row = row_of(l, i), start = first_of_sequence(row), line = i * h + by_c().quotient(e);
            float sum = 0;
            for (int j = 0; j <= row - start; j++) sum = multiply_add(weights(line, j), from(start + j, e), sum);
            to(i, e) = sum;
        });
    }
    // What a branch makes, after dropout, added to the stream before it, whose row is `row_before(i)`.
    template <typename Row>
    __device__ void join(int l, Matrix branch, Matrix before, const Byte *keep, float scale, Row row_before) const {
        each_of(ends(l), d, [&](int i, int e) {
            const float own = branch(i, e);
            const float kept = !keep ? own : keep[row_of(l, i) * d + e] ? own * scale : 0.0f;
            branch(i, e) = kept + before(row_before(i), e);
        });
    }

    // The stream after attention, in MIDDLE, or, post-norm, in MLP_GIVEN.
    __device__ void attend(int l) const {
        map(l);
        score(l);
        soften(l);
        mix(l, matrix(l, MIXED, d + 1), matrix(l, WEIGHTS, s), matrix(l, VALUES, d));
        product(matrix(MIDDLE, d), matrix(l, MIXED, d + 1), weight(l, OUTPUT, d), ends(l), d,
                d + biased(l, OUTPUT_BIAS));
        const Byte *const keep = drawn(OF_ATTENTION, at(l, KEPT_ATTENTION), 1 + 2 * l, 1);
        join(l, matrix(MIDDLE, d), plan.pre_norm ? matrix(STREAM, d) : matrix(l, GIVEN, d + 1), keep,
             knob(ATTENTION_SCALE), [&](int i) { return row_of(l, i); });
        if (!plan.pre_norm)
            norm(matrix(MIDDLE, d), matrix(l, UNIT, d), matrix(l, MLP_GIVEN, d + 1), at(l, FACTORS), ends(l),
                 place(l, ATTENTION_NORM), place(l, ATTENTION_NORM_BIAS));
    }

    // Hidden numbers become slopes, and ACTIVE what the activation makes of them.
    __device__ void activate_all(int l) const {
        const Matrix slopes = matrix(l, SLOPES, int(plan.gates) * f), active = matrix(l, ACTIVE, f + 1);
        if (plan.activation == SPLINE) {
            const Spline spline = this->spline(l);
            const Matrix points = matrix(l, POINTS, f);
            each_of(ends(l), f, [&](int i, int e) {
                points(i, e) = slopes(i, e);
                const Activated one = spline(slopes(i, e));
                active(i, e) = one.value, slopes(i, e) = one.slope;
            });
            return;
        }
        each_of(ends(l), f, [&](int i, int e) {
            const Activated one = activate(int(plan.activation), slopes(i, e));
            if (plan.gates == 1) {
                active(i, e) = one.value, slopes(i, e) = one.slope;
                return;
            }
            const float other = slopes(i, f + e);
            active(i, e) = one.value * other, slopes(i, e) = one.slope * other, slopes(i, f + e) = one.value;
        });
    }
    // The stream after the MLP, in STREAM, or, post-norm, where the next layer, or the output, reads it.
    __device__ void pass_mlp(int l) const {
        const int wide = int(plan.gates) * f;
        if (plan.pre_norm)
            norm(matrix(MIDDLE, d), matrix(l, MLP_UNIT, d), matrix(l, MLP_GIVEN, d + 1), at(l, MLP_FACTORS), ends(l),
                 place(l, MLP_NORM), place(l, MLP_NORM_BIAS));
        product(matrix(l, SLOPES, wide), matrix(l, MLP_GIVEN, d + 1), weight(l, MLP_IN, wide), ends(l), wide,
                d + biased(l, MLP_IN_BIAS));
        activate_all(l);
        product(matrix(STREAM, d), matrix(l, ACTIVE, f + 1), weight(l, MLP_OUT, d), ends(l), d,
                f + biased(l, MLP_OUT_BIAS));
        const Byte *const keep = drawn(OF_MLP, at(l, KEPT_MLP), 2 + 2 * l, 2);
        join(l, matrix(STREAM, d), plan.pre_norm ? matrix(MIDDLE, d) : matrix(l, MLP_GIVEN, d + 1), keep,
             knob(MLP_SCALE), [](int i) { return i; });
        if (!plan.pre_norm)
            norm(matrix(STREAM, d), matrix(l, MLP_UNIT, d), l == last ? matrix(FINAL, d) : matrix(l + 1, GIVEN, d + 1),
                 at(l, MLP_FACTORS), ends(l), place(l, MLP_NORM), place(l, MLP_NORM_BIAS));
        else if (l == last)
            norm(matrix(STREAM, d), matrix(FINAL_UNIT, d), matrix(FINAL, d), at(FINAL_FACTORS), ends(l),
                 plan.ends[NORM], plan.ends[NORM_BIAS]);
    }
};
