// What generated functions of rows (workers/numerics/rows) are given beside rows, and the sums that they add to: numbers that
// are learned, with their gradient, and knobs.
#pragma once
#include <vector>

#include "registers.hpp"

namespace registers {

template <typename T> class Given {
  public:
    int learned = 0, knobs = 0; // numbers that are learned, and those that are told

    void read_knobs(const T *values) {
        for (int n = 0; n < knobs; n++) given_[learned + n] = all(values[n]);
    }
    void read(const T *parameters) {
        for (int n = 0; n < learned; n++) given_[n] = all(parameters[offsets_[n]]);
        totals_.assign(totals_.size(), 0.0);
    }
    // Adds the gradient of what is learned to the lane's.
    void write(T *gradient) const {
        if (!learned) return;
        std::vector<V<T>> totals(totals_.size() + 1), found(learned + 1);
        for (std::size_t n = 0; n < totals_.size(); n++) totals[n] = all(T(totals_[n]));
        finish_(numbers(given_), numbers(totals), reinterpret_cast<T *>(found.data()));
        for (int n = 0; n < learned; n++) gradient[offsets_[n]] += found[n][0];
    }

  protected:
    typedef void (*Finish)(const T *, const T *, T *);
    Finish finish_ = nullptr;
    std::vector<int64_t> offsets_; // [learned] in the lane's parameters
    std::vector<V<T>> given_;     // [learned + knobs], and one to spare: an empty vector has no address
    std::vector<V<T>> added_;
    std::vector<double> totals_;

    void lay_out(int64_t finish, int64_t given, int64_t learned_, int64_t totals, const int64_t *offsets) {
        finish_ = reinterpret_cast<Finish>(finish);
        learned = int(learned_), knobs = int(given) - learned;
        offsets_.assign(offsets, offsets + learned);
        given_.resize(given + 1);
        added_.resize(totals + 1), totals_.resize(totals);
    }
    static const T *numbers(const std::vector<V<T>> &values) { return reinterpret_cast<const T *>(values.data()); }
    T *added() { return reinterpret_cast<T *>(added_.data()); }
    void clear() { added_.assign(added_.size(), V<T>{}); }
    void add_up() {
        for (std::size_t n = 0; n < totals_.size(); n++) totals_[n] += double(sum<T>(added_[n]));
    }
};

} // namespace registers
