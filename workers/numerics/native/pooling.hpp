// Loss and gradient of attention pooling (workers/networks/models/attention_pooling.py), or its outputs alone, one lane after
// another.
//
// What belongs to a set (its query, the head, the answer) is computed for all sets of a lane at once; its items in chunks
// of rows, as they are many. Only items that are given are rows. All sums run in an order that depends on the lane's own
// data alone.
//
// Legend: L lanes, N sets, n items, f features of an item, q of a query, d width, c classes, R rows: the given items.

#pragma once
#include <algorithm>
#include <vector>

#include "activations.hpp"
#include "driver.hpp"
#include "losses.hpp"
#include "memory.hpp"
#include "parts.hpp"

// As `_Plan` of workers/networks/gradients/pooling.py, in the same order.
struct PoolingPlan {
    int64_t lanes, batch, items, width, features, asked, classes, total;
    const int64_t *offsets;  // [2 POOLING_MAPS] where the maps' matrices and biases start
    const int64_t *scorer;   // [SCORER_FIELDS]
    const int64_t *learned;  // where what the scorer and its features learn lies
    const int64_t *phi;      // [ACTIVATION_FIELDS] of its features; all 0: it reads logits
    const void *placing;     // [n] factors of products of features; null: none
    const int64_t *activation; // [ACTIVATION_FIELDS]
    const void *parameters;  // [L][P]
    void *gradient;          // [L][P]
    void *loss_values;       // [L]
    const void *inputs;      // [L][N][n][f]
    const void *queries;     // [L][N][q]
    const int64_t *lengths;  // [L][N] items that are given
    const int64_t *targets;  // [L][N]
    const void *weights;     // [L][N] of a set's loss
    const void *knobs;       // [L][knobs of the scorer and its features]
    void *outputs_values;    // [L][N][c]; null: the gradient is computed
};
// The head's keys and values are two maps side by side in one matrix.
enum PoolingMap { ITEM_IN, ITEM_OUT, QUERY_IN, QUERY_OUT, ASK, KEY, VALUE, HEAD_OUT, CLASS_IN, CLASS_OUT, POOLING_MAPS };

namespace layered {

template <typename T> struct Map {
    Matrix<T> matrix;
    Vector<T> bias;
    int64_t offset = 0;
    int step = 0; // from one row of the matrix to the next

    void lay_out(Memory &memory, int64_t offset_, int64_t bias_offset, int inputs, int outputs, int step_) {
        offset = offset_, step = step_;
        matrix.lay_out(memory, inputs, outputs);
        bias.lay_out(memory, bias_offset, outputs);
    }
    void read(const T *parameters) { matrix.read(parameters + offset, nullptr, step), bias.read(parameters); }
    void write(T *gradient) const { matrix.write(gradient + offset, step), bias.write(gradient); }
    void apply(T *out, int out_stride, const T *in, int in_stride, int rows) const {
        matrix.apply(out, out_stride, in, in_stride, rows, bias.values);
    }
    void learn(const T *in, int in_stride, const T *out_g, int stride, int rows) {
        matrix.learn(in, in_stride, out_g, stride, rows);
        bias.learn(out_g, stride, rows);
    }
};

template <typename T> class Pooling {
  public:
    Pooling(const PoolingPlan &plan, Memory &memory)
        : plan_(plan), N(plan.batch), n(plan.items), d(plan.width), D(row_stride<T>(d)), C(row_stride<T>(plan.classes)) {
        for (int number = 0; number < POOLING_MAPS; number++) {
            const int inputs = number == ITEM_IN ? plan.features : number == QUERY_IN ? plan.asked : d;
            const int outputs = number == CLASS_OUT ? plan.classes : d;
            maps_[number].lay_out(memory, plan.offsets[2 * number], plan.offsets[2 * number + 1], inputs, outputs,
                                  number == KEY || number == VALUE ? 2 * d : outputs);
        }
        const std::size_t rows = std::size_t(N) * n;
        for (T **all : {&first_, &first_slopes_, &items_, &slopes_}) *all = memory.take<T>(rows * D);
        inputs_ = memory.take<T>(rows * plan.features);
        weights_ = memory.take<T>(rows + std::size_t(N) * W<T>), logits_ = memory.take<T>(rows + std::size_t(N) * W<T>);
        for (T **sets : {&asked_, &asked_slopes_, &query_, &scaled_, &key_, &pooled_, &mixed_, &head_, &hidden_,
                         &hidden_slopes_, &set_g_, &pooled_g_, &key_g_, &spare_g_})
            *sets = memory.take<T>(std::size_t(N) * D);
        outputs_ = memory.take<T>(std::size_t(N) * C);
        row_g_ = memory.take<T>(std::size_t(ROWS) * D), score_g_ = memory.take<T>(padded(n, W<T>));
        scorer_.take(plan.scorer, plan.learned), activation_.take(plan.activation, nullptr);
        phi_.take(plan.phi, plan.learned + scorer_.learned);
        for (T **all : {&keys_, &key_slopes_, &key_points_}) *all = memory.take<T>(phi_.on() ? rows * D : 0);
        for (T **sets : {&scaled_slopes_, &scaled_points_}) *sets = memory.take<T>(phi_.on() ? std::size_t(N) * D : 0);
        kept_ = memory.take<T>(std::size_t(N) * scorer_.kept);
        starts_.resize(N + 1), totals_.resize(N);
    }

    void gradient(int64_t lane) {
        forward(lane);
        targets_ = plan_.targets + lane * N, set_weights_ = static_cast<const T *>(plan_.weights) + lane * N;
        const double loss = score_answers();
        pool_gradient();
        for (int r = 0; r < starts_[N]; r += ROWS) pass_items_gradient(r, std::min(ROWS, starts_[N] - r));
        pass_queries_gradient();
        T *to = static_cast<T *>(plan_.gradient) + lane * plan_.total;
        std::memset(to, 0, sizeof(T) * plan_.total);
        for (const Map<T> &map : maps_) map.write(to);
        scorer_.write(to), phi_.write(to);
        static_cast<T *>(plan_.loss_values)[lane] = T(loss);
    }
    void evaluate(int64_t lane) {
        forward(lane);
        T *to = static_cast<T *>(plan_.outputs_values) + lane * N * plan_.classes;
        for (int set = 0; set < N; set++)
            std::memcpy(to + set * plan_.classes, outputs_ + std::ptrdiff_t(set) * C, sizeof(T) * plan_.classes);
    }

  private:
    static constexpr int ROWS = 112; // of a chunk of items, as BLOCK_ROWS of layered_lane.hpp

    const PoolingPlan &plan_;
    const int N, n, d, D, C;
    Map<T> maps_[POOLING_MAPS];
    Scorer<T> scorer_;
    const T *parameters_;
    const T *set_weights_ = nullptr;
    const int64_t *targets_ = nullptr;
    std::vector<int> starts_; // [N + 1] a set's first row
    std::vector<T> totals_;   // [N] sums of a set's weights
    std::ptrdiff_t weights_offset(int set) const { return starts_[set] + std::ptrdiff_t(set) * W<T>; } // of its weights: with room

    T *inputs_;                                  // [R][f]
    T *first_, *first_slopes_, *items_, *slopes_; // [R][D] after the first map, and after the second
    T *weights_, *logits_;                       // [R], sets apart by a register
    T *asked_, *asked_slopes_, *query_, *scaled_; // [N][D]
    T *key_;                                     // [N][D] what an item's logit is the product of the item with
    T *pooled_, *mixed_, *head_, *hidden_, *hidden_slopes_;
    T *outputs_;                                 // [N][C]
    T *set_g_, *pooled_g_, *key_g_, *spare_g_;   // [N][D]
    T *row_g_, *score_g_;
    T *kept_;                                    // [N][kept]
    Activation<T> activation_, phi_;
    T *keys_, *key_slopes_, *key_points_;        // [R][D] features of the items' keys, where the scorer reads these
    T *scaled_slopes_, *scaled_points_;          // [N][D]

    int count(int set) const { return starts_[set + 1] - starts_[set]; }
    T dot(const T *a, const T *b) const {
        V<T> total = {};
        for (int e = 0; e < d; e += W<T>) 
            total = multiply_add(load<T>(a + e), load_within<T>(b + e, e, d), total);
        return sum<T>(total);
    }
    // to += factor * from
    void add(T *to, T factor, const T *from) const {
        for (int e = 0; e < d; e += W<T>) 
            store<T>(to + e, multiply_add(all(factor), load<T>(from + e), load<T>(to + e)));
    }
    void bend(T *slopes, T *out, int rows) const {
        activation_.apply(slopes, D, out, D, rows, d);
    }

    void forward(int64_t lane) {
        open(lane);
        pass_queries();
        for (int r = 0; r < starts_[N]; r += ROWS) pass_items(r, std::min(ROWS, starts_[N] - r));
        pool();
        answer();
    }
    void open(int64_t lane) {
        parameters_ = static_cast<const T *>(plan_.parameters) + lane * plan_.total;
        for (Map<T> &map : maps_) map.read(parameters_);
        const T *knobs = static_cast<const T *>(plan_.knobs) + (scorer_.knobs + phi_.knobs) * lane;
        scorer_.read_knobs(knobs), phi_.read_knobs(knobs + scorer_.knobs);
        scorer_.read(parameters_), phi_.read(parameters_);
        const T *from = static_cast<const T *>(plan_.inputs) + lane * N * n * plan_.features;
        starts_[0] = 0;
        for (int set = 0; set < N; set++, from += n * plan_.features) {
            const int given = int(std::min<int64_t>(std::max<int64_t>(plan_.lengths[lane * N + set], 1), n));
            std::memcpy(inputs_ + starts_[set] * plan_.features, from, sizeof(T) * given * plan_.features);
            starts_[set + 1] = starts_[set] + given;
        }
        queries_ = static_cast<const T *>(plan_.queries) + lane * N * plan_.asked;
    }
    const T *queries_ = nullptr; // [N][q]

    void pass_queries() {
        maps_[QUERY_IN].apply(asked_slopes_, D, queries_, int(plan_.asked), N);
        bend(asked_slopes_, asked_, N);
        maps_[QUERY_OUT].apply(query_, D, asked_, D, N);
        maps_[ASK].apply(scaled_, D, query_, D, N);
        if (phi_.on()) {
            phi_.make_features(scaled_, scaled_slopes_, scaled_points_, D, N, d);
            return;
        }
        const T scale = T(1) / std::sqrt(T(d));
        for (int e = 0; e < N * D; e += W<T>) store<T>(scaled_ + e, load<T>(scaled_ + e) * scale);
        maps_[KEY].matrix.apply_turned(key_, D, scaled_, D, N, false);
    }
    void pass_items(int r, int rows) {
        const std::ptrdiff_t at = std::ptrdiff_t(r) * D;
        maps_[ITEM_IN].apply(first_slopes_ + at, D, inputs_ + r * plan_.features, int(plan_.features), rows);
        bend(first_slopes_ + at, first_ + at, rows);
        maps_[ITEM_OUT].apply(slopes_ + at, D, first_ + at, D, rows);
        bend(slopes_ + at, items_ + at, rows);
        if (!phi_.on()) return;
        maps_[KEY].apply(keys_ + at, D, items_ + at, D, rows);
        phi_.make_features(keys_ + at, key_slopes_ + at, key_points_ + at, D, rows, d);
    }
    void place_row(T *row, int count) const {
        const T *factors = static_cast<const T *>(plan_.placing);
        for (int i = 0; factors && i < count; i++) row[i] *= factors[i];
    }
    // The logits of a set's items, or products of features.
    void score_items(int set, T *logits) const {
        const std::ptrdiff_t at = std::ptrdiff_t(set) * D, first = std::ptrdiff_t(starts_[set]) * D;
        const T shift = phi_.on() ? T(0) : dot(scaled_ + at, maps_[KEY].bias.values);
        const T *by = (phi_.on() ? scaled_ : key_) + at, *rows = (phi_.on() ? keys_ : items_) + first;
        for (int i = 0; i < count(set); i++) logits[i] = dot(by, rows + std::ptrdiff_t(i) * D) + shift;
        place_row(logits, count(set));
    }
    void pool() {
        for (int set = 0; set < N; set++) {
            T *row = weights_ + weights_offset(set), *pooled = pooled_ + std::ptrdiff_t(set) * D;
            const T *items = items_ + std::ptrdiff_t(starts_[set]) * D;
            T *logits = logits_ + weights_offset(set);
            score_items(set, logits);
            const int seen = count(set);
            scorer_.weigh(logits, row, kept_ + std::ptrdiff_t(set) * scorer_.kept, 0, &seen, 1, n, padded(seen, W<T>));
            std::memset(pooled, 0, sizeof(T) * D);
            totals_[set] = 0;
            for (int i = 0; i < count(set); i++) add(pooled, row[i], items + i * D), totals_[set] += row[i];
        }
    }
    void answer() {
        maps_[VALUE].matrix.apply(mixed_, D, pooled_, D, N, nullptr);
        for (int set = 0; set < N; set++) add(mixed_ + std::ptrdiff_t(set) * D, totals_[set], maps_[VALUE].bias.values);
        maps_[HEAD_OUT].apply(head_, D, mixed_, D, N);
        maps_[CLASS_IN].apply(hidden_slopes_, D, head_, D, N);
        bend(hidden_slopes_, hidden_, N);
        maps_[CLASS_OUT].apply(outputs_, C, hidden_, D, N);
    }
    // The loss; `set_g_` becomes the gradient by `mixed_`.
    double score_answers() {
        double loss = 0;
        for (int set = 0; set < N; set++)
            loss += cross_entropy(outputs_ + std::ptrdiff_t(set) * C, int(plan_.classes), targets_[set], set_weights_[set]);
        maps_[CLASS_OUT].learn(hidden_, D, outputs_, C, N);
        maps_[CLASS_OUT].matrix.apply_turned(spare_g_, D, outputs_, C, N, false);
        activate_gradient(hidden_slopes_, D, spare_g_, D, N, d, 1);
        maps_[CLASS_IN].learn(head_, D, hidden_slopes_, D, N);
        maps_[CLASS_IN].matrix.apply_turned(spare_g_, D, hidden_slopes_, D, N, false);
        maps_[HEAD_OUT].learn(mixed_, D, spare_g_, D, N);
        maps_[HEAD_OUT].matrix.apply_turned(set_g_, D, spare_g_, D, N, false);
        return loss;
    }
    // From `set_g_`: the gradients by items in the place of items, and `key_g_`.
    void pool_gradient() {
        Vector<T> &key_bias = maps_[KEY].bias, &value_bias = maps_[VALUE].bias;
        maps_[VALUE].matrix.learn(pooled_, D, set_g_, D, N);
        maps_[VALUE].matrix.apply_turned(pooled_g_, D, set_g_, D, N, false);
        std::memset(spare_g_, 0, sizeof(T) * N * D); // by `scaled_`
        for (int set = 0; set < N; set++) {
            const std::ptrdiff_t at = std::ptrdiff_t(set) * D;
            const T *row = weights_ + weights_offset(set), by_total = dot(set_g_ + at, value_bias.values);
            T *items = items_ + std::ptrdiff_t(starts_[set]) * D, *key_g = key_g_ + at;
            add(value_bias.gradient, totals_[set], set_g_ + at);
            for (int i = 0; i < count(set); i++) score_g_[i] = dot(pooled_g_ + at, items + i * D) + by_total;
            const int seen = count(set);
            scorer_.weigh_gradient(logits_ + weights_offset(set), row, kept_ + std::ptrdiff_t(set) * scorer_.kept, score_g_, 0, &seen,
                                   1, n, padded(seen, W<T>));
            if (phi_.on()) {
                place_row(score_g_, seen);
                pool_keys_gradient(set, spare_g_ + at);
                continue;
            }
            std::memset(key_g, 0, sizeof(T) * D);
            T shift = 0;
            for (int i = 0; i < count(set); i++) {
                T *item = items + i * D;
                shift += score_g_[i];
                for (int e = 0; e < d; e += W<T>) {
                    const V<T> value = load<T>(item + e);
                    store<T>(key_g + e, multiply_add(all(score_g_[i]), value, load<T>(key_g + e)));
                    store<T>(item + e, multiply_add(all(row[i]), load<T>(pooled_g_ + at + e),
                                                    V<T>(score_g_[i] * load<T>(key_ + at + e))));
                }
            }
            add(key_bias.gradient, shift, scaled_ + at);
            add(spare_g_ + at, shift, key_bias.values);
        }
    }
    // The same of one set, where the scorer reads features; `asked_g` is the gradient by those of its query.
    void pool_keys_gradient(int set, T *asked_g) {
        const std::ptrdiff_t at = std::ptrdiff_t(set) * D, first = std::ptrdiff_t(starts_[set]) * D;
        const T *row = weights_ + weights_offset(set);
        T *items = items_ + first, *keys = keys_ + first;
        for (int i = 0; i < count(set); i++) {
            T *key = keys + std::ptrdiff_t(i) * D;
            add(asked_g, score_g_[i], key);
            for (int e = 0; e < d; e += W<T>) store<T>(key + e, score_g_[i] * load<T>(scaled_ + at + e));
        }
        phi_.make_features_gradient(keys, key_slopes_ + first, key_points_ + first, D, count(set), d);
        maps_[KEY].learn(items, D, keys, D, count(set));
        for (int i = 0; i < count(set); i++)
            for (int e = 0; e < d; e += W<T>)
                store<T>(items + std::ptrdiff_t(i) * D + e, row[i] * load<T>(pooled_g_ + at + e));
        maps_[KEY].matrix.apply_turned(items, D, keys, D, count(set), true);
    }
    void pass_items_gradient(int r, int rows) {
        const std::ptrdiff_t at = std::ptrdiff_t(r) * D;
        activate_gradient(slopes_ + at, D, items_ + at, D, rows, d, 1);
        maps_[ITEM_OUT].learn(first_ + at, D, slopes_ + at, D, rows);
        maps_[ITEM_OUT].matrix.apply_turned(row_g_, D, slopes_ + at, D, rows, false);
        activate_gradient(first_slopes_ + at, D, row_g_, D, rows, d, 1);
        maps_[ITEM_IN].learn(inputs_ + r * plan_.features, int(plan_.features), first_slopes_ + at, D, rows);
    }
    void pass_queries_gradient() {
        if (phi_.on()) {
            phi_.make_features_gradient(spare_g_, scaled_slopes_, scaled_points_, D, N, d);
            std::swap(set_g_, spare_g_);
        } else {
            maps_[KEY].matrix.learn(key_g_, D, scaled_, D, N);
            maps_[KEY].matrix.apply(set_g_, D, key_g_, D, N, nullptr);
            const T scale = T(1) / std::sqrt(T(d));
            for (int e = 0; e < N * D; e += W<T>)
                store<T>(set_g_ + e, (load<T>(set_g_ + e) + load<T>(spare_g_ + e)) * scale);
        }
        maps_[ASK].learn(query_, D, set_g_, D, N);
        maps_[ASK].matrix.apply_turned(spare_g_, D, set_g_, D, N, false);
        maps_[QUERY_OUT].learn(asked_, D, spare_g_, D, N);
        maps_[QUERY_OUT].matrix.apply_turned(set_g_, D, spare_g_, D, N, false);
        activate_gradient(asked_slopes_, D, set_g_, D, N, d, 1);
        maps_[QUERY_IN].learn(queries_, int(plan_.asked), asked_slopes_, D, N);
    }
};

template <typename T> int pool_all_lanes(const PoolingPlan &plan) {
    Memory memory;
    return each_lane(plan, [&] {
        Memory counted;
        const Pooling<T> sketch(plan, counted);
        memory.begin(counted.used(), true);
        return Pooling<T>(plan, memory);
    });
}

} // namespace layered
