// Loss and gradient of the layered transformers (workers/networks/models/_layers.py), one lane after another, each in blocks of
// whole sequences that stay in the core's cache from the embedding to the last weight's gradient.
//
// A lane is read once a step: its matrices become panels for the forward and for the backward products (products.hpp),
// vectors are padded to whole registers. Then block by block: forward, keeping what the gradient needs, loss, backward,
// where weights' gradients are added up. At the end they are written to the lane's flat vector. All sums run in an order
// that depends on the lane's own data alone: bits do not depend on the number of lanes, nor on their neighbours.
//
// What is left out: positions after the last one that carries loss, where no position sees later ones; and in the last
// layer queries, MLP and outputs of all positions without loss, unless a convolution in that layer looks back at them.
//
// Legend: L lanes, N sequences, s positions, d width, h heads, c channels of a head, f hidden channels of the MLP,
// v outputs. Suffix _g: gradient. R rows of a block are its sequences' positions, Q of them pass a layer's end.

#pragma once
#include <algorithm>
#include <exception>
#include <vector>

#include "activations.hpp"
#include "attention.hpp"
#include "losses.hpp"
#include "memory.hpp"
#include "norms.hpp"


// What is computed, and from what: as `_Plan` of workers/networks/gradients/layered.py, in the same order.
struct Plan {
    int64_t lanes, batch, length, width, heads, depth, hidden, gates, outputs, features, total;
    int64_t causal, pre_norm, centred, query_key_norm, canon, activation, knots, knots_learned, tied, capped, loss;
    int64_t dropout;         // bits: embedding, attention, mlp, weights
    const int64_t *layers;   // [depth][LAYER_PLACES] where a layer's parameters start; -1: there are none
    const int64_t *ends;     // [END_PLACES] the same of what stands before and after the layers
    const int64_t *scorers;  // [h][4] kind, by count, power, all keys
    const int64_t *learned;  // [depth][h][2] where what a head's scorer learns lies; -1: nothing
    const void *parameters;  // [L][P]
    void *gradient;          // [L][P]
    void *loss_values;       // [L]
    const void *inputs;      // [L][N][s] int64, or [L][N][s][features]
    const void *targets;     // [L][N][s] int64, or numbers
    const void *weights;     // [L][N][s] of a position's loss
    const int64_t *lengths;  // [L][N] positions that are given; null: all
    const void *placed;      // [L][s][d] added to the stream; null: nothing
    const void *cosines;     // [L][s][c / 2] of the angles that queries and keys are turned by; null: they are not
    const void *sines;
    const void *slopes;      // [h] of ALiBi; null: none
    const void *knobs;       // [L][KNOBS + 3 h]
    const int64_t *states;   // [L][sites] of the dropout sites' streams, those that are on and those that are not
    const uint8_t *thresholds;
};
enum LayerPlace {
    ATTENTION_NORM, ATTENTION_NORM_BIAS, CANON_A, QUERY_KEY_VALUE, QUERY_KEY_VALUE_BIAS, CANON_B, OUTPUT, OUTPUT_BIAS,
    MLP_NORM, MLP_NORM_BIAS, CANON_C, MLP_IN, MLP_IN_BIAS, CANON_D, KNOTS, MLP_OUT, MLP_OUT_BIAS, LAYER_PLACES
};
enum EndPlace { READING, READING_BIAS, POSITIONS, NORM, NORM_BIAS, WRITING, WRITING_BIAS, END_PLACES };
enum Knob { EPSILON, CAP, EMBEDDING_SCALE, ATTENTION_SCALE, MLP_SCALE, WEIGHTS_SCALE, SPLINE_LOW, SPLINE_SCALE, KNOBS };
enum Canon { AT_A = 1, AT_B = 2, AT_C = 4, AT_D = 8 };
enum Thinned { EMBEDDING = 1, ATTENTION = 2, MLP = 4, WEIGHTS = 8 };

namespace layered {

using namespace registers;

// Rows of a block: enough to use a weight that was fetched a hundred times, and few enough for the activations of small
// models to stay in the second-level cache. Between 56 and 220 rows time hardly depends on it.
constexpr int BLOCK_ROWS = 112;
constexpr std::size_t LOGITS_BYTES = 128 * 1024;
constexpr int KERNEL = 4; // positions that a Canon layer's convolution reads

// A learned vector of one or two parts, each padded to whole registers, and its gradient.
template <typename T> struct Vector {
    T *values = nullptr, *gradient = nullptr; // null: the model has none
    int part = 0, parts = 1, step = 1;
    int64_t place = -1;

    int count() const { return parts * padded(part, W<T>); }
    void lay_out(Memory &memory, int64_t place_, int part_, int parts_ = 1, int step_ = 1) {
        place = place_, part = part_, parts = parts_, step = step_;
        if (place < 0) return;
        values = memory.take<T>(count());
        gradient = memory.take<T>(count());
    }
    void read(const T *parameters) {
        for (int n = 0; values && n < parts; n++)
            for (int e = 0; e < part; e++)
                values[n * padded(part, W<T>) + e] = parameters[place + (n * part + e) * step];
        if (values) std::memset(gradient, 0, sizeof(T) * count());
    }
    void write(T *to) const {
        for (int n = 0; values && n < parts; n++)
            for (int e = 0; e < part; e++) to[place + (n * part + e) * step] += gradient[n * padded(part, W<T>) + e];
    }
    void learn(const T *rows, int stride, int count_) {
        if (!values) return;
        for (int r = 0; r < count_; r++, rows += stride)
            for (int c = 0; c < count(); c += W<T>) store<T>(gradient + c, load<T>(gradient + c) + load<T>(rows + c));
    }
};

// A causal convolution of each channel by itself, added to its input. tap[KERNEL - 1] meets the position itself.
template <typename T> struct Convolution {
    Vector<T> taps[KERNEL];

    bool on() const { return taps[0].values; }
    void lay_out(Memory &memory, int64_t place, int part, int parts = 1) {
        for (int n = 0; n < KERNEL; n++) taps[n].lay_out(memory, place < 0 ? -1 : place + n, part, parts, KERNEL);
    }
    void read(const T *parameters) { for (auto &tap : taps) tap.read(parameters); }
    void write(T *to) const { for (auto &tap : taps) tap.write(to); }

    void apply(T *out, const T *in, int stride, const std::vector<Sequence> &sequences) const {
        for (const Sequence &one : sequences)
            for (int i = 0; i < one.keys; i++)
                for (int c = 0; c < taps[0].count(); c += W<T>) {
                    const T *from = in + std::ptrdiff_t(one.first + i) * stride + c;
                    V<T> value = load<T>(from);
                    for (int n = std::max(0, KERNEL - 1 - i); n < KERNEL; n++)
                        value += load<T>(from + (n - KERNEL + 1) * std::ptrdiff_t(stride)) * load<T>(taps[n].values + c);
                    store<T>(out + std::ptrdiff_t(one.first + i) * stride + c, value);
                }
    }
    // The gradient by `in` at `in_g`, from that by `out`.
    void apply_gradient(T *in_g, const T *out_g, const T *in, int stride, const std::vector<Sequence> &sequences) {
        for (const Sequence &one : sequences)
            for (int i = 0; i < one.keys; i++)
                for (int c = 0; c < taps[0].count(); c += W<T>) {
                    const std::ptrdiff_t at = std::ptrdiff_t(one.first + i) * stride + c;
                    V<T> value = load<T>(out_g + at);
                    for (int n = 0; n < KERNEL; n++) {
                        const int ahead = KERNEL - 1 - n; // this position is read by the one so far ahead
                        if (i + ahead < one.keys)
                            value += load<T>(out_g + at + ahead * std::ptrdiff_t(stride)) * load<T>(taps[n].values + c);
                        if (i - ahead < 0) continue;
                        T *sum = taps[n].gradient + c;
                        store<T>(sum, load<T>(sum) + load<T>(out_g + at) * load<T>(in + at - ahead * std::ptrdiff_t(stride)));
                    }
                    store<T>(in_g + at, value);
                }
    }
};

// One layer: what it has learned, and what a block's forward pass keeps of it for the backward pass.
template <typename T> struct Layer {
    Matrix<T> query, key, value, output, mlp_in, mlp_out;
    Vector<T> query_bias, key_bias, value_bias, output_bias, mlp_in_bias, mlp_out_bias;
    Vector<T> attention_gain, attention_bias, mlp_gain, mlp_bias;
    Convolution<T> canon_a, canon_query, canon_key, canon_value, canon_c, canon_d;
    Spline<T> spline;
    std::vector<Scorer<T>> scorers; // [h]
    int64_t knots = -1;

    Normed<T> attention_normed, mlp_normed;
    T *given;                                  // [R][D] what the maps to queries, keys and values read
    T *given_unmixed;                          // [R][D] before the Canon layer A
    T *asked;                                  // [Q][D] rows of `given` that have queries
    T *q, *k, *v;                              // [R][H]
    T *q_before, *k_before, *v_before;         // [R][H] before the Canon layer B: of unit length with a norm
    T *q_factor, *k_factor;                    // [R][h]
    T *weights, *logits;                       // [h][Q][row]
    T *mixed;                                  // [Q][H]
    T *middle;                                 // [Q][D] the stream between attention and MLP
    T *mlp_given, *mlp_given_unmixed;          // [Q][D]
    T *slopes, *slopes_before;                 // [Q][F] the hidden numbers, then the activation's slopes
    T *points;                                 // [Q][F] where the spline was evaluated
    T *active;                                 // [Q][F of one part]
    T *out;                                    // [Q][D]
    uint8_t *attention_bytes, *mlp_bytes;      // [R][d]
};

template <typename T> class Lane {
  public:
    Lane(const Plan &plan, Memory &memory, int most_rows)
        : plan_(plan), N(plan.batch), s(plan.length), d(plan.width), h(plan.heads), c(d / h), f(plan.hidden),
          parts(plan.gates), v(plan.outputs), most_(most_rows), D(row_stride<T>(d)),
          H(row_stride<T>((h - 1) * c + padded(c, W<T>))), F(row_stride<T>(parts * padded(f, W<T>))),
          O(row_stride<T>(v)), layers_(plan.depth) {
        lay_out(memory);
    }

    void gradient(int64_t lane) {
        open(lane);
        const T *parameters = static_cast<const T *>(plan_.parameters) + lane * plan_.total;
        std::memcpy(parameters_, parameters, sizeof(T) * plan_.total); // may be read a register past its end
        gradient_ = static_cast<T *>(plan_.gradient) + lane * plan_.total;
        std::memset(gradient_, 0, sizeof(T) * plan_.total);
        for (int l = 0; l < plan_.depth; l++) read(layers_[l], plan_.layers + l * LAYER_PLACES);
        final_gain_.read(parameters_), final_bias_.read(parameters_), writing_bias_.read(parameters_);
        const T *from = parameters_ + (plan_.tied ? plan_.ends[READING] : plan_.ends[WRITING]);
        writing_.read(from, plan_.tied ? d : v, plan_.tied);
        if (plan_.features) reading_.read(parameters_ + plan_.ends[READING], d), reading_bias_.read(parameters_);
        loss_ = 0;
        for (int next = 0; next < N;) {
            next = take_block(next);
            if (loss_rows_.empty()) continue;
            forward();
            backward();
        }
        for (int l = 0; l < plan_.depth; l++) write(layers_[l], plan_.layers + l * LAYER_PLACES);
        final_gain_.write(gradient_), final_bias_.write(gradient_), writing_bias_.write(gradient_);
        T *to = gradient_ + (plan_.tied ? plan_.ends[READING] : plan_.ends[WRITING]);
        writing_.write(to, plan_.tied ? d : v, plan_.tied);
        if (plan_.features) reading_.write(gradient_ + plan_.ends[READING], d), reading_bias_.write(gradient_);
        static_cast<T *>(plan_.loss_values)[lane] = T(loss_);
    }

  private:
    const Plan &plan_;
    const int N, s, d, h, c, f, parts, v, most_;
    const int D, H, F, O;
    std::vector<Layer<T>> layers_;
    Matrix<T> reading_, writing_;
    Vector<T> reading_bias_, writing_bias_, final_gain_, final_bias_;
    Normed<T> final_normed_;
    Attention<T> attention_;
    T *parameters_, *gradient_;
    T epsilon_ = 0, cap_ = 0;
    Site<T> embedding_site_;
    std::vector<Site<T>> attention_sites_, mlp_sites_, weight_sites_;
    double loss_ = 0;

    // Of this lane.
    const int64_t *tokens_ = nullptr, *answers_ = nullptr, *lengths_ = nullptr;
    const T *features_ = nullptr, *numbers_ = nullptr, *weights_ = nullptr, *placed_ = nullptr, *cosines_ = nullptr;
    const T *sines_ = nullptr;

    // Of a block: its rows' places in the lane and in their sequences, and the rows that carry loss.
    int rows_ = 0;
    std::vector<Sequence> sequences_, last_;    // with all rows for queries, and with those that carry loss
    std::vector<int> all_places_, last_places_; // what their `places` point into
    std::vector<int64_t> row_numbers_;          // n s + i
    std::vector<int> loss_rows_;
    bool narrow_ = false; // the last layer ends with the rows that carry loss

    T *stream_;                                            // [R][D] that the first layer reads
    T *inputs_;                                            // [R][features]
    T *ended_, *final_;                                    // [Q][D] rows that carry loss, before and after the last norm
    T *outputs_;                                           // [chunk][O]
    T *stream_g_, *next_g_, *branch_g_, *spare_g_;         // [R][D]
    T *mixed_g_, *q_g_, *k_g_, *v_g_, *head_g_;            // [R][H]
    T *active_g_, *hidden_g_;                              // [R][F]
    T *channel_;                                           // [c] one head's numbers of a row
    T *capped_;                                            // [O] tanh of a row of outputs
    uint8_t *embedding_bytes_;
    int chunk_ = 0;

    bool thins(int site) const { return plan_.dropout & site; }
    bool has(int letter) const { return plan_.canon & letter; }
    bool deviates() const { return plan_.query_key_norm || has(AT_B); }

    // -- memory ---------------------------------------------------------------------------------------------------------

    void lay_out(Memory &memory) {
        parameters_ = memory.take<T>(plan_.total);
        const std::size_t R = most_;
        for (int l = 0; l < plan_.depth; l++) lay_out(memory, layers_[l], plan_.layers + l * LAYER_PLACES, l);
        const int64_t *at = plan_.ends;
        writing_.lay_out(memory, d, v);
        writing_bias_.lay_out(memory, at[WRITING_BIAS], v);
        final_gain_.lay_out(memory, at[NORM], d);
        final_bias_.lay_out(memory, at[NORM_BIAS], d);
        if (plan_.features) {
            reading_.lay_out(memory, plan_.features, d);
            reading_bias_.lay_out(memory, at[READING_BIAS], d);
            inputs_ = memory.take<T>(R * plan_.features);
        }
        final_normed_ = {memory.take<T>(R * D), memory.take<T>(R)};
        for (T **rows : {&stream_, &ended_, &final_, &stream_g_, &next_g_, &branch_g_, &spare_g_})
            *rows = memory.take<T>(R * D);
        for (T **rows : {&mixed_g_, &q_g_, &k_g_, &v_g_, &head_g_}) *rows = memory.take<T>(R * H);
        for (T **rows : {&active_g_, &hidden_g_}) *rows = memory.take<T>(R * F);
        channel_ = memory.take<T>(padded(c, W<T>));
        embedding_bytes_ = memory.take<uint8_t>(R * d + 16);
        capped_ = memory.take<T>(O);
        chunk_ = std::max<int>(2 * TILE_ROWS, LOGITS_BYTES / (sizeof(T) * O));
        outputs_ = memory.take<T>(std::size_t(std::min(chunk_, most_)) * O);
        attention_.lay_out(memory, {h, c, H, s, padded(s, W<T>), plan_.causal != 0});
        attention_sites_.resize(plan_.depth), mlp_sites_.resize(plan_.depth), weight_sites_.resize(plan_.depth);
    }

    void lay_out(Memory &memory, Layer<T> &one, const int64_t *at, int number) {
        const std::size_t R = most_;
        for (Matrix<T> *matrix : {&one.query, &one.key, &one.value, &one.output}) matrix->lay_out(memory, d, d);
        int n = 0;
        for (Vector<T> *bias : {&one.query_bias, &one.key_bias, &one.value_bias})
            bias->lay_out(memory, at[QUERY_KEY_VALUE_BIAS] < 0 ? -1 : at[QUERY_KEY_VALUE_BIAS] + d * n++, d);
        one.output_bias.lay_out(memory, at[OUTPUT_BIAS], d);
        one.attention_gain.lay_out(memory, at[ATTENTION_NORM], d);
        one.attention_bias.lay_out(memory, at[ATTENTION_NORM_BIAS], d);
        one.canon_a.lay_out(memory, at[CANON_A], d);
        n = 0;
        for (Convolution<T> *canon : {&one.canon_query, &one.canon_key, &one.canon_value})
            canon->lay_out(memory, at[CANON_B] < 0 ? -1 : at[CANON_B] + d * KERNEL * n++, d);
        const auto rows = [&](bool there, int stride) { return there ? memory.take<T>(R * stride) : nullptr; };
        one.attention_normed = {memory.take<T>(R * D), memory.take<T>(R)};
        one.given = rows(true, D), one.given_unmixed = rows(has(AT_A), D), one.asked = rows(true, D);
        one.q = rows(true, H), one.k = rows(true, H), one.v = rows(true, H);
        one.q_before = rows(deviates(), H), one.k_before = rows(deviates(), H), one.v_before = rows(has(AT_B), H);
        one.q_factor = rows(plan_.query_key_norm, h), one.k_factor = rows(plan_.query_key_norm, h);
        one.scorers.resize(h);
        bool keeps = false;
        for (int head = 0; head < h; head++) {
            Scorer<T> &scorer = one.scorers[head];
            const int64_t *kind = plan_.scorers + 4 * head, *learned = plan_.learned + 2 * (number * h + head);
            scorer.kind = Score(kind[0]), scorer.by_count = kind[1], scorer.power = int(kind[2]);
            scorer.counts_all = kind[3], scorer.places[0] = learned[0], scorer.places[1] = learned[1];
            keeps = keeps || scorer.keeps_logits();
        }
        one.weights = rows(true, h * padded(s, W<T>)), one.logits = rows(keeps, h * padded(s, W<T>));
        one.mixed = rows(true, H), one.middle = rows(true, D), one.out = rows(true, D);
        one.attention_bytes = thins(ATTENTION) ? memory.take<uint8_t>(R * d + 16) : nullptr;
        if (!f) return;
        one.mlp_bytes = thins(MLP) ? memory.take<uint8_t>(R * d + 16) : nullptr;
        one.mlp_in.lay_out(memory, d, f, parts), one.mlp_in_bias.lay_out(memory, at[MLP_IN_BIAS], f, parts);
        one.mlp_out.lay_out(memory, f, d), one.mlp_out_bias.lay_out(memory, at[MLP_OUT_BIAS], d);
        one.mlp_gain.lay_out(memory, at[MLP_NORM], d), one.mlp_bias.lay_out(memory, at[MLP_NORM_BIAS], d);
        one.canon_c.lay_out(memory, at[CANON_C], d), one.canon_d.lay_out(memory, at[CANON_D], f, parts);
        one.mlp_normed = {memory.take<T>(R * D), memory.take<T>(R)};
        one.mlp_given = rows(true, D), one.mlp_given_unmixed = rows(has(AT_C), D);
        one.slopes = rows(true, F), one.slopes_before = rows(has(AT_D), F);
        one.points = rows(at[KNOTS] >= 0, F), one.active = rows(true, F);
        one.knots = at[KNOTS];
    }

    // -- a lane ---------------------------------------------------------------------------------------------------------

    void open(int64_t lane) {
        const T *knobs = static_cast<const T *>(plan_.knobs) + lane * (KNOBS + 3 * h);
        const int64_t line = lane * N * s;
        epsilon_ = knobs[EPSILON], cap_ = knobs[CAP];
        tokens_ = static_cast<const int64_t *>(plan_.inputs) + line;
        features_ = static_cast<const T *>(plan_.inputs) + line * plan_.features;
        answers_ = static_cast<const int64_t *>(plan_.targets) + line;
        numbers_ = static_cast<const T *>(plan_.targets) + line;
        weights_ = static_cast<const T *>(plan_.weights) + line;
        lengths_ = plan_.lengths ? plan_.lengths + lane * N : nullptr;
        const auto own = [&](const void *table, int64_t size) {
            return table ? static_cast<const T *>(table) + lane * size : nullptr;
        };
        placed_ = own(plan_.placed, s * d), cosines_ = own(plan_.cosines, s * (c / 2));
        sines_ = own(plan_.sines, s * (c / 2));
        const int depth = plan_.depth, sites = 1 + 3 * depth;
        const auto site = [&](int family, int number, int scale) {
            Site<T> found;
            found.on = thins(family), found.scale = knobs[scale];
            if (!found.on) return found;
            found.state = uint64_t(plan_.states[lane * sites + number]);
            found.threshold = plan_.thresholds[lane * sites + number];
            return found;
        };
        embedding_site_ = site(EMBEDDING, 0, EMBEDDING_SCALE);
        for (int l = 0; l < depth; l++) {
            attention_sites_[l] = site(ATTENTION, 1 + l, ATTENTION_SCALE);
            mlp_sites_[l] = site(MLP, 1 + depth + l, MLP_SCALE);
            weight_sites_[l] = site(WEIGHTS, 1 + 2 * depth + l, WEIGHTS_SCALE);
            for (int head = 0; head < h; head++) {
                const T *own_knobs = knobs + KNOBS + 3 * head;
                Scorer<T> &scorer = layers_[l].scorers[head];
                scorer.factor = own_knobs[0], scorer.b = own_knobs[1], scorer.n = own_knobs[2];
            }
            Spline<T> &spline = layers_[l].spline;
            spline.knots = int(plan_.knots), spline.learned = plan_.knots_learned;
            spline.low = knobs[SPLINE_LOW], spline.scale = knobs[SPLINE_SCALE];
        }
    }

    template <typename Work> static void each_vector(Layer<T> &one, Work work) {
        for (Vector<T> *vector : {&one.query_bias, &one.key_bias, &one.value_bias, &one.output_bias, &one.mlp_in_bias,
                                  &one.mlp_out_bias, &one.attention_gain, &one.attention_bias, &one.mlp_gain,
                                  &one.mlp_bias})
            work(*vector);
        for (Convolution<T> *canon : {&one.canon_a, &one.canon_query, &one.canon_key, &one.canon_value, &one.canon_c,
                                      &one.canon_d})
            for (Vector<T> &tap : canon->taps) work(tap);
    }

    void read(Layer<T> &one, const int64_t *at) {
        const T *packed = parameters_ + at[QUERY_KEY_VALUE];
        one.query.read(packed, 3 * d), one.key.read(packed + d, 3 * d), one.value.read(packed + 2 * d, 3 * d);
        one.output.read(parameters_ + at[OUTPUT], d);
        if (f) one.mlp_in.read(parameters_ + at[MLP_IN], parts * f), one.mlp_out.read(parameters_ + at[MLP_OUT], d);
        each_vector(one, [&](Vector<T> &vector) { vector.read(parameters_); });
        for (Scorer<T> &scorer : one.scorers) scorer.read(parameters_);
        if (one.knots >= 0) one.spline.read(parameters_ + one.knots);
    }

    void write(Layer<T> &one, const int64_t *at) {
        T *packed = gradient_ + at[QUERY_KEY_VALUE];
        one.query.write(packed, 3 * d), one.key.write(packed + d, 3 * d), one.value.write(packed + 2 * d, 3 * d);
        one.output.write(gradient_ + at[OUTPUT], d);
        if (f) one.mlp_in.write(gradient_ + at[MLP_IN], parts * f), one.mlp_out.write(gradient_ + at[MLP_OUT], d);
        each_vector(one, [&](Vector<T> &vector) { vector.write(gradient_); });
        for (Scorer<T> &scorer : one.scorers) scorer.write(gradient_);
        if (one.knots >= 0 && one.spline.learned) one.spline.write(gradient_ + one.knots);
    }

    // -- a block --------------------------------------------------------------------------------------------------------

    // From sequence `first` on as many as fit; the number of the next one.
    int take_block(int first) {
        sequences_.clear(), last_.clear(), all_places_.clear(), last_places_.clear(), row_numbers_.clear();
        loss_rows_.clear();
        rows_ = 0;
        int n = first;
        for (; n < N; n++) {
            int used = s;
            if (plan_.causal) // what follows the last position with loss changes nothing
                while (used > 0 && weights_[n * s + used - 1] == T(0)) used--;
            if (rows_ + used > most_) break;
            Sequence one;
            one.number = n, one.first = one.first_query = rows_, one.keys = one.queries = used;
            one.seen = lengths_ ? int(std::min<int64_t>(std::max<int64_t>(lengths_[n], 1), s)) : s;
            Sequence end = one;
            end.first_query = int(loss_rows_.size());
            for (int i = 0; i < used; i++) {
                all_places_.push_back(i);
                row_numbers_.push_back(int64_t(n) * s + i);
                if (weights_[n * s + i] == T(0)) continue; // what is no number counts
                loss_rows_.push_back(rows_ + i);
                last_places_.push_back(i);
            }
            end.queries = int(loss_rows_.size()) - end.first_query;
            rows_ += used;
            if (!used) continue;
            sequences_.push_back(one), last_.push_back(end);
        }
        for (Sequence &one : sequences_) one.places = all_places_.data() + one.first_query;
        for (Sequence &one : last_) one.places = last_places_.data() + one.first_query;
        narrow_ = !(plan_.canon & (AT_B | AT_C | AT_D)) && int(loss_rows_.size()) < rows_;
        return n;
    }

    bool is_narrow(int layer) const { return narrow_ && layer == plan_.depth - 1; }
    int ends_of(int layer) const { return is_narrow(layer) ? int(loss_rows_.size()) : rows_; }
    const std::vector<Sequence> &seen_by(int layer) const { return is_narrow(layer) ? last_ : sequences_; }
    // The row of the block that row i of a layer's end is.
    int row_of(int layer, int i) const { return is_narrow(layer) ? loss_rows_[i] : i; }
    int place_of(int row) const { return all_places_[row]; }

    // Bytes of a site for all rows of the block; a row has `width` of them.
    void draw(const Site<T> &site, uint8_t *bytes) const {
        for (const Sequence &one : sequences_)
            site.draw(spare_bytes(one, bytes), std::size_t(one.number) * s * d, std::size_t(one.keys) * d);
    }
    uint8_t *spare_bytes(const Sequence &one, uint8_t *bytes) const { return bytes + std::size_t(one.first) * d; }

    void thin(const Site<T> &site, T *rows, const uint8_t *bytes, int layer, int count) const {
        for (int i = 0; i < count; i++)
            site.thin(rows + std::ptrdiff_t(i) * D, bytes + std::ptrdiff_t(row_of(layer, i)) * d, d);
    }
    static void add(T *to, const T *from, int stride) {
        for (int e = 0; e < stride; e += W<T>) store<T>(to + e, load<T>(to + e) + load<T>(from + e));
    }

    // -- forward --------------------------------------------------------------------------------------------------------

    void forward() {
        begin();
        const T *stream = stream_;
        for (int l = 0; l < plan_.depth; l++) {
            attend(l, stream);
            stream = f ? pass_mlp(l) : layers_[l].middle;
        }
        const int count = int(loss_rows_.size());
        for (int i = 0; i < count; i++)
            std::memcpy(ended_ + std::ptrdiff_t(i) * D, stream + std::ptrdiff_t(narrow_ ? i : loss_rows_[i]) * D,
                        sizeof(T) * D);
        if (plan_.pre_norm) norm(final_, final_normed_, ended_, count, final_gain_, final_bias_);
    }

    void norm(T *out, const Normed<T> &kept, const T *rows, int count, const Vector<T> &gain, const Vector<T> &bias) const {
        normalise<T>(out, kept, rows, D, count, d, plan_.centred, epsilon_, {gain.values, bias.values, nullptr, nullptr});
    }
    void norm_gradient(T *rows, const Normed<T> &kept, int count, const Vector<T> &gain, const Vector<T> &bias) const {
        normalise_gradient<T>(rows, kept, D, count, d, plan_.centred,
                              {gain.values, bias.values, gain.gradient, bias.gradient});
    }

    void begin() {
        if (plan_.features) {
            const int width = int(plan_.features);
            for (int r = 0; r < rows_; r++)
                std::memcpy(inputs_ + std::ptrdiff_t(r) * width, features_ + row_numbers_[r] * width, sizeof(T) * width);
            reading_.apply(stream_, D, inputs_, width, rows_, reading_bias_.values);
        }
        const T *table = plan_.ends[POSITIONS] >= 0 ? parameters_ + plan_.ends[POSITIONS] : placed_;
        for (int r = 0; r < rows_; r++) {
            T *__restrict to = stream_ + std::ptrdiff_t(r) * D;
            if (!plan_.features)
                std::memcpy(to, parameters_ + plan_.ends[READING] + tokens_[row_numbers_[r]] * d, sizeof(T) * d);
            const T *__restrict position = table + (table ? std::ptrdiff_t(place_of(r)) * d : 0);
            for (int e = 0; table && e < d; e++) to[e] += position[e];
        }
        if (!embedding_site_.on) return;
        draw(embedding_site_, embedding_bytes_);
        for (int r = 0; r < rows_; r++)
            embedding_site_.thin(stream_ + std::ptrdiff_t(r) * D, embedding_bytes_ + std::ptrdiff_t(r) * d, d);
    }

    // The stream after attention, in `middle`.
    void attend(int l, const T *stream) {
        Layer<T> &one = layers_[l];
        const int count = ends_of(l);
        const T *given = stream;
        if (plan_.pre_norm) {
            T *normed = has(AT_A) ? one.given_unmixed : one.given;
            norm(normed, one.attention_normed, stream, rows_, one.attention_gain, one.attention_bias);
            given = normed;
        } else if (has(AT_A)) {
            std::memcpy(one.given_unmixed, stream, sizeof(T) * rows_ * D);
            given = one.given_unmixed;
        } else {
            std::memcpy(one.given, stream, sizeof(T) * rows_ * D);
        }
        if (has(AT_A)) one.canon_a.apply(one.given, given, D, sequences_);
        const T *asked = one.given;
        if (is_narrow(l)) {
            for (int i = 0; i < count; i++)
                std::memcpy(one.asked + std::ptrdiff_t(i) * D, one.given + std::ptrdiff_t(loss_rows_[i]) * D, sizeof(T) * D);
            asked = one.asked;
        }
        one.query.apply(one.q, H, asked, D, count, one.query_bias.values);
        one.key.apply(one.k, H, one.given, D, rows_, one.key_bias.values);
        one.value.apply(one.v, H, one.given, D, rows_, one.value_bias.values);
        if (plan_.query_key_norm) {
            unit_heads(one.q_before, one.q_factor, one.q, count);
            unit_heads(one.k_before, one.k_factor, one.k, rows_);
        }
        if (has(AT_B)) {
            if (!plan_.query_key_norm) {
                std::memcpy(one.q_before, one.q, sizeof(T) * rows_ * H);
                std::memcpy(one.k_before, one.k, sizeof(T) * rows_ * H);
            }
            std::memcpy(one.v_before, one.v, sizeof(T) * rows_ * H);
            one.canon_query.apply(one.q, one.q_before, H, sequences_);
            one.canon_key.apply(one.k, one.k_before, H, sequences_);
            one.canon_value.apply(one.v, one.v_before, H, sequences_);
        }
        if (cosines_) turn_rows(one.q, l, count, T(1)), turn_rows(one.k, 0, rows_, T(1), false);
        attention_.dropout = weight_sites_[l];
        for (const Sequence &sequence : seen_by(l))
            for (int head = 0; head < h; head++) {
                const std::ptrdiff_t at = weights_place(l, sequence, head);
                attention_.apply(sequence, head, one.scorers[head], slope(head), one.q, one.k, one.v, one.weights + at,
                                 one.scorers[head].keeps_logits() ? one.logits + at : nullptr, one.mixed);
            }
        one.output.apply(one.middle, D, one.mixed, H, count, one.output_bias.values);
        if (attention_sites_[l].on) {
            draw(attention_sites_[l], one.attention_bytes);
            thin(attention_sites_[l], one.middle, one.attention_bytes, l, count);
        }
        for (int i = 0; i < count; i++)
            add(one.middle + std::ptrdiff_t(i) * D, stream + std::ptrdiff_t(row_of(l, i)) * D, D);
        if (!plan_.pre_norm)
            norm(one.middle, one.attention_normed, one.middle, count, one.attention_gain, one.attention_bias);
    }
    // Where the weights of a sequence's queries start.
    std::ptrdiff_t weights_place(int l, const Sequence &one, int head) const {
        return (std::ptrdiff_t(head) * ends_of(l) + one.first_query) * padded(s, W<T>);
    }
    T slope(int head) const { return plan_.slopes ? static_cast<const T *>(plan_.slopes)[head] : T(0); }

    // The stream after the MLP.
    const T *pass_mlp(int l) {
        Layer<T> &one = layers_[l];
        const int count = ends_of(l);
        T *given = has(AT_C) ? one.mlp_given_unmixed : one.mlp_given;
        if (plan_.pre_norm)
            norm(given, one.mlp_normed, one.middle, count, one.mlp_gain, one.mlp_bias);
        else
            std::memcpy(given, one.middle, sizeof(T) * count * D);
        if (has(AT_C)) one.canon_c.apply(one.mlp_given, given, D, sequences_);
        T *hidden = has(AT_D) ? one.slopes_before : one.slopes;
        one.mlp_in.apply(hidden, F, one.mlp_given, D, count, one.mlp_in_bias.values);
        if (has(AT_D)) one.canon_d.apply(one.slopes, hidden, F, sequences_);
        if (one.points) std::memcpy(one.points, one.slopes, sizeof(T) * count * F);
        activate(Activation(plan_.activation), one.slopes, F, one.active, F, count, f, one.spline);
        one.mlp_out.apply(one.out, D, one.active, F, count, one.mlp_out_bias.values);
        if (mlp_sites_[l].on) {
            draw(mlp_sites_[l], one.mlp_bytes);
            thin(mlp_sites_[l], one.out, one.mlp_bytes, l, count);
        }
        for (int i = 0; i < count; i++) add(one.out + std::ptrdiff_t(i) * D, one.middle + std::ptrdiff_t(i) * D, D);
        if (!plan_.pre_norm) norm(one.out, one.mlp_normed, one.out, count, one.mlp_gain, one.mlp_bias);
        return one.out;
    }

    // Every head's channels to unit length; the rows in place too.
    void unit_heads(T *unit, T *factors, T *rows, int count) const {
        for (int r = 0; r < count; r++)
            for (int head = 0; head < h; head++) // writes past the head, where the next one follows
                factors[r * h + head] = to_unit<T>(unit + std::ptrdiff_t(r) * H + head * c,
                                                   rows + std::ptrdiff_t(r) * H + head * c, c, false, epsilon_);
        std::memcpy(rows, unit, sizeof(T) * count * H);
    }
    void unit_heads_gradient(T *rows, const T *unit, const T *factors, int count) {
        for (int r = 0; r < count; r++)
            for (int head = 0; head < h; head++) {
                T *at = rows + std::ptrdiff_t(r) * H + head * c;
                std::memcpy(channel_, at, sizeof(T) * c);
                from_unit<T>(channel_, unit + std::ptrdiff_t(r) * H + head * c, factors[r * h + head], c, false);
                std::memcpy(at, channel_, sizeof(T) * c);
            }
    }
    // Channels i and i + c / 2 of every head by their position's angles; `way` -1 turns back.
    void turn_rows(T *rows, int l, int count, T way, bool ends = true) const {
        const int half = c / 2;
        for (int r = 0; r < count; r++) {
            const std::ptrdiff_t place = place_of(ends ? row_of(l, r) : r) * std::ptrdiff_t(half);
            const T *__restrict cosine = cosines_ + place, *__restrict sine = sines_ + place;
            for (int head = 0; head < h; head++) {
                T *__restrict first = rows + std::ptrdiff_t(r) * H + head * c, *__restrict second = first + half;
                for (int e = 0; e < half; e++) {
                    const T a = first[e], b = second[e], turn = way * sine[e];
                    first[e] = a * cosine[e] - b * turn;
                    second[e] = a * turn + b * cosine[e];
                }
            }
        }
    }

    // -- backward -------------------------------------------------------------------------------------------------------

    void backward() {
        score_outputs();
        T *g = stream_g_; // the gradient by the stream after a layer
        for (int l = plan_.depth - 1; l >= 0; l--) {
            if (f) pass_mlp_gradient(l, g);
            attend_gradient(l, g, next_g_);
            std::swap(stream_g_, next_g_);
            g = stream_g_;
        }
        begin_gradient(g);
    }

    // The loss, and in `stream_g_` the gradient by the stream after the last layer.
    void score_outputs() {
        const int count = int(loss_rows_.size());
        const T *ended = plan_.pre_norm ? final_ : ended_;
        T *to = narrow_ ? stream_g_ : branch_g_;
        for (int first = 0; first < count; first += chunk_) {
            const int here = std::min(chunk_, count - first);
            const T *rows = ended + std::ptrdiff_t(first) * D;
            writing_.apply(outputs_, O, rows, D, here, writing_bias_.values);
            for (int i = 0; i < here; i++) score(outputs_ + std::ptrdiff_t(i) * O, row_numbers_[loss_rows_[first + i]]);
            writing_bias_.learn(outputs_, O, here);
            writing_.learn(rows, D, outputs_, O, here);
            writing_.apply_turned(to + std::ptrdiff_t(first) * D, D, outputs_, O, here, false);
        }
        if (plan_.pre_norm) norm_gradient(to, final_normed_, count, final_gain_, final_bias_);
        if (narrow_) return;
        std::memset(stream_g_, 0, sizeof(T) * rows_ * D);
        for (int i = 0; i < count; i++)
            std::memcpy(stream_g_ + std::ptrdiff_t(loss_rows_[i]) * D, to + std::ptrdiff_t(i) * D, sizeof(T) * D);
    }
    // Outputs of one row become their gradient.
    void score(T *row, int64_t number) {
        const T weight = weights_[number];
        if (Loss(plan_.loss) != Loss::cross_entropy) {
            loss_ += error(Loss(plan_.loss), row, numbers_[number], weight);
            for (int e = 1; e < O; e++) row[e] = T(0);
            return;
        }
        if (!plan_.capped) {
            loss_ += cross_entropy(row, v, answers_[number], weight);
            return;
        }
        for (int e = 0; e < O; e += W<T>) {
            const V<T> t = hyperbolic_tangent(V<T>(load<T>(row + e) / cap_));
            store<T>(capped_ + e, t);
            store<T>(row + e, cap_ * t);
        }
        loss_ += cross_entropy(row, v, answers_[number], weight);
        for (int e = 0; e < O; e += W<T>) {
            const V<T> t = load<T>(capped_ + e);
            store<T>(row + e, load<T>(row + e) * (T(1) - t * t));
        }
    }
    // From the gradient `g` by the stream after the MLP to that by the stream before it, in place.
    void pass_mlp_gradient(int l, T *g) {
        Layer<T> &one = layers_[l];
        const int count = ends_of(l);
        if (!plan_.pre_norm) norm_gradient(g, one.mlp_normed, count, one.mlp_gain, one.mlp_bias);
        const T *branch = thinned_gradient(mlp_sites_[l], g, one.mlp_bytes, l, count);
        one.mlp_out_bias.learn(branch, D, count);
        one.mlp_out.learn(one.active, F, branch, D, count);
        one.mlp_out.apply_turned(active_g_, F, branch, D, count, false);
        if (one.points && one.spline.learned)
            for (int r = 0; r < count; r++)
                one.spline.learn(one.points + std::ptrdiff_t(r) * F, active_g_ + std::ptrdiff_t(r) * F, f);
        activate_gradient(one.slopes, F, active_g_, F, count, f, parts);
        const T *hidden_g = one.slopes;
        if (has(AT_D)) {
            one.canon_d.apply_gradient(hidden_g_, hidden_g, one.slopes_before, F, sequences_);
            hidden_g = hidden_g_;
        }
        one.mlp_in_bias.learn(hidden_g, F, count);
        one.mlp_in.learn(one.mlp_given, D, hidden_g, F, count);
        if (!plan_.pre_norm && !has(AT_C)) {
            one.mlp_in.apply_turned(g, D, hidden_g, F, count, true);
            return;
        }
        T *given_g = spare_g_;
        one.mlp_in.apply_turned(given_g, D, hidden_g, F, count, false);
        if (has(AT_C)) {
            one.canon_c.apply_gradient(branch_g_, given_g, one.mlp_given_unmixed, D, sequences_);
            given_g = branch_g_;
        }
        if (plan_.pre_norm) norm_gradient(given_g, one.mlp_normed, count, one.mlp_gain, one.mlp_bias);
        add(g, given_g, count * D);
    }

    // From the gradient `g` by the stream after attention to that by the stream before it, at `to`.
    void attend_gradient(int l, T *g, T *to) {
        Layer<T> &one = layers_[l];
        const int count = ends_of(l);
        if (!plan_.pre_norm) norm_gradient(g, one.attention_normed, count, one.attention_gain, one.attention_bias);
        const T *branch = thinned_gradient(attention_sites_[l], g, one.attention_bytes, l, count);
        one.output_bias.learn(branch, D, count);
        one.output.learn(one.mixed, H, branch, D, count);
        one.output.apply_turned(mixed_g_, H, branch, D, count, false);
        attention_.dropout = weight_sites_[l];
        for (const Sequence &sequence : seen_by(l))
            for (int head = 0; head < h; head++) {
                const std::ptrdiff_t at = weights_place(l, sequence, head);
                attention_.apply_gradient(sequence, head, one.scorers[head], one.q, one.k, one.v, one.weights + at,
                                          one.scorers[head].keeps_logits() ? one.logits + at : nullptr, mixed_g_, q_g_,
                                          k_g_, v_g_);
            }
        if (cosines_) turn_rows(q_g_, l, count, T(-1)), turn_rows(k_g_, 0, rows_, T(-1), false);
        if (has(AT_B)) {
            one.canon_query.apply_gradient(head_g_, q_g_, one.q_before, H, sequences_), std::swap(head_g_, q_g_);
            one.canon_key.apply_gradient(head_g_, k_g_, one.k_before, H, sequences_), std::swap(head_g_, k_g_);
            one.canon_value.apply_gradient(head_g_, v_g_, one.v_before, H, sequences_), std::swap(head_g_, v_g_);
        }
        if (plan_.query_key_norm) {
            unit_heads_gradient(q_g_, one.q_before, one.q_factor, count);
            unit_heads_gradient(k_g_, one.k_before, one.k_factor, rows_);
        }
        one.query_bias.learn(q_g_, H, count), one.key_bias.learn(k_g_, H, rows_), one.value_bias.learn(v_g_, H, rows_);
        one.query.learn(is_narrow(l) ? one.asked : one.given, D, q_g_, H, count);
        one.key.learn(one.given, D, k_g_, H, rows_);
        one.value.learn(one.given, D, v_g_, H, rows_);
        T *given_g = has(AT_A) ? spare_g_ : to;
        one.key.apply_turned(given_g, D, k_g_, H, rows_, false);
        one.value.apply_turned(given_g, D, v_g_, H, rows_, true);
        if (is_narrow(l)) {
            one.query.apply_turned(branch_g_, D, q_g_, H, count, false);
            for (int i = 0; i < count; i++)
                add(given_g + std::ptrdiff_t(loss_rows_[i]) * D, branch_g_ + std::ptrdiff_t(i) * D, D);
        } else {
            one.query.apply_turned(given_g, D, q_g_, H, count, true);
        }
        if (has(AT_A)) one.canon_a.apply_gradient(to, given_g, one.given_unmixed, D, sequences_);
        if (plan_.pre_norm) norm_gradient(to, one.attention_normed, rows_, one.attention_gain, one.attention_bias);
        for (int i = 0; i < count; i++)
            add(to + std::ptrdiff_t(row_of(l, i)) * D, g + std::ptrdiff_t(i) * D, D);
    }

    // The gradient by what a dropout site was given.
    const T *thinned_gradient(const Site<T> &site, const T *g, const uint8_t *bytes, int l, int count) {
        if (!site.on) return g;
        std::memcpy(branch_g_, g, sizeof(T) * count * D);
        thin(site, branch_g_, bytes, l, count);
        return branch_g_;
    }

    void begin_gradient(T *g) {
        if (embedding_site_.on)
            for (int r = 0; r < rows_; r++)
                embedding_site_.thin(g + std::ptrdiff_t(r) * D, embedding_bytes_ + std::ptrdiff_t(r) * d, d);
        for (int r = 0; r < rows_; r++) {
            const T *__restrict from = g + std::ptrdiff_t(r) * D;
            if (plan_.ends[POSITIONS] >= 0) {
                T *__restrict to = gradient_ + plan_.ends[POSITIONS] + std::ptrdiff_t(place_of(r)) * d;
                for (int e = 0; e < d; e++) to[e] += from[e];
            }
            if (plan_.features) continue;
            T *__restrict to = gradient_ + plan_.ends[READING] + tokens_[row_numbers_[r]] * d;
            for (int e = 0; e < d; e++) to[e] += from[e];
        }
        if (!plan_.features) return;
        reading_bias_.learn(g, D, rows_);
        reading_.learn(inputs_, int(plan_.features), g, D, rows_);
    }
};

template <typename T> int all_lanes(const Plan &plan) try {
    const FlushToZero flushed;
    const int most = int(std::max<int64_t>(plan.length, std::min<int64_t>(plan.batch * plan.length, BLOCK_ROWS)));
    Memory counted;
    const Lane<T> sketch(plan, counted, most);
    Memory memory(counted.used());
    Lane<T> one(plan, memory, most);
    for (int64_t lane = 0; lane < plan.lanes; lane++) one.gradient(lane);
    return 0;
} catch (const std::exception &) {
    return 1;
}

} // namespace layered
