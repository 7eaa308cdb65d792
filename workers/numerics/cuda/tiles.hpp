// The inner loop in tiles, a mode that is declared (TF32): a warp takes two sequences from their tokens to their
// gradients and waits for no other warp. Products are of numbers rounded to TF32, summed in float32 by tensor cores; all
// else is float32. Each warp has sums of its own, which are added in the order of the warps.
//
// For softmax without dropout, at most 8 positions, 32 features and 24 tokens; what a lane of the pack has less is zero.
//
// Legend: A, B: the two sequences; g = lane / 4, t = lane % 4 of a thread in its warp; b, h, n: 0 or 1.
// `along`: a thread has position g of both sequences, for features 8t + 2k + b (k < 4) or tokens 8k + 2t + b (k < 3). As a
// factor of products over these: quadruples { A b = 0, B b = 0, A b = 1, B b = 1 }.
// `across`: it has positions 2t + b of both, for features 4g + 2h + n. As a factor of products over positions: quadruples
// { A n = 0, A n = 1, B n = 0, B n = 1 }; and for tokens 2g, 2g + 1 and 16 + g pairs { A, B }.
#pragma once
#include "sequences.hpp"
#include "warps.hpp"

class Tiles : public Sequences {
  protected:
    using Sequences::Sequences;

    // The gradients of the tables, which are filled, and of the unembedding; and the losses by threads.
    __device__ void learn_in_tiles(Word data) const {
        draw_sequences(data, 0, N);
        pack();
        float *const sums = at(WARP_SUMS), *const losses = at(LOSSES);
        const int tables = of_tables(), all = of_warp();
        each_of(WARPS, all - tables, [&](int warp, int i) { sums[warp * all + tables + i] = 0; });
        each_lane([&](int warp, int lane) { losses[32 * warp + lane] = learn(warp, lane); });
        add_warps();
    }

  private:
    static constexpr int FEATURES = 32, TOKEN_TILES = 3, TOKENS_AT_MOST = 8 * TOKEN_TILES;
    // Lengths of rows: eight threads that read or write four numbers each meet in no bank, or two of them in one.
    static constexpr int ROW = FEATURES + 4, TOKEN_ROW = 52;
    static constexpr float NEVER = -1e30f; // a logit

    typedef float Product[4];             // a thread's part of a tile of 16 by 8
    typedef Product Sums[2][TOKEN_TILES]; // of features (h) by tokens, across
    // Two sequences: tokens at position g, the next ones, and tokens at 2t + b, where v stands for none; attention of g
    // to 2t + b, and the same rounded; the stream across, as factors by h and b.
    struct Pair {
        int own[2], next[2], other[2][2];
        float weights[2][2], rounded[2][2];
        Product stream[2][2];
    };

    // Of a warp's sums: gradients [v][FEATURES] of embeddings, of rows and of the unembedding, turned, and of logits
    // [v + 1][v + 1], whose last row is of no token. During the loop what is turned lies in the place of the first ones.
    static constexpr int STREAM_TURNED = 16 * ROW, TURNED = STREAM_TURNED + 8 * TOKEN_ROW;
    __device__ int of_table() const { return v * FEATURES; }
    __device__ int of_tables() const { return 3 * of_table() > TURNED ? 3 * of_table() : TURNED; }
    __device__ int of_warp() const { return of_tables() + ((v + 1) * (v + 1) + 3) / 4 * 4; }
    __device__ static Four &four(float *start) { return *reinterpret_cast<Four *>(start); }
    __device__ static const Four &four(const float *start) { return *reinterpret_cast<const Four *>(start); }

    // Tables with a row of zeros for no token; the unembedding in the order in which threads read it as right factors,
    // first over features, then over tokens.
    __device__ void pack() const {
        const Matrix used = matrix(USED, d), rows = matrix(TOKEN_ROWS, d), unembedding = parameter(UNEMBEDDING);
        float *const own_used = at(TILE_USED), *const own_rows = at(TILE_ROWS);
        each_of(v + 1, FEATURES, [&](int token, int c) {
            const bool there = token < v && c < d;
            own_used[token * ROW + c] = there ? used(token, c) : 0.0f;
            own_rows[token * ROW + c] = there ? to_tf32(rows(token, c)) : 0.0f;
        });
        float *const over_features = at(TILE_OUT), *const over_tokens = at(TILE_BACK);
        each_of(TOKENS_AT_MOST, 32, [&](int n, int lane) {
            const int g = lane / 4, t = lane % 4, tile = n / 8, rest = n % 8, entry = n / 4 * 128 + lane * 4 + n % 4;
            const auto rounded = [&](int c, int token) {
                return c < d && token < v ? to_tf32(unembedding(c, token)) : 0.0f;
            };
            over_features[entry] = rounded(8 * t + rest, 8 * tile + g);
            over_tokens[entry] = rounded(g / 2 * 8 + g % 2 + rest / 2 * 2, 8 * tile + 2 * t + rest % 2);
        });
    }

    // A warp's sequences; the loss of the thread's share.
    __device__ float learn(int warp, int lane) const {
        float *const stream_turned = at(WARP_SUMS) + warp * of_warp(), *const logits_g = stream_turned + of_tables();
        float *const turned = stream_turned + STREAM_TURNED;
        const int g = lane / 4, t = lane % 4;
        Sums embedding_g = {}, rows_g = {}, unembedding_g = {};
        Four over_tokens[2 * TOKEN_TILES]; // kept: shared memory is busy, and there are registers for it
        UNROLLED for (int n = 0; n < 2 * TOKEN_TILES; n++) over_tokens[n] = four(at(TILE_BACK) + 4 * lane + 128 * n);
        float loss = 0;
        ROLLED for (int first = 2 * warp; first < N; first += 2 * WARPS) {
            Pair pair;
            attend(pair, first, lane);
            UNROLLED for (int n = 0; n < 4; n++) {
                const Product &own = pair.stream[n / 2][n % 2];
                four(across(stream_turned, n / 2, n % 2, lane)) = {own[0], own[2], own[1], own[3]};
            }
            meet_warp();
            Product outputs[TOKEN_TILES], stream_g[4];
            predict(outputs, stream_turned, lane);
            UNROLLED for (int n = 0; n < 2; n++) loss += return_through_loss(outputs, n, pair, lane);
            meet_warp();
            UNROLLED for (int k = 0; k < TOKEN_TILES; k++) {
                turn(outputs[k]);
                four(turned + g * TOKEN_ROW + 16 * k + 4 * t) = {outputs[k][0], outputs[k][1], outputs[k][2], outputs[k][3]};
            }
            return_through_unembedding(stream_g, outputs, over_tokens);
            UNROLLED for (int k = 0; k < 4; k++) {
                UNROLLED for (int n = 0; n < 4; n++) stream_g[k][n] = to_tf32(stream_g[k][n]);
                four(along(stream_turned, k, lane)) = {stream_g[k][0], stream_g[k][1], stream_g[k][2], stream_g[k][3]};
                turn(stream_g[k]);
            }
            UNROLLED for (int n = 0; n < 2; n++) {
                return_through_softmax(logits_g, stream_g, n, pair, lane);
                meet_warp(); // a token may stand in both sequences
            }
            add_positions(embedding_g, rows_g, stream_turned, pair, lane);
            UNROLLED for (int b = 0; b < 2; b++) {
                const float *const own = turned + (2 * t + b) * TOKEN_ROW;
                const Four low = four(own + 4 * g);
                const float *const high = own + 32 + 2 * g;
                const float right[TOKEN_TILES][2] = {{low.x[0], low.x[1]}, {low.x[2], low.x[3]}, {high[0], high[1]}};
                add_tokens(unembedding_g, pair.stream, b, right);
            }
            meet_warp();
        }
        store(stream_turned, embedding_g, lane);
        store(stream_turned + of_table(), rows_g, lane);
        store(stream_turned + 2 * of_table(), unembedding_g, lane);
        return loss;
    }
    // Where a quadruple of the stream or its gradient lies, both ways; its numbers are in the order of who reads them.
    __device__ static float *across(float *stream, int h, int b, int lane) {
        return stream + (8 * h + lane % 4 * 2 + b) * ROW + lane / 4 * 4;
    }
    __device__ static float *along(float *stream, int k, int lane) {
        return stream + (k % 2 * 8 + lane / 4) * ROW + lane % 4 * 8 + k / 2 * 4;
    }
    // From the order of a product's result to that of a factor along.
    __device__ static void turn(Product &made) {
        const float second = made[1];
        made[1] = made[2];
        made[2] = second;
    }
    __device__ static void add_tokens(Sums &sums, const Product (&left)[2][2], int b,
                                      const float (&right)[TOKEN_TILES][2]) {
        UNROLLED for (int h = 0; h < 2; h++)
            UNROLLED for (int tile = 0; tile < TOKEN_TILES; tile++)
                multiply(sums[h][tile], left[h][b], right[tile], sums[h][tile]);
    }
    __device__ void store(float *table, const Sums &sums, int lane) const {
        UNROLLED for (int h = 0; h < 2; h++)
            UNROLLED for (int tile = 0; tile < TOKEN_TILES; tile++)
                UNROLLED for (int e = 0; e < 4; e++) {
                    const int token = token_of(lane % 4 * 2 + e % 2, tile);
                    if (token < v) table[token * FEATURES + lane / 4 * 4 + 2 * h + e / 2] = sums[h][tile][e];
                }
    }
    __device__ static int token_of(int g, int tile) { return tile < 2 ? 2 * g + tile : 16 + g; }

    // Softmax of the logits of position g, and the stream: what stands there and what it attends to.
    __device__ void attend(Pair &pair, int first, int lane) const {
        const int *const drawn = tokens();
        const float *const used = at(TILE_USED) + lane / 4 * 4, *const rows = at(TILE_ROWS) + lane / 4 * 4;
        const Matrix logits = matrix(LOGITS, v);
        const int g = lane / 4, t = lane % 4;
        UNROLLED for (int n = 0; n < 2; n++) {
            const bool there = g < s && first + n < N;
            const int place = (first + n) * (s + 1) + g;
            const int own = pair.own[n] = there ? drawn[place] : v;
            pair.next[n] = there ? drawn[place + 1] : -1;
            float seen[2];
            UNROLLED for (int b = 0; b < 2; b++) {
                pair.other[n][b] = shuffle(own, 8 * t + 4 * b);
                seen[b] = there && 2 * t + b <= g ? logits(own, pair.other[n][b]) : NEVER;
            }
            const float top = largest_of_four(seen[1] > seen[0] ? seen[1] : seen[0], lane);
            UNROLLED for (int b = 0; b < 2; b++) seen[b] = power_of_2((seen[b] - top) * LOG2_E);
            const float factor = reciprocal(sum_of_four(seen[0] + seen[1], lane));
            UNROLLED for (int b = 0; b < 2; b++) pair.rounded[n][b] = to_tf32(pair.weights[n][b] = seen[b] * factor);
            const Four here[2] = {four(used + pair.other[n][0] * ROW), four(used + pair.other[n][1] * ROW)};
            const Four from[2] = {four(rows + pair.other[n][0] * ROW), four(rows + pair.other[n][1] * ROW)};
            UNROLLED for (int h = 0; h < 2; h++) {
                Product stream;
                UNROLLED for (int e = 0; e < 4; e++) stream[e] = here[e % 2].x[2 * h + e / 2];
                const float *const first = from[0].x + 2 * h, *const second = from[1].x + 2 * h;
                const float left[4] = {first[0], first[1], second[0], second[1]};
                multiply(stream, left, pair.rounded[n], stream);
                UNROLLED for (int e = 0; e < 4; e++) pair.stream[h][e % 2][2 * n + e / 2] = to_tf32(stream[e]);
            }
        }
    }
    // Logits of the next tokens along.
    __device__ void predict(Product (&outputs)[TOKEN_TILES], float *stream, int lane) const {
        const float *const over_features = at(TILE_OUT) + 4 * lane;
        UNROLLED for (int tile = 0; tile < TOKEN_TILES; tile++)
            UNROLLED for (int e = 0; e < 4; e++) outputs[tile][e] = 8 * tile + lane % 4 * 2 + e % 2 < v ? 0.0f : NEVER;
        UNROLLED for (int half = 0; half < 2; half++) {
            Four from[TOKEN_TILES];
            UNROLLED for (int tile = 0; tile < TOKEN_TILES; tile++) from[tile] = four(over_features + (2 * tile + half) * 128);
            UNROLLED for (int k = 0; k < 2; k++) {
                const Four own = four(along(stream, 2 * half + k, lane));
                UNROLLED for (int tile = 0; tile < TOKEN_TILES; tile++) {
                    const float right[2] = {from[tile].x[2 * k], from[tile].x[2 * k + 1]};
                    multiply(outputs[tile], own.x, right, outputs[tile]);
                }
            }
        }
    }
    // Cross entropy of sequence n: the thread's share of the loss; the logits' gradient, rounded, takes their place.
    __device__ float return_through_loss(Product (&outputs)[TOKEN_TILES], int n, const Pair &pair, int lane) const {
        const bool there = pair.own[n] < v;
        const int target = pair.next[n] - lane % 4 * 2; // as 8 tile + b
        float top = outputs[0][2 * n], total = 0, picked = 0;
        UNROLLED for (int e = 1; e < 2 * TOKEN_TILES; e++) {
            const float output = outputs[e / 2][2 * n + e % 2];
            top = output > top ? output : top;
        }
        top = largest_of_four(top, lane);
        UNROLLED for (int e = 0; e < 2 * TOKEN_TILES; e++) {
            float &output = outputs[e / 2][2 * n + e % 2];
            picked = e / 2 * 8 + e % 2 == target ? output - top : picked;
            total += output = power_of_2((output - top) * LOG2_E);
        }
        total = sum_of_four(total, lane);
        const float share = there ? 1.0f / (float(N) * float(s)) : 0.0f, factor = share * reciprocal(total);
        UNROLLED for (int e = 0; e < 2 * TOKEN_TILES; e++) {
            float &output = outputs[e / 2][2 * n + e % 2];
            output = to_tf32(output * factor - (e / 2 * 8 + e % 2 == target ? share : 0.0f));
        }
        return there ? (lane % 4 ? 0.0f : logarithm_of_2(total) * LN_2) - picked : 0.0f;
    }
    // The stream's gradient along, from that of the logits, a factor.
    __device__ static void return_through_unembedding(Product (&stream_g)[4], const Product (&outputs_g)[TOKEN_TILES],
                                                      const Four (&over_tokens)[2 * TOKEN_TILES]) {
        UNROLLED for (int k = 0; k < 4; k++)
            UNROLLED for (int n = 0; n < 4; n++) stream_g[k][n] = 0;
        UNROLLED for (int token = 0; token < TOKEN_TILES; token++)
            UNROLLED for (int half = 0; half < 2; half++) {
                const Four &from = over_tokens[2 * token + half];
                UNROLLED for (int k = 0; k < 2; k++) {
                    const float right[2] = {from.x[2 * k], from.x[2 * k + 1]};
                    multiply(stream_g[2 * half + k], outputs_g[token], right, stream_g[2 * half + k]);
                }
            }
    }
    // Adds to the gradient of logits.
    __device__ void return_through_softmax(float *logits_g, const Product (&stream_g)[4], int n, const Pair &pair,
                                           int lane) const {
        const float *const rows = at(TILE_ROWS) + pair.own[n] * ROW + lane % 4 * 8;
        Product weights_g = {};
        UNROLLED for (int k = 0; k < 4; k += 2) {
            const Four from = four(rows + 2 * k);
            const float first[2] = {from.x[0], from.x[1]}, second[2] = {from.x[2], from.x[3]};
            multiply(weights_g, stream_g[k], first, weights_g);
            multiply(weights_g, stream_g[k + 1], second, weights_g);
        }
        float own[2], inner = 0;
        UNROLLED for (int b = 0; b < 2; b++) {
            own[b] = weights_g[2 * n + b];
            inner = multiply_add(pair.weights[n][b], own[b], inner);
        }
        inner = sum_of_four(inner, lane);
        UNROLLED for (int b = 0; b < 2; b++)
            logits_g[pair.own[n] * (v + 1) + pair.other[n][b]] += pair.weights[n][b] * (own[b] - inner);
    }
    // Adds to the gradients of embeddings and of rows, each position's to its token by a product with zeros and ones.
    __device__ static void add_positions(Sums &embedding_g, Sums &rows_g, float *stream_turned, const Pair &pair,
                                         int lane) {
        Product stream_g[2][2], mixed_g[2][2], mixed[2][2] = {}; // by h and b, but `mixed` by sequence and h
        float turned[2][2], here[2][TOKEN_TILES][2];
        UNROLLED for (int n = 0; n < 2; n++) turn_weights(turned[n], pair.rounded[n], lane);
        UNROLLED for (int b = 0; b < 2; b++) {
            UNROLLED for (int tile = 0; tile < TOKEN_TILES; tile++)
                UNROLLED for (int n = 0; n < 2; n++)
                    here[b][tile][n] = pair.other[n][b] == token_of(lane / 4, tile) ? 1.0f : 0.0f;
            UNROLLED for (int h = 0; h < 2; h++) {
                const Four own = four(across(stream_turned, h, b, lane));
                UNROLLED for (int e = 0; e < 4; e++) stream_g[h][b][e] = own.x[e];
                const float first[2] = {turned[0][b], 0}, second[2] = {0, turned[1][b]};
                multiply(mixed[0][h], own.x, first, mixed[0][h]);
                multiply(mixed[1][h], own.x, second, mixed[1][h]);
            }
        }
        UNROLLED for (int n = 0; n < 2; n++)
            UNROLLED for (int h = 0; h < 2; h++)
                UNROLLED for (int e = 0; e < 4; e++) mixed_g[h][e % 2][2 * n + e / 2] = to_tf32(mixed[n][h][e]);
        UNROLLED for (int b = 0; b < 2; b++) {
            add_tokens(embedding_g, stream_g, b, here[b]);
            add_tokens(rows_g, mixed_g, b, here[b]);
        }
    }
    // The weights of positions 2t + b for g, from those of g for 2t + b.
    __device__ static void turn_weights(float (&to)[2], const float (&weights)[2], int lane) {
        const int from = lane % 4 * 8 + lane / 8;
        UNROLLED for (int b = 0; b < 2; b++) {
            const float even = shuffle(weights[0], from + 4 * b), odd = shuffle(weights[1], from + 4 * b);
            to[b] = lane / 4 % 2 ? odd : even;
        }
    }

    __device__ void add_warps() const {
        const float *const sums = at(WARP_SUMS);
        const auto sum = [&](float total, int entry) {
            ROLLED for (int warp = 0; warp < WARPS; warp++) total += sums[warp * of_warp() + entry];
            return total;
        };
        const Matrix embedding_g = gradient(EMBEDDING), rows_g = matrix(TOKEN_ROWS_G, d);
        const Matrix unembedding_g = gradient(UNEMBEDDING);
        each_of(v, d, [&](int token, int c) {
            const int entry = token * FEATURES + c;
            embedding_g(token, c) = sum(embedding_g(token, c), entry);
            rows_g(token, c) = sum(rows_g(token, c), entry + of_table());
            unembedding_g(c, token) = sum(unembedding_g(c, token), entry + 2 * of_table());
        });
        const Matrix logits_g = matrix(LOGITS_G, v);
        each_of(v, v, [&](int token, int other) {
            logits_g(token, other) = sum(logits_g(token, other), of_tables() + token * (v + 1) + other);
        });
    }
};
