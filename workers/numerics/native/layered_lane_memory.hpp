// A lane's memory, laid out once a call, and how its parameters come in and its gradient goes out.
#pragma once
#include "layered_lane.hpp"

namespace layered {

template <typename T> void LayeredLane<T>::lay_out(Memory &memory) {
    room_ = Room<T>::take(memory, plan_.total, std::max(d, parts * f), LARGE_BLOCK_ROWS);
    gradient_ = nullptr;
    const std::size_t R = most_;
    for (int l = 0; l < plan_.depth; l++) lay_out(memory, layers_[l], plan_.layers + l * LAYER_OFFSETS, l);
    const int64_t *at = plan_.ends;
    writing_.lay_out(memory, d, v, 1, room_, true);
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
    const std::size_t bytes = room_.there() ? LARGE_LOGITS_BYTES : LOGITS_BYTES;
    chunk_ = std::max<int>(2 * TILE_ROWS, bytes / (sizeof(T) * O));
    outputs_ = memory.take<T>(std::size_t(std::min(chunk_, most_)) * O);
    const Heads heads{h, c, H, s, ShortAttention<T>::row(s), plan_.causal != 0, !layers_[0].phi.on()};
    attention_.lay_out(memory, heads), short_.lay_out(memory, heads);
    attention_.placing = short_.placing = static_cast<const T *>(plan_.placing);
    lay_out_table(memory);
    attention_sites_.resize(plan_.depth), mlp_sites_.resize(plan_.depth), weight_sites_.resize(plan_.depth);
}

template <typename T> void LayeredLane<T>::lay_out(Memory &memory, Layer<T> &one, const int64_t *at, int number) {
    const std::size_t R = most_;
    for (Matrix<T> *matrix : {&one.query, &one.key, &one.value, &one.output}) matrix->lay_out(memory, d, d, 1, room_);
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
    one.given_rows = rows(plan_.pre_norm || has(AT_A), D), one.given_unmixed_rows = rows(plan_.pre_norm && has(AT_A), D), one.asked = rows(true, D);
    one.q = rows(true, H), one.k = rows(true, H), one.v = rows(true, H);
    one.q_before = rows(keeps_unmixed_heads(), H), one.k_before = rows(keeps_unmixed_heads(), H), one.v_before = rows(has(AT_B), H);
    one.q_factor = rows(plan_.query_key_norm, h), one.k_factor = rows(plan_.query_key_norm, h);
    one.scorers.resize(h);
    const int64_t *learned = plan_.learned + number * plan_.own_offsets;
    bool reads = false;
    for (int head = 0; head < h; head++) {
        Scorer<T> &scorer = one.scorers[head];
        scorer.take(plan_.scorers + SCORER_FIELDS * head, learned);
        learned += scorer.learned, reads = reads || scorer.reads_logits;
        one.kept_row = std::max(one.kept_row, scorer.kept * (s <= FEW_POSITIONS ? 2 : 1)); // heads side by side need room
    }
    one.phi.take(plan_.phi, learned), learned += one.phi.offsets();
    for (T **slopes : {&one.q_slopes, &one.k_slopes}) *slopes = rows(one.phi.on(), H);
    for (T **points : {&one.q_points, &one.k_points}) *points = rows(one.phi.learns(), H);
    const int row = h * ShortAttention<T>::row(s);
    one.weights = rows(true, row), one.logits = rows(reads, row), one.kept = rows(true, h * one.kept_row);
    one.mixed = rows(true, H), one.middle = rows(true, D), one.out = rows(true, D);
    one.attention_bytes = has_dropout(ATTENTION) ? memory.take<uint8_t>(R * d + 16) : nullptr;
    if (!f) return;
    one.mlp_bytes = has_dropout(MLP) ? memory.take<uint8_t>(R * d + 16) : nullptr;
    one.mlp_in.lay_out(memory, d, f, parts, room_);
    one.mlp_in_bias.lay_out(memory, at[MLP_IN_BIAS], f, parts);
    one.mlp_out.lay_out(memory, f, d, 1, room_);
    one.mlp_out_bias.lay_out(memory, at[MLP_OUT_BIAS], d);
    one.mlp_gain.lay_out(memory, at[MLP_NORM], d), one.mlp_bias.lay_out(memory, at[MLP_NORM_BIAS], d);
    one.canon_c.lay_out(memory, at[CANON_C], d), one.canon_d.lay_out(memory, at[CANON_D], f, parts);
    one.mlp_normed = {memory.take<T>(R * D), memory.take<T>(R)};
    one.mlp_given_rows = rows(plan_.pre_norm || has(AT_C), D);
    one.mlp_given_unmixed_rows = rows(plan_.pre_norm && has(AT_C), D);
    one.slopes = rows(true, F), one.slopes_before = rows(has(AT_D), F);
    one.activation.take(plan_.activation, learned);
    one.points = rows(one.activation.learns(), F), one.active = rows(true, F);
}

template <typename T> void LayeredLane<T>::open(int64_t lane) {
    const T *knobs = static_cast<const T *>(plan_.knobs) + lane * (KNOBS + plan_.own_knobs);
    const int64_t line = lane * N * s;
    epsilon_ = knobs[EPSILON], cap_ = knobs[CAP];
    tokens_ = static_cast<const int64_t *>(plan_.inputs) + line;
    features_ = static_cast<const T *>(plan_.inputs) + line * plan_.features;
    lengths_ = plan_.lengths ? plan_.lengths + lane * N : nullptr;
    const auto own = [&](const void *table, int64_t size) {
        return table ? static_cast<const T *>(table) + lane * size : nullptr;
    };
    answers_ = plan_.targets ? static_cast<const int64_t *>(plan_.targets) + line : nullptr;
    numbers_ = own(plan_.targets, N * s), loss_weights_ = own(plan_.weights, N * s);
    placed_ = own(plan_.placed, s * d), cosines_ = own(plan_.cosines, s * (c / 2));
    sines_ = own(plan_.sines, s * (c / 2));
    const int depth = plan_.depth, sites = 1 + 3 * depth;
    const auto site = [&](int family, int number, int scale) {
        DropoutSite<T> found;
        found.on = has_dropout(family), found.scale = knobs[scale];
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
        const T *own_knobs = knobs + KNOBS;
        for (Scorer<T> &scorer : layers_[l].scorers) scorer.read_knobs(own_knobs), own_knobs += scorer.knobs;
        layers_[l].phi.read_knobs(own_knobs), own_knobs += layers_[l].phi.knobs;
        layers_[l].activation.read_knobs(own_knobs);
    }
    open_parameters(lane);
    open_table();
}

template <typename T> void LayeredLane<T>::open_parameters(int64_t lane) {
    parameters_ = static_cast<const T *>(plan_.parameters) + lane * plan_.total;
    for (int l = 0; l < plan_.depth; l++) read(layers_[l], plan_.layers + l * LAYER_OFFSETS);
    final_gain_.read(parameters_), final_bias_.read(parameters_), writing_bias_.read(parameters_);
    const int64_t at = plan_.tied ? plan_.ends[READING] : plan_.ends[WRITING];
    writing_.read(parameters_ + at, nullptr, plan_.tied ? d : v, plan_.tied);
    if (plan_.features) reading_.read(parameters_ + plan_.ends[READING], nullptr, d), reading_bias_.read(parameters_);
}

template <typename T>
template <typename Work>
void LayeredLane<T>::each_vector(Layer<T> &one, Work work) {
    for (Vector<T> *vector : {&one.query_bias, &one.key_bias, &one.value_bias, &one.output_bias, &one.mlp_in_bias,
                              &one.mlp_out_bias, &one.attention_gain, &one.attention_bias, &one.mlp_gain,
                              &one.mlp_bias})
        work(*vector);
    for (Convolution<T> *canon : {&one.canon_a, &one.canon_query, &one.canon_key, &one.canon_value, &one.canon_c,
                                  &one.canon_d})
        for (Vector<T> &tap : canon->taps) work(tap);
}

template <typename T> void LayeredLane<T>::read(Layer<T> &one, const int64_t *at) {
    const auto matrix = [&](Matrix<T> &matrix, int64_t offset, int step) {
        matrix.read(parameters_ + offset, gradient_ ? gradient_ + offset : nullptr, step);
    };
    int64_t packed = at[QUERY_KEY_VALUE];
    for (Matrix<T> *one_of_three : {&one.query, &one.key, &one.value}) matrix(*one_of_three, packed, 3 * d), packed += d;
    matrix(one.output, at[OUTPUT], d);
    if (f) matrix(one.mlp_in, at[MLP_IN], parts * f), matrix(one.mlp_out, at[MLP_OUT], d);
    each_vector(one, [&](Vector<T> &vector) { vector.read(parameters_); });
    for (Scorer<T> &scorer : one.scorers) scorer.read(parameters_);
    one.phi.read(parameters_), one.activation.read(parameters_);
}

template <typename T> void LayeredLane<T>::write(Layer<T> &one, const int64_t *at) {
    T *packed = gradient_ + at[QUERY_KEY_VALUE];
    one.query.write(packed, 3 * d), one.key.write(packed + d, 3 * d), one.value.write(packed + 2 * d, 3 * d);
    one.output.write(gradient_ + at[OUTPUT], d);
    if (f) one.mlp_in.write(gradient_ + at[MLP_IN], parts * f), one.mlp_out.write(gradient_ + at[MLP_OUT], d);
    each_vector(one, [&](Vector<T> &vector) { vector.write(gradient_); });
    for (Scorer<T> &scorer : one.scorers) scorer.write(gradient_);
    one.phi.write(gradient_), one.activation.write(gradient_);
}

} // namespace layered
