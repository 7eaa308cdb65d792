// Which sequences a block holds, and what each of its rows is.
#pragma once
#include "layered_lane.hpp"

namespace layered {

// From sequence `first` on as many as fit; the number of the next one.
template <typename T> int LayeredLane<T>::take_block(int first) {
    sequences_.clear(), last_.clear(), all_positions_.clear(), last_positions_.clear(), row_numbers_.clear();
    loss_rows_.clear();
    rows_ = 0;
    int n = first;
    for (; n < N; n++) {
        int used = s;
        if (plan_.causal) // what follows the last position with loss changes nothing
            while (used > 0 && !has_loss(n * s + used - 1)) used--;
        if (rows_ + used > most_) break;
        Sequence one;
        one.number = n, one.first = one.first_query = rows_, one.keys = one.queries = used;
        one.seen = lengths_ ? int(std::min<int64_t>(std::max<int64_t>(lengths_[n], 1), s)) : s;
        Sequence end = one;
        end.first_query = int(loss_rows_.size());
        for (int i = 0; i < used; i++) {
            all_positions_.push_back(i);
            row_numbers_.push_back(int64_t(n) * s + i);
            if (!has_loss(n * s + i)) continue;
            loss_rows_.push_back(rows_ + i);
            last_positions_.push_back(i);
        }
        end.queries = int(loss_rows_.size()) - end.first_query;
        rows_ += used;
        if (!used) continue;
        sequences_.push_back(one), last_.push_back(end);
    }
    for (Sequence &one : sequences_) one.positions = all_positions_.data() + one.first_query;
    for (Sequence &one : last_) one.positions = last_positions_.data() + one.first_query;
    narrow_ = !(plan_.canon & (AT_B | AT_C | AT_D)) && int(loss_rows_.size()) < rows_;
    return n;
}

// Bytes of a site for all rows of the block, `d` a row.
template <typename T> void LayeredLane<T>::draw(const DropoutSite<T> &site, uint8_t *bytes) const {
    for (const Sequence &one : sequences_)
        site.draw(bytes_of(one, bytes), std::size_t(one.number) * s * d, std::size_t(one.keys) * d);
}

template <typename T>
void LayeredLane<T>::drop(const DropoutSite<T> &site, T *rows, const uint8_t *bytes, int layer, int count) const {
    for (int i = 0; i < count; i++)
        site.drop(rows + std::ptrdiff_t(i) * D, bytes + std::ptrdiff_t(row_of(layer, i)) * d, d);
}

template <typename T> void LayeredLane<T>::add(T *to, const T *from, int stride) {
    for (int e = 0; e < stride; e += W<T>) store<T>(to + e, load<T>(to + e) + load<T>(from + e));
}

} // namespace layered
