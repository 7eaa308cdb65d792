// Attention of one sequence and head, and its gradient: small products around the scorer's rows.
//
// Queries, keys and values are rows of blocks in which a head's channels lie next to one another. Where a head's channels
// are no whole registers, products write past them into the next head's: heads are worked on in ascending order, so that
// the next one overwrites that, and rows have room behind the last head.
#pragma once
#include "dropout.hpp"
#include "memory.hpp"
#include "products.hpp"
#include "scores.hpp"

namespace registers {

// Sizes that all sequences share.
struct Heads {
    int heads = 0, channels = 0;
    int stride = 0;  // of rows of queries, keys, values and what attention made
    int length = 0;  // positions of a whole sequence
    int row = 0;     // numbers of a row of weights
    bool causal = true;
    bool scaled = true; // products of queries and keys are divided by the root of the channels
    template <typename T> T scale() const { return scaled ? T(1) / std::sqrt(T(channels)) : T(1); }
};

// The rows of one sequence in a block.
struct Sequence {
    int number = 0;               // in the batch
    int first = 0, keys = 0;      // its rows
    int first_query = 0, queries = 0;
    int seen = 0;                 // positions that may be seen
    const int *positions = nullptr; // [queries] positions of the queries, ascending
};

struct Strip {
    int first, height;
};

template <typename T> class Attention {
  public:
    Heads sizes;
    DropoutSite<T> dropout; // of single weights
    const T *placing = nullptr; // [length][length] factors of products by the positions of query and key; null: none

    void lay_out(Memory &memory, const Heads &heads) {
        sizes = heads;
        const std::size_t channels = padded(sizes.channels, W<T>);
        turned_ = memory.take<T>(channels * sizes.row);
        gradient_ = memory.take<T>(std::size_t(sizes.length) * sizes.row);
        dropped_ = memory.take<T>(std::size_t(sizes.length) * sizes.row);
        bytes_ = memory.take<uint8_t>(std::size_t(sizes.length) * sizes.length + 16);
    }

    // `weights` [queries][row] of this sequence and head, and `kept` [queries][scorer.kept]; `logits` too, if the scorer
    // reads them. `slope`: of ALiBi, or 0.
    void apply(const Sequence &one, int head, const Scorer<T> &scorer, T slope, const T *query, const T *key,
               const T *value, T *weights, T *kept, T *logits, T *mixed) {
        const int c = sizes.channels, stride = sizes.stride, row = sizes.row;
        turn(one, head, key);
        const int width = padded(c, W<T>) * row;
        const T scale = sizes.template scale<T>();
        for (int n = 0; n < width; n += W<T>) store<T>(turned_ + n, load<T>(turned_ + n) * scale);
        query += std::ptrdiff_t(one.first_query) * stride + head * c;
        value += std::ptrdiff_t(one.first) * stride + head * c;
        mixed += std::ptrdiff_t(one.first_query) * stride + head * c;
        const Strips strips(one.queries);
        for (int n = 0; n < strips.count; n++) {
            const Strip strip{strips.first(n), strips.height_of(n)};
            const int end = visible(one, strip.first + strip.height - 1);
            T *own = weights + std::ptrdiff_t(strip.first) * row;
            // Logits that nobody needs later lie where they stay in the first-level cache.
            T *scaled = scorer.reads_logits ? logits + std::ptrdiff_t(strip.first) * row : gradient_;
            multiply_strip<T, Side::rows>(strip.height, scaled, row, query + std::ptrdiff_t(strip.first) * stride, stride,
                                          turned_, row, PANEL<T>, c, padded(end, W<T>));
            int seen[TILE_ROWS];
            for (int i = 0; i < strip.height; i++) {
                seen[i] = visible(one, strip.first + i);
                T *line = scaled + std::ptrdiff_t(i) * row;
                if (placing) place(line, one.positions[strip.first + i], seen[i]);
                if (slope == T(0)) continue;
                for (int j = 0; j < seen[i]; j++) line[j] -= slope * T(one.positions[strip.first + i] - j);
            }
            scorer.weigh(scaled, own, kept + std::ptrdiff_t(strip.first) * scorer.kept, row, seen, strip.height,
                         sizes.length, row);
            const T *by = dropout.on ? dropped(one, head, weights, strip) : own;
            multiply_strip<T, Side::rows>(strip.height, mixed + std::ptrdiff_t(strip.first) * stride, stride, by, row,
                                          value, stride, PANEL<T>, end, padded(c, W<T>));
        }
    }

    // The gradients by queries, keys and values, from that by `mixed`.
    void apply_gradient(const Sequence &one, int head, Scorer<T> &scorer, const T *query, const T *key, const T *value,
                        const T *weights, const T *kept, const T *logits, const T *mixed_gradient, T *query_gradient,
                        T *key_gradient, T *value_gradient) {
        const int c = sizes.channels, stride = sizes.stride, row = sizes.row;
        const T scale = sizes.template scale<T>();
        turn(one, head, value);
        const std::ptrdiff_t queries = std::ptrdiff_t(one.first_query) * stride + head * c;
        const std::ptrdiff_t keys = std::ptrdiff_t(one.first) * stride + head * c;
        const T *by = weights;
        const Strips strips(one.queries);
        for (int n = 0; n < strips.count; n++) {
            const Strip strip{strips.first(n), strips.height_of(n)};
            const int end = visible(one, strip.first + strip.height - 1);
            const std::ptrdiff_t at = queries + std::ptrdiff_t(strip.first) * stride;
            T *own = gradient_ + std::ptrdiff_t(strip.first) * row;
            multiply_strip<T, Side::rows>(strip.height, own, row, mixed_gradient + at, stride, turned_, row, PANEL<T>, c,
                                          padded(end, W<T>));
            if (dropout.on) by = dropped(one, head, weights, strip) - std::ptrdiff_t(strip.first) * row;
            int seen[TILE_ROWS];
            for (int i = 0; i < strip.height; i++) {
                seen[i] = visible(one, strip.first + i);
                if (dropout.on)
                    dropout.drop(own + std::ptrdiff_t(i) * row, bytes_ + std::ptrdiff_t(strip.first + i) * sizes.length,
                                 seen[i]);
            }
            const std::ptrdiff_t from = std::ptrdiff_t(strip.first) * row;
            scorer.weigh_gradient(scorer.reads_logits ? logits + from : nullptr, weights + from,
                                  kept + std::ptrdiff_t(strip.first) * scorer.kept, own, row, seen, strip.height,
                                  sizes.length, row);
            for (int i = 0; i < strip.height; i++) {
                T *line = own + std::ptrdiff_t(i) * row;
                if (placing) place(line, one.positions[strip.first + i], seen[i]);
                for (int j = 0; j < seen[i]; j += W<T>) store<T>(line + j, load<T>(line + j) * scale);
            }
            multiply_strip<T, Side::rows>(strip.height, query_gradient + at, stride, own, row, key + keys, stride,
                                          PANEL<T>, end, padded(c, W<T>));
        }
        const Strips key_strips(one.keys);
        for (int n = 0, first = 0; n < key_strips.count; n++) {
            const Strip strip{key_strips.first(n), key_strips.height_of(n)};
            if (sizes.causal) // earlier queries do not see these keys
                while (first < one.queries && one.positions[first] < strip.first) first++;
            if (first == one.queries) { // no query sees them
                for (int i = strip.first; i < one.keys; i++)
                    for (T *rows : {key_gradient, value_gradient})
                        std::memset(rows + keys + std::ptrdiff_t(i) * stride, 0, sizeof(T) * c);
                break;
            }
            const std::ptrdiff_t at = keys + std::ptrdiff_t(strip.first) * stride, from = std::ptrdiff_t(first) * row;
            const std::ptrdiff_t asking = queries + std::ptrdiff_t(first) * stride;
            multiply_strip<T, Side::columns>(strip.height, key_gradient + at, stride, gradient_ + from + strip.first, row,
                                             query + asking, stride, PANEL<T>, one.queries - first, padded(c, W<T>));
            multiply_strip<T, Side::columns>(strip.height, value_gradient + at, stride, by + from + strip.first, row,
                                             mixed_gradient + asking, stride, PANEL<T>, one.queries - first,
                                             padded(c, W<T>));
        }
    }

  private:
    T *turned_ = nullptr;   // [channels][row] keys or values of the sequence, transposed
    T *gradient_ = nullptr; // [queries][row]
    T *dropped_ = nullptr;  // [queries][row] weights after dropout
    uint8_t *bytes_ = nullptr;

    int visible(const Sequence &one, int query) const { return sizes.causal ? one.positions[query] + 1 : one.seen; }

    void place(T *__restrict line, int query, int count) const {
        const T *__restrict factors = placing + std::ptrdiff_t(query) * sizes.length;
        for (int j = 0; j < count; j++) line[j] *= factors[j];
    }
    void turn(const Sequence &one, int head, const T *rows) {
        transpose(turned_, sizes.row, rows + std::ptrdiff_t(one.first) * sizes.stride + head * sizes.channels,
                  sizes.stride, one.keys, sizes.channels);
    }

    // The strip's rows of weights after dropout.
    const T *dropped(const Sequence &one, int head, const T *weights, const Strip &strip) {
        const std::size_t length = sizes.length;
        for (int i = strip.first; i < strip.first + strip.height; i++) {
            uint8_t *bytes = bytes_ + i * length;
            const std::size_t line = (std::size_t(one.number) * sizes.heads + head) * length + one.positions[i];
            draw_row(bytes, line * length, visible(one, i));
            T *to = dropped_ + std::ptrdiff_t(i) * sizes.row;
            std::memcpy(to, weights + std::ptrdiff_t(i) * sizes.row, sizeof(T) * sizes.row);
            dropout.drop(to, bytes, visible(one, i));
        }
        return dropped_ + std::ptrdiff_t(strip.first) * sizes.row;
    }
    void draw_row(uint8_t *to, std::size_t first, int count) const {
        for (int j = 0; j < count; j++) { // rows are short and start anywhere in a word
            const std::size_t byte = first + j;
            to[j] = uint8_t(splitmix_word(dropout.state, byte / 8) >> (8 * (byte % 8)));
        }
    }
};

} // namespace registers
