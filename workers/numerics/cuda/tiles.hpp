// The inner loop in tiles, a mode that is declared (TF32): a warp takes two sequences from their tokens to their gradients and
// waits for no other warp. Products are of numbers rounded to TF32, summed in float32 by tensor cores; all else is float32. Each
// warp has sums of its own, which are added in the order of the warps.
//
// For softmax without dropout, at most 8 positions, 32 features and 24 tokens; what a lane has less is zero.
//
// Legend: g = lane / 4, t = lane % 4 of a thread in its warp; n: of the two sequences; b: 0 or 1. `along`: a thread has position g
// of both sequences, features 8t to 8t + 7 or tokens 6t to 6t + 5. `across`: it has positions 2t + b, features 4g to 4g + 3 or
// tokens 3g to 3g + 2. From `along` products over features or tokens go on in registers, from `across` those over positions.
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
        each(WARPS * of_warp(), [&](int i) { sums[i] = 0; });
        each_lane([&](int warp, int lane) { losses[32 * warp + lane] = learn(warp, lane); });
        add_warps();
    }

  private:
    static constexpr int FEATURES = 32, TOKEN_TILES = 3, TOKENS_AT_MOST = 8 * TOKEN_TILES;
    static constexpr int ROW = FEATURES + 4; // so that threads that read four numbers of neighbouring rows read other banks
    static constexpr float NEVER = -1e30f;   // a logit

    typedef float Product[4]; // a thread's part of a tile of 16 by 8
    // Two sequences: tokens at position g, the next ones, and tokens at 2t + b, where v stands for none; attention of g to
    // 2t + b, and the same rounded; the stream across, rounded.
    struct Pair {
        int own[2], next[2], other[2][2];
        float weights[2][2], rounded[2][2];
        Product stream[2][2];
    };

    // Of a warp's sums: gradients [v][FEATURES] of embeddings, of rows and of the unembedding, turned, and of logits
    // [v + 1][v + 1], whose last row is of no token. During the loop two sequences lie by positions in the place of the first.
    __device__ int of_table() const { return v * FEATURES; }
    __device__ int of_tables() const { return 3 * of_table() > 16 * ROW ? 3 * of_table() : 16 * ROW; }
    __device__ int of_warp() const { return of_tables() + ((v + 1) * (v + 1) + 3) / 4 * 4; }
    __device__ static Four &four(float *start) { return *reinterpret_cast<Four *>(start); }
    __device__ static const Four &four(const float *start) { return *reinterpret_cast<const Four *>(start); }
    // c += a b, where `made`, a product before, is `a`: what were its columns is summed over.
    __device__ static void multiply_on(Product &c, const Product &made, float first, float second) {
        const float left[4] = {made[0], made[2], made[1], made[3]}, right[2] = {first, second};
        multiply(c, left, right, c);
    }

    // Tables with a row of zeros for no token; the unembedding in the order in which threads read it as `b`, first over features, then
    // over tokens.
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
            const int g = lane / 4, t = lane % 4, b = n % 2, entry = n / 4 * 128 + lane * 4 + n % 4;
            const auto rounded = [&](int c, int token) { return c < d && token < v ? to_tf32(unembedding(c, token)) : 0.0f; };
            over_features[entry] = rounded(8 * t + n % 8, 6 * (g / 2) + n / 8 * 2 + g % 2);
            over_tokens[entry] = rounded(8 * (g / 2) + n % 8 / 2 * 2 + g % 2, 6 * t + n / 8 * 2 + b);
        });
    }

    // A warp's sequences; the loss of the thread's share.
    __device__ float learn(int warp, int lane) const {
        float *const turned = at(WARP_SUMS) + warp * of_warp(), *const logits_g = turned + of_tables();
        const float *const over_tokens = at(TILE_BACK) + 4 * lane;
        const int g = lane / 4, t = lane % 4;
        Product embedding_g[2][TOKEN_TILES] = {}, rows_g[2][TOKEN_TILES] = {}, unembedding_g[2][TOKEN_TILES] = {};
        float loss = 0;
        ROLLED for (int first = 2 * warp; first < N; first += 2 * WARPS) {
            Pair pair;
            attend(pair, first, lane);
            UNROLLED for (int n = 0; n < 2; n++) write_across(turned, n, pair.stream[n], lane);
            meet_warp();
            Product outputs[TOKEN_TILES], stream_g[4] = {};
            predict(outputs, turned, lane);
            UNROLLED for (int n = 0; n < 2; n++) loss += return_through_loss(outputs, n, pair, lane);
            UNROLLED for (int k = 0; k < TOKEN_TILES; k++) {
                const Four low = four(over_tokens + 256 * k), high = four(over_tokens + 256 * k + 128);
                UNROLLED for (int tile = 0; tile < 4; tile++) {
                    const Four &from = tile < 2 ? low : high;
                    multiply_on(stream_g[tile], outputs[k], from.x[tile % 2 * 2], from.x[tile % 2 * 2 + 1]);
                }
            }
            UNROLLED for (int tile = 0; tile < 4; tile++)
                UNROLLED for (int n = 0; n < 4; n++) stream_g[tile][n] = to_tf32(stream_g[tile][n]);
            meet_warp();
            UNROLLED for (int n = 0; n < 2; n++) {
                float *const row = turned + (8 * n + g) * ROW + 8 * t;
                four(row) = {stream_g[0][2 * n], stream_g[0][2 * n + 1], stream_g[1][2 * n], stream_g[1][2 * n + 1]};
                four(row + 4) = {stream_g[2][2 * n], stream_g[2][2 * n + 1], stream_g[3][2 * n], stream_g[3][2 * n + 1]};
            }
            UNROLLED for (int n = 0; n < 2; n++) {
                return_through_softmax(logits_g, stream_g, n, pair, lane);
                meet_warp(); // a token may stand in both sequences
            }
            UNROLLED for (int n = 0; n < 2; n++) {
                const Four from[2] = {read_across(turned, n, 0, lane), read_across(turned, n, 1, lane)};
                float here[TOKEN_TILES][2];
                UNROLLED for (int e = 0; e < 2 * TOKEN_TILES; e++)
                    here[e / 2][e % 2] = pair.other[n][e % 2] == 3 * g + e / 2 ? 1.0f : 0.0f;
                float right[2];
                turn_weights(right, pair.rounded[n], lane);
                UNROLLED for (int half = 0; half < 2; half++) {
                    const float left[4] = {from[0].x[2 * half], from[0].x[2 * half + 1], from[1].x[2 * half], from[1].x[2 * half + 1]};
                    const Product none = {};
                    Product mixed;
                    multiply(mixed, left, right, none);
                    UNROLLED for (int e = 0; e < 4; e++) mixed[e] = to_tf32(mixed[e]);
                    UNROLLED for (int tile = 0; tile < TOKEN_TILES; tile++) {
                        multiply(embedding_g[half][tile], left, here[tile], embedding_g[half][tile]);
                        multiply_on(rows_g[half][tile], mixed, here[tile][0], here[tile][1]);
                    }
                }
            }
            meet_warp();
            UNROLLED for (int n = 0; n < 2; n++) {
                float *const row = turned + (8 * n + g) * ROW + 8 * t;
                four(row) = {outputs[0][2 * n], outputs[0][2 * n + 1], outputs[1][2 * n], 0};
                four(row + 4) = {outputs[1][2 * n + 1], outputs[2][2 * n], outputs[2][2 * n + 1], 0};
            }
            meet_warp();
            UNROLLED for (int n = 0; n < 2; n++) {
                const Four from = read_across(turned, n, 0, lane), next = read_across(turned, n, 1, lane);
                UNROLLED for (int half = 0; half < 2; half++)
                    UNROLLED for (int tile = 0; tile < TOKEN_TILES; tile++)
                        multiply_on(unembedding_g[half][tile], pair.stream[n][half], from.x[tile], next.x[tile]);
            }
            meet_warp();
        }
        store(turned, embedding_g, lane);
        store(turned + of_table(), rows_g, lane);
        store(turned + 2 * of_table(), unembedding_g, lane);
        return loss;
    }
    __device__ void store(float *table, const Product (&sums)[2][TOKEN_TILES], int lane) const {
        UNROLLED for (int half = 0; half < 2; half++)
            UNROLLED for (int tile = 0; tile < TOKEN_TILES; tile++)
                UNROLLED for (int e = 0; e < 4; e++) {
                    const int token = 3 * (lane % 4 * 2 + e % 2) + tile;
                    if (token < v) table[token * FEATURES + lane / 4 * 4 + 2 * half + e / 2] = sums[half][tile][e];
                }
    }
    __device__ static void write_across(float *turned, int n, const Product (&made)[2], int lane) {
        UNROLLED for (int b = 0; b < 2; b++)
            four(turned + (8 * n + lane % 4 * 2 + b) * ROW + lane / 4 * 4) = across(made, b);
    }
    __device__ static Four read_across(const float *turned, int n, int b, int lane) {
        return four(turned + (8 * n + lane % 4 * 2 + b) * ROW + lane / 4 * 4);
    }
    // The features at position 2t + b of a product across.
    __device__ static Four across(const Product (&made)[2], int b) { return {made[0][b], made[0][2 + b], made[1][b], made[1][2 + b]}; }

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
            UNROLLED for (int half = 0; half < 2; half++) {
                Product &stream = pair.stream[n][half];
                UNROLLED for (int e = 0; e < 4; e++) stream[e] = here[e % 2].x[2 * half + e / 2];
                const float left[4] = {from[0].x[2 * half], from[0].x[2 * half + 1], from[1].x[2 * half], from[1].x[2 * half + 1]};
                multiply(stream, left, pair.rounded[n], stream);
                UNROLLED for (int e = 0; e < 4; e++) stream[e] = to_tf32(stream[e]);
            }
        }
    }
    // Logits of the next tokens along, from the stream by positions.
    __device__ void predict(Product (&outputs)[TOKEN_TILES], const float *turned, int lane) const {
        const float *const over_features = at(TILE_OUT) + 4 * lane, *const own = turned + lane / 4 * ROW + lane % 4 * 8;
        UNROLLED for (int tile = 0; tile < TOKEN_TILES; tile++)
            UNROLLED for (int e = 0; e < 4; e++) outputs[tile][e] = lane % 4 * 6 + tile * 2 + e % 2 < v ? 0.0f : NEVER;
        UNROLLED for (int k = 0; k < 4; k += 2) {
            const Four one = four(own + 2 * k), other = four(own + 8 * ROW + 2 * k);
            UNROLLED for (int tile = 0; tile < TOKEN_TILES; tile++) {
                const Four from = four(over_features + 256 * tile + 64 * k);
                UNROLLED for (int m = 0; m < 4; m += 2) {
                    const float left[4] = {one.x[m], other.x[m], one.x[m + 1], other.x[m + 1]}, right[2] = {from.x[m], from.x[m + 1]};
                    multiply(outputs[tile], left, right, outputs[tile]);
                }
            }
        }
    }
    // Cross entropy of sequence n: the thread's share of the loss; the logits' gradient, rounded, takes their place.
    __device__ float return_through_loss(Product (&outputs)[TOKEN_TILES], int n, const Pair &pair, int lane) const {
        const bool there = pair.own[n] < v;
        const int target = pair.next[n] - lane % 4 * 6;
        float top = outputs[0][2 * n], total = 0, picked = 0;
        UNROLLED for (int e = 1; e < 2 * TOKEN_TILES; e++) {
            const float output = outputs[e / 2][2 * n + e % 2];
            top = output > top ? output : top;
        }
        top = largest_of_four(top, lane);
        UNROLLED for (int e = 0; e < 2 * TOKEN_TILES; e++) {
            float &output = outputs[e / 2][2 * n + e % 2];
            picked = e == target ? output - top : picked;
            total += output = power_of_2((output - top) * LOG2_E);
        }
        total = sum_of_four(total, lane);
        const float share = there ? 1.0f / (float(N) * float(s)) : 0.0f, factor = share * reciprocal(total);
        UNROLLED for (int e = 0; e < 2 * TOKEN_TILES; e++) {
            float &output = outputs[e / 2][2 * n + e % 2];
            output = to_tf32(output * factor - (e == target ? share : 0.0f));
        }
        return there ? (lane % 4 ? 0.0f : logarithm_of_2(total) * LN_2) - picked : 0.0f;
    }
    // Adds to the gradient of logits.
    __device__ void return_through_softmax(float *logits_g, const Product (&stream_g)[4], int n, const Pair &pair, int lane) const {
        const float *const rows = at(TILE_ROWS) + pair.own[n] * ROW + lane % 4 * 8;
        Product weights_g = {};
        UNROLLED for (int k = 0; k < 4; k += 2) {
            const Four from = four(rows + 2 * k);
            multiply_on(weights_g, stream_g[k], from.x[0], from.x[1]);
            multiply_on(weights_g, stream_g[k + 1], from.x[2], from.x[3]);
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
        const Matrix embedding_g = gradient(EMBEDDING), rows_g = matrix(TOKEN_ROWS_G, d), unembedding_g = gradient(UNEMBEDDING);
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
