// The loss of a block, and its backward pass.
#pragma once
#include "layered_lane.hpp"

namespace layered {

template <typename T> void LayeredLane<T>::backward() {
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
template <typename T> void LayeredLane<T>::score_outputs() {
    const int count = int(loss_rows_.size());
    T *to = narrow_ ? stream_g_ : branch_g_;
    for (int first = 0; first < count; first += chunk_) {
        const int here = std::min(chunk_, count - first);
        const T *rows = ended() + std::ptrdiff_t(first) * D;
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
template <typename T> void LayeredLane<T>::score(T *row, int64_t number) {
    const T weight = loss_weights_[number];
    if (Loss(plan_.loss) != Loss::cross_entropy) {
        loss_ += regression_loss(Loss(plan_.loss), row, numbers_[number], weight);
        for (int e = 1; e < O; e++) row[e] = T(0);
        return;
    }
    if (!plan_.capped) {
        loss_ += cross_entropy(row, v, answers_[number], weight);
        return;
    }
    cap(row);
    loss_ += cross_entropy(row, v, answers_[number], weight);
    for (int e = 0; e < O; e += W<T>) {
        const V<T> t = load<T>(capped_ + e);
        store<T>(row + e, load<T>(row + e) * (T(1) - t * t));
    }
}

// From the gradient `g` by the stream after the MLP to that by the stream before it, in place.
template <typename T> void LayeredLane<T>::pass_mlp_gradient(int l, T *g) {
    Layer<T> &one = layers_[l];
    const int count = ends_of(l);
    if (!plan_.pre_norm) norm_gradient(g, one.mlp_normed, count, one.mlp_gain, one.mlp_bias);
    const T *branch = dropped_gradient(mlp_sites_[l], g, one.mlp_bytes, l, count);
    one.mlp_out_bias.learn(branch, D, count);
    one.mlp_out.learn(one.active, F, branch, D, count);
    one.mlp_out.apply_turned(active_g_, F, branch, D, count, false);
    one.activation.learn(one.points, F, active_g_, F, count, f);
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
template <typename T> void LayeredLane<T>::attend_gradient(int l, T *g, T *to) {
    Layer<T> &one = layers_[l];
    const int count = ends_of(l);
    if (!plan_.pre_norm) norm_gradient(g, one.attention_normed, count, one.attention_gain, one.attention_bias);
    const T *branch = dropped_gradient(attention_sites_[l], g, one.attention_bytes, l, count);
    one.output_bias.learn(branch, D, count);
    one.output.learn(one.mixed, H, branch, D, count);
    one.output.apply_turned(mixed_g_, H, branch, D, count, false);
    each_sequence(
        l,
        [&](const Sequence *first, int alike, std::ptrdiff_t at) {
            short_.apply_gradient(first, alike, one.scorers.data(), one.q, one.k, one.v, one.weights + at,
                                  one.kept + kept_offset(l, *first, 0), logits_at(l, at), mixed_g_, q_g_, k_g_, v_g_);
        },
        [&](const Sequence &sequence, int head, std::ptrdiff_t at) {
            attention_.apply_gradient(sequence, head, one.scorers[head], one.q, one.k, one.v, one.weights + at,
                                      one.kept + kept_offset(l, sequence, head), logits_at(l, at), mixed_g_, q_g_, k_g_,
                                      v_g_);
        });
    if (one.phi.on()) {
        one.phi.make_features_gradient(q_g_, one.q_slopes, one.q_points, H, count, d);
        one.phi.make_features_gradient(k_g_, one.k_slopes, one.k_points, H, rows_, d);
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
    if (looks_up(l)) {
        look_up_gradient();
        std::memset(to, 0, sizeof(T) * rows_ * D);
    } else {
        map_gradient(l, to);
    }
    for (int i = 0; i < count; i++)
        add(to + std::ptrdiff_t(row_of(l, i)) * D, g + std::ptrdiff_t(i) * D, D);
}

// From the gradients by queries, keys and values to those by the stream, at `to`, and of what the maps learn.
template <typename T> void LayeredLane<T>::map_gradient(int l, T *to) {
    Layer<T> &one = layers_[l];
    const int count = ends_of(l);
    learn_maps(one, is_narrow(l) ? one.asked : one.given, count, q_g_, one.given, rows_, k_g_, v_g_);
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
}

template <typename T>
void LayeredLane<T>::learn_maps(Layer<T> &one, const T *asked, int queries, const T *q_g, const T *given, int rows,
                                const T *k_g, const T *v_g) const {
    one.query_bias.learn(q_g, H, queries), one.key_bias.learn(k_g, H, rows), one.value_bias.learn(v_g, H, rows);
    one.query.learn(asked, D, q_g, H, queries);
    one.key.learn(given, D, k_g, H, rows);
    one.value.learn(given, D, v_g, H, rows);
}

// The gradient by what a dropout site was given.
template <typename T>
const T *LayeredLane<T>::dropped_gradient(const DropoutSite<T> &site, const T *g, const uint8_t *bytes, int l, int count) {
    if (!site.on) return g;
    std::memcpy(branch_g_, g, sizeof(T) * count * D);
    drop(site, branch_g_, bytes, l, count);
    return branch_g_;
}

template <typename T> void LayeredLane<T>::begin_gradient(T *g) {
    if (embedding_site_.on)
        for (int r = 0; r < rows_; r++)
            embedding_site_.drop(g + std::ptrdiff_t(r) * D, embedding_bytes_ + std::ptrdiff_t(r) * d, d);
    for (int r = 0; r < rows_; r++) learn_embedding(g + std::ptrdiff_t(r) * D, row_numbers_[r]);
    if (!plan_.features) return;
    reading_bias_.learn(g, D, rows_);
    reading_.learn(inputs_, int(plan_.features), g, D, rows_);
}

// Adds the gradient by one row of the stream to those of its position and token.
template <typename T> void LayeredLane<T>::learn_embedding(const T *__restrict g, int64_t number) {
    if (plan_.ends[POSITIONS] >= 0) {
        T *__restrict to = gradient_ + plan_.ends[POSITIONS] + number % s * d;
        for (int e = 0; e < d; e++) to[e] += g[e];
    }
    if (plan_.features) return;
    T *__restrict to = gradient_ + plan_.ends[READING] + tokens_[number] * d;
    for (int e = 0; e < d; e++) to[e] += g[e];
}

} // namespace layered
