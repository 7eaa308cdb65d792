// A block's forward pass, which keeps what the backward pass needs.
#pragma once
#include "layered_lane.hpp"

namespace layered {

template <typename T> void LayeredLane<T>::forward() {
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

template <typename T>
void LayeredLane<T>::norm(T *out, const Normed<T> &kept, const T *rows, int count, const Vector<T> &gain,
        const Vector<T> &bias) const {
    normalise<T>(out, kept, rows, D, count, d, plan_.centred, epsilon_, {gain.values, bias.values, nullptr, nullptr});
}

template <typename T>
void LayeredLane<T>::norm_gradient(T *rows, const Normed<T> &kept, int count, const Vector<T> &gain,
        const Vector<T> &bias) const {
    normalise_gradient<T>(rows, kept, D, count, d, plan_.centred,
                          {gain.values, bias.values, gain.gradient, bias.gradient});
}

template <typename T> void LayeredLane<T>::begin() {
    if (plan_.features) {
        const int width = int(plan_.features);
        for (int r = 0; r < rows_; r++)
            std::memcpy(inputs_ + std::ptrdiff_t(r) * width, features_ + row_numbers_[r] * width, sizeof(T) * width);
        reading_.apply(stream_, D, inputs_, width, rows_, reading_bias_.values);
    }
    for (int r = 0; r < rows_; r++) embed(stream_ + std::ptrdiff_t(r) * D, row_numbers_[r]);
    if (!embedding_site_.on) return;
    draw(embedding_site_, embedding_bytes_);
    for (int r = 0; r < rows_; r++)
        embedding_site_.drop(stream_ + std::ptrdiff_t(r) * D, embedding_bytes_ + std::ptrdiff_t(r) * d, d);
}

// The position with this number in the lane, as the first layer reads it; what is read of features is there already.
template <typename T> void LayeredLane<T>::embed(T *__restrict to, int64_t number) const {
    if (!plan_.features)
        std::memcpy(to, parameters_ + plan_.ends[READING] + tokens_[number] * d, sizeof(T) * d);
    const T *table = plan_.ends[POSITIONS] >= 0 ? parameters_ + plan_.ends[POSITIONS] : placed_;
    if (!table) return;
    const T *__restrict position = table + number % s * d;
    for (int e = 0; e < d; e++) to[e] += position[e];
}

// Queries, keys and values by the learned maps.
template <typename T> void LayeredLane<T>::map(int l, const T *stream) {
    Layer<T> &one = layers_[l];
    const int count = ends_of(l);
    one.given = stream;
    if (plan_.pre_norm) {
        T *normed = has(AT_A) ? one.given_unmixed_rows : one.given_rows;
        norm(normed, one.attention_normed, stream, rows_, one.attention_gain, one.attention_bias);
        one.given = normed;
    }
    if (has(AT_A)) {
        one.given_unmixed = one.given;
        one.canon_a.apply(one.given_rows, one.given, D, sequences_);
        one.given = one.given_rows;
    }
    const T *asked = one.given;
    if (is_narrow(l)) {
        for (int i = 0; i < count; i++)
            std::memcpy(one.asked + std::ptrdiff_t(i) * D, one.given + std::ptrdiff_t(loss_rows_[i]) * D, sizeof(T) * D);
        asked = one.asked;
    }
    one.query.apply(one.q, H, asked, D, count, one.query_bias.values);
    one.key.apply(one.k, H, one.given, D, rows_, one.key_bias.values);
    one.value.apply(one.v, H, one.given, D, rows_, one.value_bias.values);
}

// The stream after attention, in `middle`.
template <typename T> void LayeredLane<T>::attend(int l, const T *stream) {
    Layer<T> &one = layers_[l];
    const int count = ends_of(l);
    if (looks_up(l))
        look_up();
    else
        map(l, stream);
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
    if (one.phi.on()) {
        one.phi.make_features(one.q, one.q_slopes, one.q_points, H, count, d);
        one.phi.make_features(one.k, one.k_slopes, one.k_points, H, rows_, d);
    }
    each_sequence(
        l,
        [&](const Sequence *first, int alike, std::ptrdiff_t at) {
            short_.apply(first, alike, one.scorers.data(), one.q, one.k, one.v, one.weights + at,
                         one.kept + kept_offset(l, *first, 0), logits_at(l, at), one.mixed);
        },
        [&](const Sequence &sequence, int head, std::ptrdiff_t at) {
            attention_.apply(sequence, head, one.scorers[head], slope(head), one.q, one.k, one.v, one.weights + at,
                             one.kept + kept_offset(l, sequence, head), logits_at(l, at), one.mixed);
        });
    one.output.apply(one.middle, D, one.mixed, H, count, one.output_bias.values);
    if (attention_sites_[l].on) {
        draw(attention_sites_[l], one.attention_bytes);
        drop(attention_sites_[l], one.middle, one.attention_bytes, l, count);
    }
    for (int i = 0; i < count; i++)
        add(one.middle + std::ptrdiff_t(i) * D, stream + std::ptrdiff_t(row_of(l, i)) * D, D);
    if (!plan_.pre_norm)
        norm(one.middle, one.attention_normed, one.middle, count, one.attention_gain, one.attention_bias);
}

// The attention of a layer: short sequences of one shape together, others head by head; and where their weights start.
template <typename T>
template <typename Alike, typename One>
void LayeredLane<T>::each_sequence(int l, Alike alike, One one) {
    attention_.dropout = weight_sites_[l];
    short_.on = !weight_sites_[l].on && !plan_.slopes && short_.can_take(layers_[l].scorers);
    const Sequence *next = seen_by(l).data(), *const end = next + seen_by(l).size();
    while (next != end) {
        const int count = short_.alike(next, end);
        if (count) alike(next, count, weights_offset(*next, 0));
        for (int head = 0; !count && head < h; head++) one(*next, head, weights_offset(*next, head));
        next += count ? count : 1;
    }
}

// Where the weights of a sequence's queries start.
template <typename T> std::ptrdiff_t LayeredLane<T>::weights_offset(const Sequence &one, int head) const {
    return (std::ptrdiff_t(one.first_query) * h + std::ptrdiff_t(head) * one.queries) * ShortAttention<T>::row(s);
}

// The same of the numbers that the scorer keeps of each row.
template <typename T> std::ptrdiff_t LayeredLane<T>::kept_offset(int l, const Sequence &one, int head) const {
    return (std::ptrdiff_t(one.first_query) * h + std::ptrdiff_t(head) * one.queries) * layers_[l].kept_row;
}

// The stream after the MLP.
template <typename T> const T *LayeredLane<T>::pass_mlp(int l) {
    Layer<T> &one = layers_[l];
    const int count = ends_of(l);
    one.mlp_given = one.middle;
    if (plan_.pre_norm) {
        T *normed = has(AT_C) ? one.mlp_given_unmixed_rows : one.mlp_given_rows;
        norm(normed, one.mlp_normed, one.middle, count, one.mlp_gain, one.mlp_bias);
        one.mlp_given = normed;
    }
    if (has(AT_C)) {
        one.mlp_given_unmixed = one.mlp_given;
        one.canon_c.apply(one.mlp_given_rows, one.mlp_given, D, sequences_);
        one.mlp_given = one.mlp_given_rows;
    }
    T *hidden = has(AT_D) ? one.slopes_before : one.slopes;
    one.mlp_in.apply(hidden, F, one.mlp_given, D, count, one.mlp_in_bias.values);
    if (has(AT_D)) one.canon_d.apply(one.slopes, hidden, F, sequences_);
    if (one.points) std::memcpy(one.points, one.slopes, sizeof(T) * count * F);
    one.activation.apply(one.slopes, F, one.active, F, count, f);
    one.mlp_out.apply(one.out, D, one.active, F, count, one.mlp_out_bias.values);
    if (mlp_sites_[l].on) {
        draw(mlp_sites_[l], one.mlp_bytes);
        drop(mlp_sites_[l], one.out, one.mlp_bytes, l, count);
    }
    for (int i = 0; i < count; i++) add(one.out + std::ptrdiff_t(i) * D, one.middle + std::ptrdiff_t(i) * D, D);
    if (!plan_.pre_norm) norm(one.out, one.mlp_normed, one.out, count, one.mlp_gain, one.mlp_bias);
    return one.out;
}

// The outputs of the block's rows to their places in the lane's [N][s][v].
template <typename T> void LayeredLane<T>::write_outputs(T *to) const {
    const int count = int(loss_rows_.size());
    for (int first = 0; first < count; first += chunk_) {
        const int here = std::min(chunk_, count - first);
        writing_.apply(outputs_, O, ended() + std::ptrdiff_t(first) * D, D, here, writing_bias_.values);
        for (int i = 0; i < here; i++) {
            T *row = outputs_ + std::ptrdiff_t(i) * O;
            if (plan_.capped) cap(row);
            std::memcpy(to + row_numbers_[loss_rows_[first + i]] * v, row, sizeof(T) * v);
        }
    }
}

// A row of outputs becomes cap * tanh(row / cap), and `capped_` the tanh.
template <typename T> void LayeredLane<T>::cap(T *row) const {
    for (int e = 0; e < O; e += W<T>) {
        const V<T> t = hyperbolic_tangent(V<T>(load<T>(row + e) / cap_));
        store<T>(capped_ + e, t);
        store<T>(row + e, cap_ * t);
    }
}

// Every head's channels to unit length; the rows in place too.
template <typename T> void LayeredLane<T>::unit_heads(T *unit, T *factors, T *rows, int count) const {
    for (int r = 0; r < count; r++)
        for (int head = 0; head < h; head++) // writes past the head, where the next one follows
            factors[r * h + head] = to_unit<T>(unit + std::ptrdiff_t(r) * H + head * c,
                                               rows + std::ptrdiff_t(r) * H + head * c, c, false, epsilon_);
    std::memcpy(rows, unit, sizeof(T) * count * H);
}

template <typename T> void LayeredLane<T>::unit_heads_gradient(T *rows, const T *unit, const T *factors, int count) {
    for (int r = 0; r < count; r++)
        for (int head = 0; head < h; head++) {
            T *at = rows + std::ptrdiff_t(r) * H + head * c;
            std::memcpy(channel_, at, sizeof(T) * c);
            from_unit<T>(channel_, unit + std::ptrdiff_t(r) * H + head * c, factors[r * h + head], c, false);
            std::memcpy(at, channel_, sizeof(T) * c);
        }
}

// Channels i and i + c / 2 of every head by their position's angles; `way` -1 turns back.
template <typename T> void LayeredLane<T>::turn_rows(T *rows, int l, int count, T way, bool ends) const {
    const int half = c / 2;
    for (int r = 0; r < count; r++) {
        const std::ptrdiff_t offset = position_of(ends ? row_of(l, r) : r) * std::ptrdiff_t(half);
        const T *__restrict cosine = cosines_ + offset, *__restrict sine = sines_ + offset;
        for (int head = 0; head < h; head++) {
            T *__restrict first = rows + std::ptrdiff_t(r) * H + head * c, *__restrict second = first + half;
            for (int e = 0; e < half; e++) {
                const T a = first[e], b = second[e], turn = way * sine[e];
                first[e] = multiply_add(a, cosine[e], -b * turn);
                second[e] = multiply_add(a, turn, b * cosine[e]);
            }
        }
    }
}

} // namespace layered
