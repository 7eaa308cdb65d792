// A lane's weights, and what depends on tokens alone: forwards and backwards.
#pragma once
#include "workspace.hpp"

class Weights : public Workspace {
  protected:
    using Workspace::Workspace;

    // The norm's gain and the scales are multiplied into what reads the normed embeddings; gradients start at zero.
    __device__ void combine_weights() const {
        const Matrix query = parameter(QUERY), key = parameter(KEY), value = parameter(VALUE), gain = parameter(GAIN);
        const Matrix own_query = matrix(QUERY_BY_GAIN, k), own_key = matrix(KEY_BY_GAIN, k);
        const Matrix own_value = matrix(VALUE_BY_GAIN, u);
        each_of(d, k, [&](int c, int e) {
            own_query(c, e) = knobs[LOGIT_SCALE] * gain(0, c) * query(c, e);
            own_key(c, e) = gain(0, c) * key(c, e);
        });
        each_of(d, u, [&](int c, int e) { own_value(c, e) = knobs[RESIDUAL_SCALE] * gain(0, c) * value(c, e); });
        product(matrix(MIXED, d), own_value, parameter(OUTPUT), d, d, u);
        const Matrix mixed_gradient = matrix(MIXED_G, d);
        each_of(d, d, [&](int c, int e) { mixed_gradient(c, e) = 0; });
        each_parameter([&](int number, int i, int e, Int) { gradient(number)(i, e) = 0; });
    }
    // From the gradients of the combined weights to those of the weights and of the gain.
    __device__ void separate_weights() const {
        const Matrix query = parameter(QUERY), key = parameter(KEY), value = parameter(VALUE), gain = parameter(GAIN);
        const Matrix query_g = gradient(QUERY), key_g = gradient(KEY), value_g = gradient(VALUE), gain_g = gradient(GAIN);
        product(value_g, matrix(MIXED_G, d), parameter(OUTPUT).turned(), d, u, d);
        product(gradient(OUTPUT), matrix(VALUE_BY_GAIN, u).turned(), matrix(MIXED_G, d), u, d, d);
        each(d, [&](int c) {
            float sum = 0;
            ROLLED for (int e = 0; e < k; e++)
                sum += knobs[LOGIT_SCALE] * query(c, e) * query_g(c, e) + key(c, e) * key_g(c, e);
            ROLLED for (int e = 0; e < u; e++) sum += knobs[RESIDUAL_SCALE] * value(c, e) * value_g(c, e);
            gain_g(0, c) = sum;
        });
        each_of(d, k, [&](int c, int e) {
            query_g(c, e) *= knobs[LOGIT_SCALE] * gain(0, c);
            key_g(c, e) *= gain(0, c);
        });
        each_of(d, u, [&](int c, int e) { value_g(c, e) *= knobs[RESIDUAL_SCALE] * gain(0, c); });
    }

    // Queries, keys and rows of tokens, where they are the same wherever a token occurs (paper 003, equation 3).
    __device__ void fill_tables() const {
        const Matrix embedding = parameter(EMBEDDING), used = matrix(USED, d);
        const bool drop = plan.dropped & OF_EMBEDDING; // of whole tokens
        each_of(v, d, [&](int t, int c) {
            const float scale = !drop ? 1.0f : embedding_site.keeps(t * d + c) ? knobs[EMBEDDING_SCALE] : 0.0f;
            used(t, c) = embedding(t, c) * scale;
        });
        normalise(used, matrix(NORMED, d), at(FACTORS), v);
        const Matrix normed = matrix(NORMED, d), rows = matrix(TOKEN_ROWS, d);
        product(matrix(TOKEN_QUERY, k), normed, matrix(QUERY_BY_GAIN, k), v, k, d);
        product(matrix(TOKEN_KEY, k), normed, matrix(KEY_BY_GAIN, k), v, k, d);
        product(rows, normed, matrix(MIXED, d), v, d, d);
        product(matrix(LOGITS, v), matrix(TOKEN_QUERY, k), matrix(TOKEN_KEY, k).turned(), v, v, k);
        if (plan.dropped & OF_ROWS && !drops_rows) drop_tokens(rows, rows_site);
        const Matrix rows_g = matrix(TOKEN_ROWS_G, d), logits_g = matrix(LOGITS_G, v);
        each_of(v, d, [&](int t, int c) { rows_g(t, c) = 0; });
        each_of(v, v, [&](int t, int other) { logits_g(t, other) = 0; });
    }
    __device__ void return_through_tables() const {
        const Matrix normed = matrix(NORMED, d), normed_g = matrix(NORMED_G, d), rows_g = matrix(TOKEN_ROWS_G, d);
        const Matrix query_g = matrix(TOKEN_QUERY_G, k), key_g = matrix(TOKEN_KEY_G, k), logits_g = matrix(LOGITS_G, v);
        if (plan.dropped & OF_ROWS && !drops_rows) drop_tokens(rows_g, rows_site);
        product(query_g, logits_g, matrix(TOKEN_KEY, k), v, k, v);
        product(key_g, logits_g.turned(), matrix(TOKEN_QUERY, k), v, k, v);
        return_to_weights(normed, query_g, key_g, rows_g, normed_g, v);
        const Matrix embedding_g = gradient(EMBEDDING);
        return_through_norm(normed, normed_g, at(FACTORS), embedding_g, v);
        if (plan.dropped & OF_EMBEDDING) {
            drop_tokens(embedding_g, embedding_site);
            each_of(v, d, [&](int t, int c) { embedding_g(t, c) *= knobs[EMBEDDING_SCALE]; });
        }
    }
    __device__ void drop_tokens(Matrix of_tokens, const DropoutSite &site) const {
        each_of(v, d, [&](int t, int c) { of_tokens(t, c) = site.keeps(t * d + c) ? of_tokens(t, c) : 0.0f; });
    }

    // RMSNorm (Zhang and Sennrich 2019) without its gain; `factors`: what each row was multiplied by.
    __device__ void normalise(Matrix from, Matrix to, float *factors, int rows) const {
        each(rows, [&](int i) {
            float squares = 0;
            ROLLED for (int c = 0; c < d; c++) squares = multiply_add(from(i, c), from(i, c), squares);
            factors[i] = 1.0f / sqrtf(squares / float(d) + knobs[NORM_EPSILON]);
        });
        each_of(rows, d, [&](int i, int c) { to(i, c) = from(i, c) * factors[i]; });
    }
    // Adds to the gradient of what was normed; `normed_g` is overwritten.
    __device__ void return_through_norm(Matrix normed, Matrix normed_g, float *factors, Matrix from_g, int rows) const {
        each(rows, [&](int i) {
            float inner = 0;
            ROLLED for (int c = 0; c < d; c++) inner = multiply_add(normed(i, c), normed_g(i, c), inner);
            inner /= float(d);
            ROLLED for (int c = 0; c < d; c++) normed_g(i, c) = factors[i] * (normed_g(i, c) - normed(i, c) * inner);
        });
        each_of(rows, d, [&](int i, int c) { from_g(i, c) += normed_g(i, c); });
    }
    // From the gradients of queries, keys and rows to those of the combined weights, and of the normed embeddings.
    __device__ void return_to_weights(Matrix normed, Matrix query_g, Matrix key_g, Matrix rows_g, Matrix normed_g,
                                      int rows) const {
        product(gradient(QUERY), normed.turned(), query_g, d, k, rows, ADDED);
        product(gradient(KEY), normed.turned(), key_g, d, k, rows, ADDED);
        product(matrix(MIXED_G, d), normed.turned(), rows_g, d, d, rows, ADDED);
        product(normed_g, rows_g, matrix(MIXED, d).turned(), rows, d, d);
        product(normed_g, query_g, matrix(QUERY_BY_GAIN, k).turned(), rows, d, k, ADDED);
        product(normed_g, key_g, matrix(KEY_BY_GAIN, k).turned(), rows, d, k, ADDED);
    }
};
