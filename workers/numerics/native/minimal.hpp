// Loss and gradient of the minimal transformer (workers/networks/models/minimal.py) under next-token cross entropy, or its
// outputs alone, one lane after another, each in blocks of W sequences.
//
// A block holds one sequence per element of a vector register: every number of the model is a register of W sequences'
// numbers, so that shapes of any size fill the vector units, and what one lane works on stays in the core's cache.
// No operation mixes lanes, so that a lane's bits depend on nothing but the lane.
//
// Legend: L lanes, N sequences, s positions, v tokens, d width, k key width, u value width; W sequences of a block.
// Suffix _g: gradient. Matrices are row-major; [a][b] of T are shared by all sequences, of V one per sequence.
#pragma once
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <vector>

#include "activations.hpp"
#include "functions.hpp"
#include "scores.hpp"
#include "splitmix.hpp"

namespace {

using namespace registers;

constexpr int TILE_COLUMNS = REGISTER_BYTES == 64 ? 6 : 3; // by four rows: of 32 registers, or of 16

// Y[i][e] = (add ? Y[i][e] : 0) + sum over c of A[i][c] B[c][e], in tiles whose sums stay in registers: four rows by six
// columns are 24 sums, four of A and one of B, out of 32 registers; by three where there are 16. B is shared by all sequences (T) or one per sequence
// (V); strides are counted in elements.
template <typename T, typename B, int TI, int TE>
void tile(V<T> *y, int yi, const V<T> *a, int ai, int ac, const B *b, int bc, int be, int count, bool add) {
    V<T> sums[TI][TE], row[TI];
    if (add) {
#pragma GCC unroll 24
        for (int n = 0; n < TI * TE; n++) sums[n / TE][n % TE] = y[n / TE * yi + n % TE];
    } else {
#pragma GCC unroll 24
        for (int n = 0; n < TI * TE; n++) sums[n / TE][n % TE] = V<T>{};
    }
    for (int c = 0; c < count; c++, a += ac, b += bc) {
#pragma GCC unroll 4
        for (int i = 0; i < TI; i++) row[i] = a[i * ai];
#pragma GCC unroll 6
        for (int e = 0; e < TE; e++) {
            const V<T> factor = V<T>{} + b[e * be];
#pragma GCC unroll 4
            for (int i = 0; i < TI; i++) sums[i][e] = multiply_add(row[i], factor, sums[i][e]);
        }
    }
#pragma GCC unroll 24
    for (int n = 0; n < TI * TE; n++) y[n / TE * yi + n % TE] = sums[n / TE][n % TE];
}
template <typename T, typename B, int TI>
void strip(V<T> *y, int yi, const V<T> *a, int ai, int ac, const B *b, int bc, int be, int count, int columns, bool add) {
    const int tiles = (columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
    for (int n = 0; n < tiles; n++) {  // as even as can be: a narrow tile leaves registers idle
        const int e = columns * n / tiles;
        V<T> *to = y + e;
        const B *by = b + e * be;
        switch (columns * (n + 1) / tiles - e) {
#if defined(__AVX512F__)
        case 6: tile<T, B, TI, 6>(to, yi, a, ai, ac, by, bc, be, count, add); break;
        case 5: tile<T, B, TI, 5>(to, yi, a, ai, ac, by, bc, be, count, add); break;
        case 4: tile<T, B, TI, 4>(to, yi, a, ai, ac, by, bc, be, count, add); break;
#endif
        case 3: tile<T, B, TI, 3>(to, yi, a, ai, ac, by, bc, be, count, add); break;
        case 2: tile<T, B, TI, 2>(to, yi, a, ai, ac, by, bc, be, count, add); break;
        case 1: tile<T, B, TI, 1>(to, yi, a, ai, ac, by, bc, be, count, add); break;
        }
    }
}
enum class Sum { all, up_to_row, from_row };  // which c count for row i: causal factors are zero elsewhere
template <typename T, typename B>
void multiply(V<T> *y, int yi, const V<T> *a, int ai, int ac, const B *b, int bc, int be, int rows, int count,
              int columns, bool add, Sum range = Sum::all) {
    const int strips = (rows + 3) / 4;
    for (int n = 0; n < strips; n++) {
        const int i = rows * n / strips, height = rows * (n + 1) / strips - i;
        const int first = range == Sum::from_row ? i : 0;
        const int last = range == Sum::up_to_row ? i + height : count;
        V<T> *to = y + i * yi;
        const V<T> *from = a + i * ai + first * ac;
        const B *by = b + first * bc;
        switch (height) {
        case 4: strip<T, B, 4>(to, yi, from, ai, ac, by, bc, be, last - first, columns, add); break;
        case 3: strip<T, B, 3>(to, yi, from, ai, ac, by, bc, be, last - first, columns, add); break;
        case 2: strip<T, B, 2>(to, yi, from, ai, ac, by, bc, be, last - first, columns, add); break;
        case 1: strip<T, B, 1>(to, yi, from, ai, ac, by, bc, be, last - first, columns, add); break;
        }
    }
}

// The same for small matrices of plain numbers: y[i][e] += sum over c of a[i][c] b[c][e], e contiguous; no two overlap.
template <typename T, int WIDE, int ROWS>
inline void add_columns(T *y, int yi, const T *a, int ai, int ac, const T *b, int bc, int count) {
    typedef T R __attribute__((vector_size(WIDE * sizeof(T))));
    R sums[ROWS], row;
    for (int i = 0; i < ROWS; i++) std::memcpy(&sums[i], y + i * yi, sizeof(R));
    for (int c = 0; c < count; c++) {
        std::memcpy(&row, b + c * bc, sizeof(R));
        for (int i = 0; i < ROWS; i++) sums[i] = multiply_add(R{} + a[i * ai + c * ac], row, sums[i]);
    }
    for (int i = 0; i < ROWS; i++) std::memcpy(y + i * yi, &sums[i], sizeof(R));
}
template <typename T, int ROWS>
void add_rows(T *y, int yi, const T *a, int ai, int ac, const T *b, int bc, int count, int columns) {
    int e = 0;
    for (; e + W<T> <= columns; e += W<T>) add_columns<T, W<T>, ROWS>(y + e, yi, a, ai, ac, b + e, bc, count);
    for (; e + 4 <= columns; e += 4) add_columns<T, 4, ROWS>(y + e, yi, a, ai, ac, b + e, bc, count);
    for (; e < columns; e++) add_columns<T, 1, ROWS>(y + e, yi, a, ai, ac, b + e, bc, count);
}
template <typename T>
void add_product(T *y, int yi, const T *a, int ai, int ac, const T *b, int bc, int rows, int count, int columns) {
    int i = 0;
    for (; i + 4 <= rows; i += 4) add_rows<T, 4>(y + i * yi, yi, a + i * ai, ai, ac, b, bc, count, columns);
    for (; i < rows; i++) add_rows<T, 1>(y + i * yi, yi, a + i * ai, ai, ac, b, bc, count, columns);
}
template <typename T> void transposed(T *to, const T *from, int rows, int columns, int stride) {
    for (int i = 0; i < rows; i++)
        for (int e = 0; e < columns; e++) to[e * rows + i] = from[i * stride + e];
}

// Sequence-major [W][stride] to one register per number, and back; `count` is a multiple of W.
template <typename T> void to_registers(V<T> *out, const T *rows, int stride, int count) {
    for (int c = 0; c < count; c += W<T>) {
        V<T> part[W<T>];
        for (int n = 0; n < W<T>; n++) part[n] = load<T>(rows + n * stride + c);
        turn<T>(part);
        for (int n = 0; n < W<T>; n++) out[c + n] = part[n];
    }
}
template <typename T> void from_registers(T *rows, int stride, const V<T> *in, int count) {
    for (int c = 0; c < count; c += W<T>) {
        V<T> part[W<T>];
        for (int n = 0; n < W<T>; n++) part[n] = in[c + n];
        turn<T>(part);
        for (int n = 0; n < W<T>; n++) store<T>(rows + n * stride + c, part[n]);
    }
}

// One dropout site of a lane with all its bytes, which `DropoutSite` of dropout.hpp draws in parts: an element is kept if its
// byte of the stream is not below the threshold.
struct Dropout {
    std::vector<uint64_t> words;
    const uint8_t *bytes = nullptr;
    uint8_t threshold = 0;
    void draw(uint64_t state, uint8_t below, std::size_t count) {
        words.resize((count + 7) / 8 + REGISTER_BYTES / 8);
        for (std::size_t i = 0; i < (count + 7) / 8; i++) words[i] = splitmix_word(state, i);
        bytes = reinterpret_cast<const uint8_t *>(words.data());
        threshold = below;
    }
};

struct Shape {
    int length, tokens, width, key_width, value_width;
    bool operator==(const Shape &other) const { return !std::memcmp(this, &other, sizeof(Shape)); }
};

// The matrices of a lane's parameters, in their order.
struct Matrix {
    std::size_t rows, columns;
};
std::array<Matrix, 7> matrices(const Shape &shape) {
    const std::size_t v = shape.tokens, d = shape.width, k = shape.key_width, u = shape.value_width;
    return {{{v, d}, {1, d}, {d, k}, {d, k}, {d, u}, {u, d}, {d, v}}};
}
std::size_t total(const Shape &shape) {
    std::size_t count = 0;
    for (const Matrix &one : matrices(shape)) count += one.rows * one.columns;
    return count;
}
// Parameters of shape `own`, from those of the padded shape `all`; and back, where the padding is left as it is.
template <typename T> void crop(T *to, const T *from, const Shape &own, const Shape &all) {
    const auto small = matrices(own), large = matrices(all);
    for (std::size_t m = 0; m < small.size(); from += large[m].rows * large[m].columns, m++)
        for (std::size_t i = 0; i < small[m].rows; i++, to += small[m].columns)
            std::memcpy(to, from + i * large[m].columns, small[m].columns * sizeof(T));
}
template <typename T> void place(T *to, const T *from, const Shape &own, const Shape &all) {
    const auto small = matrices(own), large = matrices(all);
    for (std::size_t m = 0; m < small.size(); to += large[m].rows * large[m].columns, m++)
        for (std::size_t i = 0; i < small[m].rows; i++, from += small[m].columns)
            std::memcpy(to + i * large[m].columns, from, small[m].columns * sizeof(T));
}

template <typename T> struct Buffer {
    std::vector<char> memory;
    T *get(std::size_t count) {
        if (memory.size() < count * sizeof(T) + 2 * REGISTER_BYTES) memory.resize(count * sizeof(T) + 2 * REGISTER_BYTES);
        return reinterpret_cast<T *>((reinterpret_cast<uintptr_t>(memory.data()) + REGISTER_BYTES - 1) / REGISTER_BYTES * REGISTER_BYTES);
    }
};

// What one lane needs beside its parameters.
template <typename T> struct Knobs {
    T scale, epsilon, embedding_scale, residual_scale;
};

template <typename T> class Minimal {
  public:
    Scorer<T> scorer;
    Activation<T> phi;          // of the scorer's features
    const T *placing = nullptr; // [line][line] factors of their products; null: none

    // Sequences are `line` tokens apart.
    Minimal(int batch, int line) : N(batch), stride_(line), tokens_(line), targets_(line), visible_(line) {
        for (int i = 0; i < line; i++) visible_[i] = i + 1;
    }

    void take(const Shape &shape) {
        s = shape.length, v = shape.tokens, d = shape.width, k = shape.key_width, u = shape.value_width;
        dp = padded(d, W<T>), vp = padded(v, W<T>), row_d = padded(s * d, W<T>) + dp, row_v = padded(s * v, W<T>) + vp;
    }

    // Gradient [P] and loss of a lane; `embedding` and `residual` are null where the site is off. With `whole_tokens`
    // they drop entries of the per-token matrices [v][d], else of the vectors of every occurrence.
    T gradient(const T *parameters, T *gradient_out, const int64_t *inputs, const int64_t *targets, const Knobs<T> &knobs,
               const Dropout *embedding, const Dropout *residual, bool whole_tokens) {
        unpack(parameters, knobs);
        const std::size_t count = v * d + d + 2 * d * k + 2 * u * d + d * v;
        std::memset(gradient_out, 0, count * sizeof(T));
        open(gradient_out);
        loss_ = V<T>{};
        if (whole_tokens) {
            if (embedding) drop_embedding(*embedding);
            per_token(inputs, targets, nullptr, residual);
            if (embedding) drop(E_g, *embedding, knobs.embedding_scale);
        } else if (embedding) {
            per_occurrence(inputs, targets, *embedding, residual);
        } else {
            per_token(inputs, targets, residual, nullptr);
        }
        close();
        return sum<T>(loss_) / (T(N) * s);
    }

    // Logits [N][line][columns] of a lane without dropout, of which the first s rows and v columns are written.
    void evaluate(const T *parameters, T *logits, int columns, const int64_t *inputs, const Knobs<T> &knobs) {
        unpack(parameters, knobs);
        const Tables at = lay_out_tables(vp);
        fill_tables(at, nullptr);
        add_product(at.table, vp, at.rows, d, 1, U, v, v, d, v);
        const int sv = padded(s * v, W<T>), ss = s * s;
        V<T> *P = block_buffer.get(ss + 2 * sv), *rows = P + ss, *z = rows + sv;
        for (int first = 0; first < N; first += W<T>) {
            read_block(first, inputs, nullptr);
            gather_logits(at.A);
            attend(P);
            gather_rows(rows, at.table, vp, v, at.line, row_v);
            gather_rows(z, at.direct, vp, v, at.line, row_v);
            multiply<T, V<T>>(z, v, P, s, 1, rows, v, 1, s, s, v, true, Sum::up_to_row);
            from_registers<T>(at.line, row_v, z, sv);
            for (int n = 0; n < W<T> && first + n < N; n++)
                for (int i = 0; i < s; i++)
                    std::memcpy(logits + (std::size_t(first + n) * stride_ + i) * columns, at.line + n * row_v + i * v,
                                v * sizeof(T));
        }
    }

  private:
    const int N, stride_;
    int s = 0, v = 0, d = 0, k = 0, u = 0, dp = 0, vp = 0, row_d = 0, row_v = 0;
    Buffer<T> small_buffer, rows_buffer, embedding_buffer, slopes_buffer, points_buffer;
    Buffer<V<T>> block_buffer, sums_buffer, logits_buffer, kept_buffer;
    Knobs<T> knobs_;
    const T *E, *g, *Wq, *Wk, *Wv, *Wo, *U;
    T *E_g, *g_g, *Wq_g, *Wk_g, *Wv_g, *Wo_g, *U_g;
    T *Q, *K, *Vg, *R;          // [d][k] scale g Wq, [d][k] g Wk, [d][u] g Wv, [d][d] residual scale g Wv Wo
    T *Q_g, *K_g, *R_g;         // their gradients
    T *N_t, *r_t, *N_tg;        // [v][d] normed embeddings, [v] their factors, gradients
    T *work;
    V<T> loss_;
    std::vector<std::array<int, W<T>>> tokens_, targets_; // [s] of a block
    std::vector<int> visible_;                            // [s]
    V<T> weight_;

    void unpack(const T *p, const Knobs<T> &knobs) {
        knobs_ = knobs;
        E = p, g = E + v * d, Wq = g + d, Wk = Wq + d * k, Wv = Wk + d * k, Wo = Wv + d * u, U = Wo + u * d;
        T *m = small_buffer.get(4 * d * k + d * u + 2 * d * d + 2 * v * d + v + 2 * d * u + 5 * v * k + 2 * v * v + 2 * v * d + d * (v + k + d));
        Q = m, K = Q + d * k, Vg = K + d * k, R = Vg + d * u, Q_g = R + d * d, K_g = Q_g + d * k, R_g = K_g + d * k;
        N_t = R_g + d * d, N_tg = N_t + v * d, r_t = N_tg + v * d, work = r_t + v;
        std::memset(R, 0, (work - R) * sizeof(T));
        for (int c = 0; c < d; c++) {
            for (int e = 0; e < k; e++) Q[c * k + e] = knobs.scale * g[c] * Wq[c * k + e], K[c * k + e] = g[c] * Wk[c * k + e];
            for (int e = 0; e < u; e++) Vg[c * u + e] = knobs.residual_scale * g[c] * Wv[c * u + e];
        }
        add_product(R, d, Vg, u, 1, Wo, d, d, u, d);
    }
    void open(T *p) {
        E_g = p, g_g = E_g + v * d, Wq_g = g_g + d, Wk_g = Wq_g + d * k, Wv_g = Wk_g + d * k, Wo_g = Wv_g + d * u,
        U_g = Wo_g + u * d;
    }
    // From the gradients of Q, K and R to those of the weights and of the norm's gain.
    void close() {
        T *Wo_T = work, *Vg_g = Wo_T + d * u;
        transposed(Wo_T, Wo, u, d, d);  // [d][u]
        std::memset(Vg_g, 0, d * u * sizeof(T));
        add_product(Vg_g, u, R_g, d, 1, Wo_T, u, d, d, u);
        add_product(Wo_g, d, Vg, 1, u, R_g, d, u, d, d);
        for (int c = 0; c < d; c++) {
            T gain = 0;
            for (int e = 0; e < k; e++) {
                gain += knobs_.scale * Wq[c * k + e] * Q_g[c * k + e] + Wk[c * k + e] * K_g[c * k + e];
                Wq_g[c * k + e] = knobs_.scale * g[c] * Q_g[c * k + e];
                Wk_g[c * k + e] = g[c] * K_g[c * k + e];
            }
            for (int e = 0; e < u; e++) {
                gain += knobs_.residual_scale * Wv[c * u + e] * Vg_g[c * u + e];
                Wv_g[c * u + e] = knobs_.residual_scale * g[c] * Vg_g[c * u + e];
            }
            g_g[c] = gain;
        }
    }
    void read_block(int first, const int64_t *inputs, const int64_t *targets) {
        for (int n = 0; n < W<T>; n++) {
            const int sequence = first + n < N ? first + n : N - 1;
            weight_[n] = first + n < N ? 1 : 0;
            for (int i = 0; i < s; i++) {
                tokens_[i][n] = int(inputs[sequence * stride_ + i]);
                if (targets) targets_[i][n] = int(targets[sequence * stride_ + i]);
            }
        }
    }
    V<T> *logits() { return logits_buffer.get(s * s); }
    // Queries and keys, which lie one after another, become features; and the gradient by features that by them.
    void make_features(T *rows, int count) {
        const int room = padded(count, W<T>);
        if (phi.on()) phi.make_features(rows, slopes_buffer.get(room), points_buffer.get(room), room, 1, count);
    }
    void make_features_gradient(T *rows, int count) {
        const int room = padded(count, W<T>);
        if (phi.on()) phi.make_features_gradient(rows, slopes_buffer.get(room), points_buffer.get(room), room, 1, count);
    }
    // Products of features times their factors, or the gradient.
    void place_rows(V<T> *rows) {
        if (!placing) return;
        for (int i = 0; i < s; i++)
            for (int j = 0; j <= i; j++) rows[i * s + j] *= placing[i * stride_ + j];
    }
    // Attention weights P [s][s] of the logits, zero where j > i.
    void attend(V<T> *P) {
        place_rows(logits());
        scorer.weigh_beside(nullptr, numbers(logits()), numbers(P), numbers(kept_buffer.get(s * scorer.kept)), s * W<T>,
                            visible_.data(), s, s, s);
    }
    // Gradient of the logits [s][s] from that of the weights, in place, zero where j > i.
    void attend_gradient(V<T> *P_g, V<T> *P) {
        scorer.weigh_gradient_beside(nullptr, numbers(logits()), numbers(P), numbers(kept_buffer.get(s * scorer.kept)),
                                     numbers(P_g), s * W<T>, visible_.data(), s, s, s);
        scorer.add_places(weight_);
        place_rows(P_g);
    }
    static T *numbers(V<T> *registers) { return reinterpret_cast<T *>(registers); }
    // Adds the loss; turns logits [s][v] into their gradient.
    void cross_entropy(V<T> *z) {
        const V<T> share = weight_ / (T(N) * s);
        for (int i = 0; i < s; i++) {
            V<T> *row = z + i * v, top = row[0], total = {}, picked;
            for (int e = 1; e < v; e++) top = larger<T>(top, row[e]);
            for (int n = 0; n < W<T>; n++) picked[n] = row[targets_[i][n]][n];
            for (int e = 0; e < v; e++) total += row[e] = exponential(row[e] - top);
            loss_ += weight_ * (logarithm(total) - (picked - top));
            const V<T> factor = share / total;
            for (int e = 0; e < v; e++) row[e] *= factor;
            for (int n = 0; n < W<T>; n++) row[targets_[i][n]][n] -= share[n];
        }
    }
    void add_sums(T *to, const V<T> *sums, int count) {
        for (int c = 0; c < count; c++) to[c] += sum<T>(sums[c]);
    }
    // 0 and 1 of a site for the block [s][d], one register per number.
    void keep_registers(V<T> *keep, const Dropout &site, int first, T *rows) {
        for (int n = 0; n < W<T>; n++) {
            const int sequence = first + n < N ? first + n : N - 1;
            const uint8_t *__restrict bytes = site.bytes + std::size_t(sequence) * s * d;
            T *__restrict to = rows + n * row_d;
            const uint8_t threshold = site.threshold;
            for (int c = 0; c < s * d; c++) to[c] = bytes[c] >= threshold ? T(1) : T(0);
        }
        to_registers<T>(keep, rows, row_d, padded(s * d, W<T>));
    }

    // With embedding dropout every occurrence of a token is another vector.
    void per_occurrence(const int64_t *inputs, const int64_t *targets, const Dropout &embedding, const Dropout *residual) {
        const int sd = padded(s * d, W<T>), sk = s * k, sv = s * v, ss = s * s;
        V<T> *X = block_buffer.get(7 * sd + 4 * sk + sv + 2 * ss + s);
        V<T> *Nd = X + sd, *rows = Nd + sd, *O = rows + sd, *O_g = O + sd, *N_g = O_g + sd, *keep = N_g + sd;
        V<T> *q = keep + sd, *key = q + sk, *q_g = key + sk, *key_g = q_g + sk, *z = key_g + sk, *P = z + sv, *P_g = P + ss;
        V<T> *r = P_g + ss;
        V<T> *sums = sums_buffer.get(2 * d * k + d * d + d * v);
        V<T> *Q_s = sums, *K_s = Q_s + d * k, *R_s = K_s + d * k, *U_s = R_s + d * d;
        std::memset(sums, 0, (2 * d * k + d * d + d * v) * sizeof(V<T>));
        T *line = rows_buffer.get(W<T> * row_d + 2 * v * dp);
        T *table = line + W<T> * row_d, *table_g = table + v * dp;
        std::memset(table, 0, 2 * v * dp * sizeof(T));
        for (int t = 0; t < v; t++)
            for (int c = 0; c < d; c++) table[t * dp + c] = knobs_.embedding_scale * E[t * d + c];

        for (int first = 0; first < N; first += W<T>) {
            read_block(first, inputs, targets);
            for (int n = 0; n < W<T>; n++) {
                const int sequence = first + n < N ? first + n : N - 1;
                for (int i = 0; i < s; i++) {
                    const uint8_t *__restrict bytes = embedding.bytes + (std::size_t(sequence) * s + i) * d;
                    const T *__restrict from = table + tokens_[i][n] * dp;
                    T *__restrict to = line + n * row_d + i * d;
                    const uint8_t threshold = embedding.threshold;
                    for (int c = 0; c < d; c++) to[c] = bytes[c] >= threshold ? from[c] : T(0);
                }
            }
            to_registers<T>(X, line, row_d, sd);
            for (int i = 0; i < s; i++) {
                V<T> squares = {};
                for (int c = 0; c < d; c++) squares = multiply_add(X[i * d + c], X[i * d + c], squares);
                squares = squares / T(d) + knobs_.epsilon;
                for (int n = 0; n < W<T>; n++) r[i][n] = 1 / std::sqrt(squares[n]);
                for (int c = 0; c < d; c++) Nd[i * d + c] = X[i * d + c] * r[i];
            }
            multiply<T, T>(q, k, Nd, d, 1, Q, k, 1, s, d, k, false);
            multiply<T, T>(key, k, Nd, d, 1, K, k, 1, s, d, k, false);
            multiply<T, T>(rows, d, Nd, d, 1, R, d, 1, s, d, d, false);
            make_features(numbers(q), 2 * sk * W<T>);
            multiply<T, V<T>>(logits(), s, q, k, 1, key, 1, k, s, k, s, false);
            attend(P);
            if (residual) {
                keep_registers(keep, *residual, first, line);
                for (int c = 0; c < s * d; c++) rows[c] *= keep[c];
            }
            for (int c = 0; c < s * d; c++) O[c] = X[c];
            multiply<T, V<T>>(O, d, P, s, 1, rows, d, 1, s, s, d, true, Sum::up_to_row);
            multiply<T, T>(z, v, O, d, 1, U, v, 1, s, d, v, false);
            cross_entropy(z);

            multiply<T, V<T>>(U_s, v, O, 1, d, z, v, 1, d, s, v, true);
            multiply<T, T>(O_g, d, z, v, 1, U, 1, v, s, v, d, false);
            multiply<T, V<T>>(P_g, s, O_g, d, 1, rows, 1, d, s, d, s, false);
            attend_gradient(P_g, P);
            V<T> *rows_g = O;  // O is done with
            multiply<T, V<T>>(rows_g, d, P, 1, s, O_g, d, 1, s, s, d, false, Sum::from_row);
            if (residual)
                for (int c = 0; c < s * d; c++) rows_g[c] *= keep[c];
            multiply<T, V<T>>(q_g, k, P_g, s, 1, key, k, 1, s, s, k, false, Sum::up_to_row);
            multiply<T, V<T>>(key_g, k, P_g, 1, s, q, k, 1, s, s, k, false, Sum::from_row);
            make_features_gradient(numbers(q_g), 2 * sk * W<T>);
            multiply<T, V<T>>(Q_s, k, Nd, 1, d, q_g, k, 1, d, s, k, true);
            multiply<T, V<T>>(K_s, k, Nd, 1, d, key_g, k, 1, d, s, k, true);
            multiply<T, V<T>>(R_s, d, Nd, 1, d, rows_g, d, 1, d, s, d, true);
            multiply<T, T>(N_g, d, rows_g, d, 1, R, 1, d, s, d, d, false);
            multiply<T, T>(N_g, d, q_g, k, 1, Q, 1, k, s, k, d, true);
            multiply<T, T>(N_g, d, key_g, k, 1, K, 1, k, s, k, d, true);
            for (int i = 0; i < s; i++) {
                V<T> inner = {};
                for (int c = 0; c < d; c++) inner = multiply_add(Nd[i * d + c], N_g[i * d + c], inner);
                inner = inner / T(d);
                for (int c = 0; c < d; c++) O_g[i * d + c] += r[i] * (N_g[i * d + c] - Nd[i * d + c] * inner);
            }
            from_registers<T>(line, row_d, O_g, sd);
            for (int n = 0; n < W<T> && first + n < N; n++)
                for (int i = 0; i < s; i++) {
                    const uint8_t *__restrict bytes = embedding.bytes + (std::size_t(first + n) * s + i) * d;
                    const T *__restrict from = line + n * row_d + i * d;
                    T *__restrict to = table_g + tokens_[i][n] * dp;
                    const uint8_t threshold = embedding.threshold;
                    for (int c = 0; c < d; c++) to[c] += bytes[c] >= threshold ? from[c] : T(0);
                }
        }
        add_sums(Q_g, Q_s, d * k);
        add_sums(K_g, K_s, d * k);
        add_sums(R_g, R_s, d * d);
        add_sums(U_g, U_s, d * v);
        for (int t = 0; t < v; t++)
            for (int c = 0; c < d; c++) E_g[t * d + c] += knobs_.embedding_scale * table_g[t * dp + c];
    }

    // W sequences' rows of a table [v][stride], one register per number of [s][columns].
    void gather_rows(V<T> *out, const T *table, int stride, int columns, T *line, int line_stride) {
        for (int n = 0; n < W<T>; n++)
            for (int i = 0; i < s; i++)
                for (int c = 0; c < columns; c += W<T>)  // past the row's end: overwritten by the next row
                    store<T>(line + n * line_stride + i * columns + c, load<T>(table + tokens_[i][n] * stride + c));
        to_registers<T>(out, line, line_stride, padded(s * columns, W<T>));
    }
    // Adds registers of [s][columns] to the rows of a table that they came from; its padding takes rubbish.
    void scatter_rows(T *table, int stride, const V<T> *in, int columns, T *line, int line_stride) {
        from_registers<T>(line, line_stride, in, padded(s * columns, W<T>));
        for (int n = 0; n < W<T>; n++)
            for (int i = 0; i < s; i++)
                for (int c = 0; c < columns; c += W<T>) {
                    T *to = table + tokens_[i][n] * stride + c;
                    store<T>(to, load<T>(to) + load<T>(line + n * line_stride + i * columns + c));
                }
    }

    // What depends on tokens alone where no occurrence of one is like no other (paper 003, eq. 3), and gradients.
    struct Tables {
        T *q, *key, *key_T, *A, *A_g;    // [v][k] queries and keys, [k][v], [v][v] logits of attention
        T *rows, *rows_g, *q_g, *key_g;  // [v][d] what attention mixes, [v][k]
        T *flip;                         // room for a matrix, transposed
        T *line;                         // [W][row_d + row_v]
        T *table, *table_g;              // [v][stride] rows, or their products with the unembedding
        T *direct, *direct_g;            // [v][vp] embeddings times the unembedding
    };
    Tables lay_out_tables(int stride) {
        Tables at;
        at.q = work, at.key = at.q + v * k, at.key_T = at.key + v * k, at.A = at.key_T + k * v, at.A_g = at.A + v * v;
        at.rows = at.A_g + v * v, at.rows_g = at.rows + v * d, at.q_g = at.rows_g + v * d, at.key_g = at.q_g + v * k;
        at.flip = at.key_g + v * k;
        std::memset(work, 0, (at.flip - work) * sizeof(T));
        at.line = rows_buffer.get(W<T> * (row_d + row_v) + 2 * v * (dp + vp) + 2 * v * vp);
        at.table = at.line + W<T> * (row_d + row_v), at.table_g = at.table + v * stride;
        at.direct = at.table_g + v * stride, at.direct_g = at.direct + v * vp;
        std::memset(at.table, 0, (at.direct_g + v * vp - at.table) * sizeof(T));
        return at;
    }
    void fill_tables(const Tables &at, const Dropout *token_rows) {
        normalise_tokens();
        add_product(at.q, k, N_t, d, 1, Q, k, v, d, k);
        add_product(at.key, k, N_t, d, 1, K, k, v, d, k);
        make_features(at.q, 2 * v * k); // zeros that it writes behind them are overwritten
        transposed(at.key_T, at.key, v, k, k);
        add_product(at.A, v, at.q, k, 1, at.key_T, v, v, k, v);
        add_product(at.rows, d, N_t, d, 1, R, d, v, d, d);
        if (token_rows) drop(at.rows, *token_rows, 1);
        add_product(at.direct, vp, E, d, 1, U, v, v, d, v);
    }
    void gather_logits(const T *A) {
        V<T> *to = logits();
        for (int i = 0; i < s; i++)
            for (int j = 0; j <= i; j++)
                for (int n = 0; n < W<T>; n++) to[i * s + j][n] = A[tokens_[i][n] * v + tokens_[j][n]];
    }

    // Without embedding dropout queries, keys, rows and direct logits are tables.
    void per_token(const int64_t *inputs, const int64_t *targets, const Dropout *residual, const Dropout *token_rows) {
        const int columns = residual ? d : v;  // what attention mixes: rows before, or after the unembedding
        const int stride = residual ? dp : vp, line_stride = residual ? row_d : row_v;
        const int sm = padded(s * columns, W<T>), sv = padded(s * v, W<T>), ss = s * s;
        V<T> *P = block_buffer.get(2 * ss + 4 * sm + sv);
        V<T> *P_g = P + ss, *rows = P_g + ss, *out = rows + sm, *rows_g = out + sm, *keep = rows_g + sm, *z = keep + sm;
        V<T> *U_s = sums_buffer.get(d * v);
        std::memset(U_s, 0, d * v * sizeof(V<T>));

        const Tables at = lay_out_tables(stride);
        const auto [q, key, key_T, A, A_g, T_t, T_g, q_g, key_g, flip, line, table, table_g, direct, direct_g] = at;
        fill_tables(at, token_rows);
        if (residual)
            for (int t = 0; t < v; t++) std::memcpy(table + t * stride, T_t + t * d, d * sizeof(T));
        else
            add_product(table, stride, T_t, d, 1, U, v, v, d, v);

        for (int first = 0; first < N; first += W<T>) {
            read_block(first, inputs, targets);
            gather_logits(A);
            attend(P);
            gather_rows(rows, table, stride, columns, line, line_stride);
            gather_rows(z, direct, vp, v, line, row_v);
            if (residual) {
                keep_registers(keep, *residual, first, line);
                for (int c = 0; c < s * d; c++) rows[c] *= keep[c];
                multiply<T, V<T>>(out, d, P, s, 1, rows, d, 1, s, s, d, false, Sum::up_to_row);
                multiply<T, T>(z, v, out, d, 1, U, v, 1, s, d, v, true);
            } else {
                multiply<T, V<T>>(z, v, P, s, 1, rows, v, 1, s, s, v, true, Sum::up_to_row);
            }
            cross_entropy(z);
            scatter_rows(direct_g, vp, z, v, line, row_v);
            const V<T> *out_g = z;  // gradient of what attention made
            if (residual) {
                multiply<T, V<T>>(U_s, v, out, 1, d, z, v, 1, d, s, v, true);
                multiply<T, T>(rows_g, d, z, v, 1, U, 1, v, s, v, d, false);
                std::memcpy(out, rows_g, s * d * sizeof(V<T>));
                out_g = out;
            }
            multiply<T, V<T>>(P_g, s, out_g, columns, 1, rows, 1, columns, s, columns, s, false);
            attend_gradient(P_g, P);
            multiply<T, V<T>>(rows_g, columns, P, 1, s, out_g, columns, 1, s, s, columns, false, Sum::from_row);
            if (residual)
                for (int c = 0; c < s * d; c++) rows_g[c] *= keep[c];
            scatter_rows(table_g, stride, rows_g, columns, line, line_stride);
            for (int i = 0; i < s; i++)
                for (int j = 0; j <= i; j++)
                    for (int n = 0; n < W<T>; n++) A_g[tokens_[i][n] * v + tokens_[j][n]] += P_g[i * s + j][n];
        }

        add_product(q_g, k, A_g, v, 1, key, k, v, v, k);
        add_product(key_g, k, A_g, 1, v, q, k, v, v, k);
        make_features_gradient(q_g, 2 * v * k);
        transposed(flip, U, d, v, v);  // [v][d]
        add_product(E_g, d, direct_g, vp, 1, flip, d, v, v, d);
        add_product(U_g, v, E, 1, d, direct_g, vp, d, v, v);
        if (residual) {
            add_sums(U_g, U_s, d * v);
            for (int t = 0; t < v; t++) std::memcpy(T_g + t * d, table_g + t * stride, d * sizeof(T));
        } else {
            add_product(T_g, d, table_g, stride, 1, flip, d, v, v, d);
            add_product(U_g, v, T_t, 1, d, table_g, stride, d, v, v);
        }
        if (token_rows) drop(T_g, *token_rows, 1);
        add_product(Q_g, k, N_t, 1, d, q_g, k, d, v, k);
        add_product(K_g, k, N_t, 1, d, key_g, k, d, v, k);
        add_product(R_g, d, N_t, 1, d, T_g, d, d, v, d);
        transposed(flip, R, d, d, d);
        add_product(N_tg, d, T_g, d, 1, flip, d, v, d, d);
        transposed(flip, Q, d, k, k);
        add_product(N_tg, d, q_g, k, 1, flip, d, v, k, d);
        transposed(flip, K, d, k, k);
        add_product(N_tg, d, key_g, k, 1, flip, d, v, k, d);
        for (int t = 0; t < v; t++) {
            T inner = 0;
            for (int c = 0; c < d; c++) inner += N_t[t * d + c] * N_tg[t * d + c];
            for (int c = 0; c < d; c++) E_g[t * d + c] += r_t[t] * (N_tg[t * d + c] - N_t[t * d + c] * (inner / d));
        }
    }

    // Entries of a per-token matrix [v][d], scaled or dropped.
    void drop(T *matrix, const Dropout &site, T scale) {
        for (int c = 0; c < v * d; c++) matrix[c] = site.bytes[c] >= site.threshold ? matrix[c] * scale : T(0);
    }
    void drop_embedding(const Dropout &site) {
        T *own = embedding_buffer.get(v * d);
        std::memcpy(own, E, v * d * sizeof(T));
        drop(own, site, knobs_.embedding_scale);
        E = own;
    }
    void normalise_tokens() {
        for (int t = 0; t < v; t++) {
            T squares = 0;
            for (int c = 0; c < d; c++) squares += E[t * d + c] * E[t * d + c];
            r_t[t] = 1 / std::sqrt(squares / d + knobs_.epsilon);
            for (int c = 0; c < d; c++) N_t[t * d + c] = E[t * d + c] * r_t[t];
        }
    }
};

// One lane, whose parameters may be padded: it is computed at its own sizes.
template <typename T> class MinimalLane {
  public:
    MinimalLane(int batch, const Shape &all, bool whole_tokens, std::size_t parameters, const int64_t *described, const T *placing)
        : model_(batch, all.length), all_(all), N(batch), whole_tokens_(whole_tokens), parameters_count_(parameters) {
        const int64_t *offsets = described + SCORER_FIELDS + ACTIVATION_FIELDS;
        model_.scorer.take(described, offsets);
        model_.phi.take(described + SCORER_FIELDS, offsets + model_.scorer.learned);
        model_.placing = placing;
    }
    int knobs() const { return 4 + model_.scorer.knobs + model_.phi.knobs; }

    T gradient(const Shape &own, const T *parameters, T *gradient_out, const int64_t *inputs, const int64_t *targets,
               const T *knobs, const int64_t *states, const uint8_t *thresholds, int sites) {
        const Dropout *site[2] = {nullptr, nullptr};
        for (int which = 0; which < 2; which++)
            if (sites >> which & 1) {
                const std::size_t rows = whole_tokens_ ? own.tokens : std::size_t(N) * own.length;
                drawn_[which].draw(uint64_t(states[which]), thresholds[which], rows * own.width);
                site[which] = &drawn_[which];
            }
        std::memset(gradient_out, 0, parameters_count_ * sizeof(T));
        const bool is_padded = !(own == all_);
        const T *matrices = parameters;
        T *to = gradient_out;
        if (is_padded) matrices = cropped(own, parameters), to = gradient_.get(total(own));
        const Knobs<T> taken = take(own, parameters, knobs);
        const T loss = model_.gradient(matrices, to, inputs, targets, taken, site[0], site[1], whole_tokens_);
        if (is_padded) place(gradient_out, to, own, all_);
        model_.scorer.write(gradient_out), model_.phi.write(gradient_out);
        return loss;
    }

    void evaluate(const Shape &own, const T *parameters, T *logits, const int64_t *inputs, const T *knobs) {
        std::memset(logits, 0, std::size_t(N) * all_.length * all_.tokens * sizeof(T));
        const bool is_padded = own.tokens != all_.tokens || own.width != all_.width || own.key_width != all_.key_width ||
                               own.value_width != all_.value_width;
        const T *matrices = is_padded ? cropped(own, parameters) : parameters;
        Knobs<T> taken = take(own, parameters, knobs);
        taken.embedding_scale = taken.residual_scale = T(1);
        model_.evaluate(matrices, logits, all_.tokens, inputs, taken);
    }

  private:
    Minimal<T> model_;
    const Shape all_;
    const int N;
    const bool whole_tokens_;
    const std::size_t parameters_count_;
    Dropout drawn_[2];
    Buffer<T> parameters_, gradient_;

    Knobs<T> take(const Shape &own, const T *parameters, const T *knobs) {
        model_.take(own);
        model_.scorer.read_knobs(knobs + 4), model_.phi.read_knobs(knobs + 4 + model_.scorer.knobs);
        model_.scorer.read(parameters), model_.phi.read(parameters);
        return {knobs[0], knobs[1], knobs[2], knobs[3]};
    }
    const T *cropped(const Shape &own, const T *parameters) {
        T *matrices = parameters_.get(total(own));
        crop(matrices, parameters, own, all_);
        return matrices;
    }
};

template <typename T>
void all_lanes(int batch, const Shape &all, int lanes, int64_t P, const int64_t *described, const T *placing,
               const int64_t *sizes, const T *parameters, T *gradient, T *loss, const int64_t *inputs,
               const int64_t *targets, const T *knobs, const int64_t *states, const uint8_t *thresholds, int sites) {
    MinimalLane<T> one(batch, all, sites & 4, P, described, placing);
    const std::size_t line = std::size_t(batch) * all.length;
    for (std::size_t lane = 0; lane < std::size_t(lanes); lane++) {
        const int64_t *n = sizes + 5 * lane;
        const Shape own{int(n[0]), int(n[1]), int(n[2]), int(n[3]), int(n[4])};
        loss[lane] = one.gradient(own, parameters + lane * P, gradient + lane * P, inputs + lane * line, targets + lane * line,
                                  knobs + one.knobs() * lane, states + 2 * lane, thresholds + 2 * lane, sites);
    }
}

template <typename T>
void outputs_of_all_lanes(int batch, const Shape &all, int lanes, int64_t P, const int64_t *described, const T *placing,
                          const int64_t *sizes, const T *parameters, T *outputs, const int64_t *inputs, const T *knobs) {
    MinimalLane<T> one(batch, all, false, P, described, placing);
    const std::size_t line = std::size_t(batch) * all.length;
    for (std::size_t lane = 0; lane < std::size_t(lanes); lane++) {
        const int64_t *n = sizes + 5 * lane;
        const Shape own{int(n[0]), int(n[1]), int(n[2]), int(n[3]), int(n[4])};
        one.evaluate(own, parameters + lane * P, outputs + lane * line * all.tokens, inputs + lane * line,
                     knobs + one.knobs() * lane);
    }
}

} // namespace

// `total`: a lane's parameters. `described`: [SCORER_FIELDS] of the scorer, [ACTIVATION_FIELDS] of its features, and where
// what they learn lies. `placing` [length][length]: factors of products of features, or null. Per lane: `sizes` [L][5] length,
// tokens, width, key width, value width, at most those that the arrays are laid out by; `knobs` [L][4 + those of the scorer
// and its features] logit scale, norm epsilon, 1 / (1 - rate) of the embedding and of the residual site; `states` and
// `thresholds` [L][2] of the two sites' random bytes; `sites` has bit 0 for embedding, bit 1 for residual, bit 2 for dropout
// of whole tokens' entries. Returns 0, or 1 if memory ran out.
#define GRAFT_MINIMAL(NAME, T)                                                                                         \
    extern "C" int NAME(int batch, int length, int tokens, int width, int key_width, int value_width, int lanes,       \
                        int64_t total, const int64_t *described, const T *placing, const int64_t *sizes, const T *parameters, T *gradient, T *loss,     \
                        const int64_t *inputs, const int64_t *targets, const T *knobs, const int64_t *states,          \
                        const uint8_t *thresholds, int sites) try {                                                    \
        all_lanes<T>(batch, Shape{length, tokens, width, key_width, value_width}, lanes, total, described, placing, sizes, parameters, \
                     gradient, loss, inputs, targets, knobs, states, thresholds, sites);                               \
        return 0;                                                                                                      \
    } catch (const std::exception &) {                                                                                 \
        return 1;                                                                                                      \
    }
// `outputs` [L][N][length][tokens]: logits, 0 beyond a lane's own sizes; the rest as above.
#define GRAFT_MINIMAL_OUTPUTS(NAME, T)                                                                                 \
    extern "C" int NAME(int batch, int length, int tokens, int width, int key_width, int value_width, int lanes,       \
                        int64_t total, const int64_t *described, const T *placing, const int64_t *sizes, const T *parameters, T *outputs,               \
                        const int64_t *inputs, const T *knobs) try {                                                   \
        outputs_of_all_lanes<T>(batch, Shape{length, tokens, width, key_width, value_width}, lanes, total, described, placing, sizes,  \
                                parameters, outputs, inputs, knobs);                                                   \
        return 0;                                                                                                      \
    } catch (const std::exception &) {                                                                                 \
        return 1;                                                                                                      \
    }
