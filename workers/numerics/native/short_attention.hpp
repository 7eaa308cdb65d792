// Attention over few positions, and its gradient, of as many heads of sequences at once as a register has numbers.
//
// A row of three weights fills a fifth of a register, and a product of three rows by three columns hardly a tile. Here
// what is a scalar product over channels, and the scorer's rows, is made for W heads of sequences side by side, after
// queries and keys were turned; what is a sum of rows is made head by head. Whether it is, a lane's own sequences decide.
#pragma once
#include <algorithm>

#include "attention.hpp"

namespace registers {

constexpr int FEW_POSITIONS = TILE_ROWS < 8 ? TILE_ROWS : 8; // one strip of rows

template <typename T> class ShortAttention {
  public:
    bool on = false; // for this lane and layer
    const T *placing = nullptr; // as of Attention

    // Numbers of a row of weights that leave room for those of heads side by side.
    static int row(int length) { return padded(length <= FEW_POSITIONS ? 2 * length : length, W<T>); }

    void lay_out(Memory &memory, const Heads &heads) {
        sizes_ = heads;
        if (sizes_.length > FEW_POSITIONS) return;
        const std::size_t positions = sizes_.length, channels = padded(sizes_.channels, W<T>);
        for (T **turned : {&asked_, &seen_}) *turned = memory.take<T>(positions * channels * W<T>);
        gradient_ = memory.take<T>(positions * positions * W<T>);
    }

    // Whether heads with these scorers may lie side by side.
    bool can_take(const std::vector<Scorer<T>> &scorers) const {
        return sizes_.length <= FEW_POSITIONS &&
               std::all_of(scorers.begin(), scorers.end(), [&](const Scorer<T> &own) { return own.is_like(scorers[0]); });
    }

    // How many sequences from `first` on are of one shape; 0 where they would leave most of a register empty.
    int alike(const Sequence *first, const Sequence *end) const {
        if (!on) return 0;
        const Sequence *next = first + 1;
        while (next != end && next->keys == first->keys && next->queries == first->queries && next->seen == first->seen &&
               std::equal(first->positions, first->positions + first->queries, next->positions))
            next++;
        const int count = int(next - first);
        return 2 * count * sizes_.heads >= W<T> ? count : 0;
    }

    // As Attention::apply, for all heads of `count` sequences. `weights`, and `logits` if the scorer reads them [groups of W
    // heads][queries][end][W], `kept` [groups][queries][scorer.kept][W].
    void apply(const Sequence *first, int count, const Scorer<T> *scorers, const T *query, const T *key, const T *value,
               T *weights, T *kept, T *logits, T *mixed) {
        const int queries = first->queries, end = last_seen(*first), step = end * W<T>;
        const T scale = sizes_.template scale<T>();
        see(*first);
        for (int pair = 0; pair < count * sizes_.heads; pair += W<T>, weights += queries * step) {
            const Group group(*this, first, count, pair);
            turn_rows(asked_, query, group.queries, queries, T(1));
            turn_rows(seen_, key, group.keys, end, scale);
            T *scaled = scorers->reads_logits ? logits : gradient_;
            for (int i = 0; i < queries; i++) multiply_channels(scaled + i * step, i, end);
            if (placing) place(scaled, *first, end);
            scorers->weigh_beside(gather(scorers, group), scaled, weights, kept, step, visible_.data(), queries,
                                  sizes_.length, end);
            logits += scorers->reads_logits ? queries * step : 0, kept += queries * scorers->kept * W<T>;
            for (int n = 0; n < group.count; n++)
                for (int i = 0; i < queries; i++)
                    add_rows(mixed + group.queries[n] + i * sizes_.stride, weights + i * end * W<T> + n, W<T>,
                             value + group.keys[n], end);
        }
    }

    // As Attention::apply_gradient.
    void apply_gradient(const Sequence *first, int count, Scorer<T> *scorers, const T *query, const T *key,
                        const T *value, const T *weights, const T *kept, const T *logits, const T *mixed_gradient,
                        T *query_gradient, T *key_gradient, T *value_gradient) {
        const int queries = first->queries, end = last_seen(*first), step = end * W<T>;
        const T scale = sizes_.template scale<T>();
        see(*first);
        for (int pair = 0; pair < count * sizes_.heads; pair += W<T>, weights += queries * step) {
            const Group group(*this, first, count, pair);
            turn_rows(asked_, mixed_gradient, group.queries, queries, T(1));
            turn_rows(seen_, value, group.keys, end, T(1));
            for (int i = 0; i < queries; i++) multiply_channels(gradient_ + i * step, i, end);
            scorers->weigh_gradient_beside(gather(scorers, group), logits, weights, kept, gradient_, step, visible_.data(),
                                           queries, sizes_.length, end);
            for (int n = 0; n < group.count; n++) scorers[group.heads[n]].add_place(*scorers, n);
            if (placing) place(gradient_, *first, end);
            for (int n = 0; n < queries * step; n += W<T>) store<T>(gradient_ + n, load<T>(gradient_ + n) * scale);
            logits += scorers->reads_logits ? queries * step : 0, kept += queries * scorers->kept * W<T>;
            for (int n = 0; n < group.count; n++) {
                const T *asking = query + group.queries[n], *mixing = mixed_gradient + group.queries[n];
                for (int i = 0; i < queries; i++)
                    add_rows(query_gradient + group.queries[n] + i * sizes_.stride, gradient_ + i * step + n, W<T>,
                             key + group.keys[n], end);
                for (int j = 0; j < first->keys; j++) {
                    const std::ptrdiff_t at = group.keys[n] + j * std::ptrdiff_t(sizes_.stride);
                    const int askers = j < end ? queries : 0; // the others are seen by none
                    add_rows(key_gradient + at, gradient_ + j * W<T> + n, step, asking, askers);
                    add_rows(value_gradient + at, weights + j * W<T> + n, step, mixing, askers);
                }
            }
        }
    }

  private:
    Heads sizes_;
    T *asked_ = nullptr, *seen_ = nullptr; // [positions][channels][W] of queries, and of keys or values
    T *gradient_ = nullptr;                // [queries][end][W] by logits, and logits that nobody needs later
    std::vector<int> visible_;             // [queries] how many keys each sees
    std::vector<V<T>> given_;              // numbers of the scorers of a group

    // Up to W heads of sequences that lie one after another: where their first query and key are. What is left of a
    // register repeats the first.
    struct Group {
        int count;
        std::ptrdiff_t queries[W<T>], keys[W<T>];
        int heads[W<T>];
        Group(const ShortAttention &own, const Sequence *first, int sequences, int pair)
            : count(std::min<int>(W<T>, sequences * own.sizes_.heads - pair)) {
            for (int n = 0; n < W<T>; n++) {
                const int number = pair + (n < count ? n : 0);
                const Sequence &one = first[number / own.sizes_.heads];
                heads[n] = number % own.sizes_.heads;
                queries[n] = std::ptrdiff_t(one.first_query) * own.sizes_.stride + heads[n] * own.sizes_.channels;
                keys[n] = std::ptrdiff_t(one.first) * own.sizes_.stride + heads[n] * own.sizes_.channels;
            }
        }
    };

    int visible(const Sequence &one, int query) const { return sizes_.causal ? one.positions[query] + 1 : one.seen; }
    int last_seen(const Sequence &one) const { return one.queries ? visible(one, one.queries - 1) : 0; }

    void turn_rows(T *to, const T *from, const std::ptrdiff_t *offsets, int rows, T factor) const {
        const int channels = padded(sizes_.channels, W<T>);
        for (int i = 0; i < rows; i++, from += sizes_.stride)
            for (int c = 0; c < channels; c += W<T>, to += W<T> * W<T>) {
                V<T> block[W<T>];
#pragma GCC unroll 16
                for (int n = 0; n < W<T>; n++) block[n] = load<T>(from + offsets[n] + c);
                turn<T>(block);
#pragma GCC unroll 16
                for (int n = 0; n < W<T>; n++) store<T>(to + n * W<T>, block[n] * factor);
            }
    }

    void see(const Sequence &one) {
        visible_.resize(one.queries);
        for (int i = 0; i < one.queries; i++) visible_[i] = visible(one, i);
    }
    // The numbers of a group's scorers; null if all heads' are one scorer's.
    const T *gather(const Scorer<T> *scorers, const Group &group) {
        if (sizes_.heads == 1) return nullptr;
        given_.resize(scorers->learned + scorers->knobs + 1);
        for (int n = 0; n < W<T>; n++) scorers[group.heads[n]].gather(given_.data(), n);
        return reinterpret_cast<const T *>(given_.data());
    }

    void place(T *rows, const Sequence &one, int end) const {
        for (int i = 0; i < one.queries; i++)
            for (int j = 0; j < end; j++, rows += W<T>)
                store<T>(rows, load<T>(rows) * placing[std::ptrdiff_t(one.positions[i]) * sizes_.length + j]);
    }
    // Register j of the line: the sum over channels of `asked_` at i times `seen_` at j.
    void multiply_channels(T *line, int i, int end) const {
        const int step = padded(sizes_.channels, W<T>) * W<T>;
        const T *asked = asked_ + i * step;
        for (int j = 0; j < end; j++) {
            const T *seen = seen_ + j * step;
            V<T> sum = {};
            for (int c = 0; c < sizes_.channels; c++)
                sum = multiply_add(load<T>(asked + c * W<T>), load<T>(seen + c * W<T>), sum);
            store<T>(line + j * W<T>, sum);
        }
    }

    // A row of channels: the sum of `count` rows of `from`, each times a number; `step` from one number to the next.
    void add_rows(T *to, const T *numbers, std::ptrdiff_t step, const T *from, int count) const {
        for (int c = 0; c < sizes_.channels; c += W<T>) {
            V<T> sum = {};
            for (int j = 0; j < count; j++)
                sum = multiply_add(all(numbers[j * step]), load<T>(from + j * std::ptrdiff_t(sizes_.stride) + c), sum);
            store<T>(to + c, sum);
        }
    }
};

} // namespace registers
