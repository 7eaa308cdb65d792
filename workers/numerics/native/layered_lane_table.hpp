// Queries, keys and values of the first layer, once for each distinct row of the batch: equal tokens, at equal
// positions where positions are added, give equal rows. In the backward pass the gradients by equal rows are summed
// before they meet the matrices, so that the first layer's maps and norm cost a product over distinct rows alone.
#pragma once
#include "layered_lane.hpp"

namespace layered {

constexpr int MOST_DISTINCT = 2048; // rows of a table, which the blocks read from beyond the second-level cache

template <typename T> void LayeredLane<T>::lay_out_table(Memory &memory) {
    const bool apart = plan_.features || has_dropout(EMBEDDING) || has(AT_A); // rows of equal tokens differ
    most_distinct_ = apart ? 0 : int(std::min<int64_t>(int64_t(N) * s * 2 / 3, MOST_DISTINCT));
    if (!most_distinct_) return;
    const std::size_t U = most_distinct_;
    table_normed_ = {memory.take<T>(U * D), memory.take<T>(U)};
    for (T **rows : {&table_given_, &table_g_}) *rows = memory.take<T>(U * D);
    for (T **rows : {&table_q_, &table_k_, &table_v_, &table_q_g_, &table_k_g_, &table_v_g_})
        *rows = memory.take<T>(U * H);
    kinds_.resize(std::size_t(N) * s), firsts_.resize(U);
}

// Finds the distinct rows. Where they are too many, `distinct_` is 0, and rows are worked on one by one.
template <typename T> void LayeredLane<T>::find_distinct() {
    distinct_ = 0;
    if (!most_distinct_) return;
    const bool placed = plan_.ends[POSITIONS] >= 0 || placed_;
    const int64_t count = int64_t(N) * s, positions = placed ? s : 1;
    kind_of_key_.assign((*std::max_element(tokens_, tokens_ + count) + 1) * positions, -1);
    int found = 0;
    for (int64_t number = 0; number < count; number++) {
        int &kind = kind_of_key_[tokens_[number] * positions + (placed ? number % s : 0)];
        if (kind < 0) {
            if (found == most_distinct_) return;
            firsts_[found] = number, kind = found++;
        }
        kinds_[number] = kind;
    }
    distinct_ = found;
}

template <typename T> void LayeredLane<T>::open_table() {
    find_distinct();
    if (!distinct_) return;
    const Layer<T> &one = layers_[0];
    for (int u = 0; u < distinct_; u++) embed(table_given_ + std::ptrdiff_t(u) * D, firsts_[u]);
    if (plan_.pre_norm)
        norm(table_given_, table_normed_, table_given_, distinct_, one.attention_gain, one.attention_bias);
    one.query.apply(table_q_, H, table_given_, D, distinct_, one.query_bias.values);
    one.key.apply(table_k_, H, table_given_, D, distinct_, one.key_bias.values);
    one.value.apply(table_v_, H, table_given_, D, distinct_, one.value_bias.values);
    for (T *rows : {table_q_g_, table_k_g_, table_v_g_}) std::memset(rows, 0, sizeof(T) * distinct_ * H);
}

template <typename T> void LayeredLane<T>::look_up() {
    Layer<T> &one = layers_[0];
    for (int i = 0; i < ends_of(0); i++)
        std::memcpy(one.q + std::ptrdiff_t(i) * H, table_q_ + kind_of(row_of(0, i)) * H, sizeof(T) * H);
    for (int r = 0; r < rows_; r++) {
        std::memcpy(one.k + std::ptrdiff_t(r) * H, table_k_ + kind_of(r) * H, sizeof(T) * H);
        std::memcpy(one.v + std::ptrdiff_t(r) * H, table_v_ + kind_of(r) * H, sizeof(T) * H);
    }
}

// Adds what a block's rows have in `q_g_`, `k_g_` and `v_g_`.
template <typename T> void LayeredLane<T>::look_up_gradient() {
    for (int i = 0; i < ends_of(0); i++)
        add(table_q_g_ + kind_of(row_of(0, i)) * H, q_g_ + std::ptrdiff_t(i) * H, H);
    for (int r = 0; r < rows_; r++) {
        add(table_k_g_ + kind_of(r) * H, k_g_ + std::ptrdiff_t(r) * H, H);
        add(table_v_g_ + kind_of(r) * H, v_g_ + std::ptrdiff_t(r) * H, H);
    }
}

// From the sums of all blocks to the gradients of the maps, of the norm and of the embedding.
template <typename T> void LayeredLane<T>::close_table() {
    if (!distinct_) return;
    Layer<T> &one = layers_[0];
    learn_maps(one, table_given_, distinct_, table_q_g_, table_given_, distinct_, table_k_g_, table_v_g_);
    one.key.apply_turned(table_g_, D, table_k_g_, H, distinct_, false);
    one.value.apply_turned(table_g_, D, table_v_g_, H, distinct_, true);
    one.query.apply_turned(table_g_, D, table_q_g_, H, distinct_, true);
    if (plan_.pre_norm) norm_gradient(table_g_, table_normed_, distinct_, one.attention_gain, one.attention_bias);
    for (int u = 0; u < distinct_; u++) learn_embedding(table_g_ + std::ptrdiff_t(u) * D, firsts_[u]);
}

} // namespace layered
