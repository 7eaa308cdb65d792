// A few sequences of a lane: their data and dropout, attention, loss and gradients.
#pragma once
#include "weights.hpp"

class Sequences : public Weights {
  protected:
    using Weights::Weights;

    __device__ int *tokens() const { return reinterpret_cast<int *>(at(TOKENS)); }
    __device__ int *positions() const { return reinterpret_cast<int *>(at(PLACES)); }
    __device__ Byte *kept(Array array) const { return reinterpret_cast<Byte *>(at(array)); }
    __device__ int token(int row) const { return tokens()[by_s.quotient(row) + row]; } // s + 1 of a sequence

    // The first s + 1 tokens of a permutation, in the order of random words; and of each token the input's
    // position, or -1.
    __device__ void draw_sequences(Word data, int first, int count) const {
        Int *words = reinterpret_cast<Int *>(at(KEYS));
        int *const drawn = tokens(), *const where = positions();
        each_of(count, v, [&](int n, int t) { words[n * v + t] = Int(word_of(data, Word(first + n) * v + t)); });
        each_of(count, v, [&](int n, int t) {
            const Int own = words[n * v + t];
            int rank = 0;
            ROLLED for (int other = 0; other < v; other++) {
                const Int word = words[n * v + other];
                rank += word < own || (word == own && other < t);
            }
            if (rank <= s) drawn[n * (s + 1) + rank] = t;
            where[n * v + t] = rank < s ? rank : -1;
        });
    }
    __device__ void draw_masks(int first, int count) const {
        if (occurrences) draw_mask(kept(KEPT_EMBEDDING), embedding_site, first * s * d, count * s * d);
        if (drops_rows) draw_mask(kept(KEPT_ROWS), rows_site, first * s * d, count * s * d);
    }
    __device__ void drop_rows(Matrix rows, int count) const {
        const Byte *keep = kept(KEPT_ROWS);
        each_of(count * s, d, [&](int row, int c) { rows(row, c) = keep[row * d + c] ? rows(row, c) : 0.0f; });
    }

    // The stream and the rows that attention mixes, and logits as weights.
    __device__ void gather_tokens(int count) const {
        const Matrix stream = matrix(STREAM, d), rows = matrix(ROWS, d);
        const Matrix used = matrix(USED, d), table = matrix(TOKEN_ROWS, d);
        each_of(count * s, d, [&](int row, int c) {
            const int t = token(row);
            stream(row, c) = used(t, c);
            rows(row, c) = table(t, c);
        });
        const Matrix weights = matrix(WEIGHTS, s), logits = matrix(LOGITS, v);
        each_of(count * s, s, [&](int row, int j) {
            const int first = by_s.quotient(row) * s;
            if (j <= row - first) weights(row, j) = logits(token(row), token(first + j));
        });
        if (drops_rows) drop_rows(rows, count);
    }
    __device__ void make_occurrences(int count) const {
        const Matrix stream = matrix(STREAM, d), normed = matrix(NORMED_ROWS, d), rows = matrix(ROWS, d);
        const Matrix embedding = parameter(EMBEDDING);
        const Matrix queries = matrix(QUERIES, k), keys = matrix(KEYS_OF_ROWS, k), weights = matrix(WEIGHTS, s);
        const Byte *keep = kept(KEPT_EMBEDDING);
        each_of(count * s, d, [&](int row, int c) {
            stream(row, c) = keep[row * d + c] ? knobs[EMBEDDING_SCALE] * embedding(token(row), c) : 0.0f;
        });
        normalise(stream, normed, at(ROW_FACTORS), count * s);
        product(queries, normed, matrix(QUERY_BY_GAIN, k), count * s, k, d);
        product(keys, normed, matrix(KEY_BY_GAIN, k), count * s, k, d);
        product(rows, normed, matrix(MIXED, d), count * s, d, d);
        each_of(count * s, s, [&](int row, int j) {
            const int first = by_s.quotient(row) * s;
            if (j <= row - first) weights(row, j) = add_products(0, queries.at(row, 0), 1, keys.at(first + j, 0), 1, k);
        });
        if (drops_rows) drop_rows(rows, count);
    }

    // Softmax of each row's logits, and what it mixes added to the stream.
    __device__ void attend(int count) const {
        const Matrix weights = matrix(WEIGHTS, s), stream = matrix(STREAM, d), rows = matrix(ROWS, d);
        each(count * s, [&](int row) {
            const int i = row - by_s.quotient(row) * s;
            float top = weights(row, 0), total = 0;
            ROLLED for (int j = 1; j <= i; j++) top = weights(row, j) > top ? weights(row, j) : top;
            ROLLED for (int j = 0; j <= i; j++) total += weights(row, j) = exponential(weights(row, j) - top);
            ROLLED for (int j = 0; j <= i; j++) weights(row, j) /= total;
        });
        each_of(count * s, d, [&](int row, int c) {
            const int first = by_s.quotient(row) * s;
            const Cursor own = weights.at(row, 0), from = rows.at(first, c);
            stream(row, c) = add_products(stream(row, c), own, 1, from, rows.row, row - first + 1);
        });
    }
    // Cross entropy of the next tokens; the gradients of the unembedding and of the stream.
    __device__ void predict(int first, int count) const {
        const Matrix outputs = matrix(OUTPUTS, v), stream = matrix(STREAM, d), unembedding = parameter(UNEMBEDDING);
        float *losses = at(LOSSES);
        product(outputs, stream, unembedding, count * s, v, d);
        const float share = 1.0f / (float(N) * float(s));
        float *of_rows = at(ROW_LOSSES);
        each(count * s, [&](int row) {
            const int target = tokens()[by_s.quotient(row) + row + 1];
            float top = outputs(row, 0), total = 0;
            ROLLED for (int e = 1; e < v; e++) top = outputs(row, e) > top ? outputs(row, e) : top;
            const float picked = outputs(row, target);
            ROLLED for (int e = 0; e < v; e++) total += outputs(row, e) = exponential(outputs(row, e) - top);
            of_rows[row] = logarithm(total) - (picked - top);
            const float factor = share / total;
            ROLLED for (int e = 0; e < v; e++) outputs(row, e) *= factor;
            outputs(row, target) -= share;
        });
        each(count, [&](int n) {
            float sum = 0;
            ROLLED for (int i = 0; i < s; i++) sum += of_rows[n * s + i];
            losses[first + n] = sum;
        });
        product(gradient(UNEMBEDDING), stream.turned(), outputs, d, v, count * s, ADDED);
        product(matrix(STREAM_G, d), outputs, unembedding.turned(), count * s, d, v);
    }
    // The gradients of logits, and of the rows mixed, which take the stream's place.
    __device__ void return_through_attention(int count) const {
        const Matrix weights = matrix(WEIGHTS, s), weights_g = matrix(WEIGHTS_G, s), stream_g = matrix(STREAM_G, d);
        const Matrix rows = matrix(ROWS, d), rows_g = matrix(STREAM, d);
        each_of(count * s, s, [&](int row, int j) {
            const int first = by_s.quotient(row) * s;
            if (j <= row - first) weights_g(row, j) = add_products(0, stream_g.at(row, 0), 1, rows.at(first + j, 0), 1, d);
        });
        each(count * s, [&](int row) {
            const int i = row - by_s.quotient(row) * s;
            float inner = 0;
            ROLLED for (int j = 0; j <= i; j++) inner = multiply_add(weights(row, j), weights_g(row, j), inner);
            ROLLED for (int j = 0; j <= i; j++) weights_g(row, j) = weights(row, j) * (weights_g(row, j) - inner);
        });
        mix_back(rows_g, weights, stream_g, d, count);
        if (drops_rows) drop_rows(rows_g, count);
    }
    // to[j] = sum over the later positions i of weights[i][j] from[i], of each sequence.
    __device__ void mix_back(Matrix to, Matrix weights, Matrix from, int columns, int count) const {
        each_of(count * s, columns, [&](int row, int c) {
            const int j = row - by_s.quotient(row) * s;
            to(row, c) = add_products(0, weights.at(row, j), weights.row, from.at(row, c), from.row, s - j);
        });
    }
    __device__ void return_through_occurrences(int count) const {
        const Matrix queries_g = matrix(QUERIES_G, k), keys_g = matrix(KEYS_OF_ROWS_G, k);
        const Matrix keys = matrix(KEYS_OF_ROWS, k), weights_g = matrix(WEIGHTS_G, s);
        const Matrix normed = matrix(NORMED_ROWS, d), normed_g = matrix(ROWS, d), stream_g = matrix(STREAM_G, d);
        each_of(count * s, k, [&](int row, int e) {
            const int first = by_s.quotient(row) * s;
            const Cursor own = weights_g.at(row, 0), from = keys.at(first, e);
            queries_g(row, e) = add_products(0, own, 1, from, keys.row, row - first + 1);
        });
        mix_back(keys_g, weights_g, matrix(QUERIES, k), k, count);
        return_to_weights(normed, queries_g, keys_g, matrix(STREAM, d), normed_g, count * s);
        return_through_norm(normed, normed_g, at(ROW_FACTORS), stream_g, count * s);
        const Matrix embedding_g = gradient(EMBEDDING);
        const int *const where = positions();
        const Byte *keep = kept(KEPT_EMBEDDING);
        each_of(v, d, [&](int t, int c) {
            float sum = embedding_g(t, c);
            ROLLED for (int n = 0; n < count; n++) {
                const int row = n * s + where[n * v + t];
                if (where[n * v + t] >= 0 && keep[row * d + c])
                    sum = multiply_add(knobs[EMBEDDING_SCALE], stream_g(row, c), sum);
            }
            embedding_g(t, c) = sum;
        });
    }
    // A token stands in a sequence once, or not at all: its entry collects the gradients of all sequences, in
    // their order.
    __device__ void add_to_tables(int count) const {
        const Matrix embedding_g = gradient(EMBEDDING), token_rows_g = matrix(TOKEN_ROWS_G, d);
        const Matrix logits_g = matrix(LOGITS_G, v);
        const Matrix stream_g = matrix(STREAM_G, d), rows_g = matrix(STREAM, d), weights_g = matrix(WEIGHTS_G, s);
        const int *const where = positions();
        each_of(v, d, [&](int t, int c) {
            float of_stream = embedding_g(t, c), of_row = token_rows_g(t, c);
            ROLLED for (int n = 0; n < count; n++) {
                if (where[n * v + t] < 0) continue;
                of_stream += stream_g(n * s + where[n * v + t], c);
                of_row += rows_g(n * s + where[n * v + t], c);
            }
            embedding_g(t, c) = of_stream;
            token_rows_g(t, c) = of_row;
        });
        each_of(v, v, [&](int t, int other) {
            float sum = logits_g(t, other);
            ROLLED for (int n = 0; n < count; n++) {
                const int i = where[n * v + t], j = where[n * v + other];
                if (j >= 0 && j <= i) sum += weights_g(n * s + i, j);
            }
            logits_g(t, other) = sum;
        });
    }
};
