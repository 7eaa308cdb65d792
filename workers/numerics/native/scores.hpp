// A head's scorer: generated functions from a row of scaled logits to a row of weights and back (workers/numerics/rows), the
// numbers that they are given and the sums that they add to. One query's keys are a row; the first of them are visible,
// and the others weigh exactly 0.
#pragma once
#include "given.hpp"

namespace registers {

// Where the functions are, and what they need: as `RowFunctions.described` of workers/networks/gradients/scoring.py.
enum ScorerField {
    WEIGH_ALONG, WEIGH_BESIDE, GRADIENT_ALONG, GRADIENT_BESIDE, FINISH, GIVEN, LEARNED, KEPT, TOTALS, READS_LOGITS,
    SCORER_FIELDS
};

template <typename T> class Scorer : public Given<T> {
    using Given<T>::given_, Given<T>::added_, Given<T>::totals_, Given<T>::numbers, Given<T>::added, Given<T>::clear;

  public:
    int kept = 0;              // numbers of a row that the gradient needs beside weights
    bool reads_logits = false; // the gradient needs them

    void take(const int64_t *described, const int64_t *offsets) {
        weigh_[0] = reinterpret_cast<Weigh>(described[WEIGH_ALONG]);
        weigh_[1] = reinterpret_cast<Weigh>(described[WEIGH_BESIDE]);
        gradient_[0] = reinterpret_cast<Gradient>(described[GRADIENT_ALONG]);
        gradient_[1] = reinterpret_cast<Gradient>(described[GRADIENT_BESIDE]);
        kept = int(described[KEPT]), reads_logits = described[READS_LOGITS];
        this->lay_out(described[FINISH], described[GIVEN], described[LEARNED], described[TOTALS], offsets);
    }
    bool is_like(const Scorer &other) const { return weigh_[0] == other.weigh_[0]; }

    // Rows whose keys lie along registers: `rows` of them, `stride` numbers apart, of which row i has visible[i] visible
    // keys and `all_keys` that are there; zeros are written up to `end` numbers.
    void weigh(const T *logits, T *weights, T *kept, std::ptrdiff_t stride, const int *visible, int rows, int all_keys,
               int end) const {
        weigh_[0](numbers(given_), logits, weights, kept, stride, visible, rows, all_keys, end / W<T>);
    }
    // The gradient by logits in place of that by weights.
    void weigh_gradient(const T *logits, const T *weights, const T *kept, T *gradient, std::ptrdiff_t stride,
                        const int *visible, int rows, int all_keys, int end) {
        clear();
        gradient_[0](numbers(given_), logits, weights, kept, gradient, added(), stride, visible, rows, all_keys, end / W<T>);
        this->add_up();
    }

    // W rows beside one another, `end` registers long; `given` of `gather`, or null where all rows are of this head.
    void weigh_beside(const T *given, const T *logits, T *weights, T *kept, std::ptrdiff_t stride, const int *visible,
                      int rows, int all_keys, int end) const {
        weigh_[1](given ? given : numbers(given_), logits, weights, kept, stride, visible, rows, all_keys, end);
    }
    // What is added to the totals stays in `added`, a register each: a place belongs to the head of its row.
    void weigh_gradient_beside(const T *given, const T *logits, const T *weights, const T *kept, T *gradient,
                               std::ptrdiff_t stride, const int *visible, int rows, int all_keys, int end) {
        clear();
        gradient_[1](given ? given : numbers(given_), logits, weights, kept, gradient, added(), stride, visible, rows,
                     all_keys, end);
    }
    void add_place(const Scorer &from, int place) {
        for (std::size_t n = 0; n < totals_.size(); n++) totals_[n] += double(from.added_[n][place]);
    }
    void add_places(V<T> counted) { // those where `counted` is 1, not 0
        for (std::size_t n = 0; n < totals_.size(); n++) totals_[n] += double(sum<T>(added_[n] * counted));
    }
    // Its numbers in one place of registers.
    void gather(V<T> *given, int place) const {
        for (std::size_t n = 0; n + 1 < given_.size(); n++) given[n][place] = given_[n][0];
    }

  private:
    typedef void (*Weigh)(const T *, const T *, T *, T *, std::ptrdiff_t, const int *, int, int, int);
    typedef void (*Gradient)(const T *, const T *, const T *, const T *, T *, T *, std::ptrdiff_t, const int *, int, int,
                             int);
    Weigh weigh_[2] = {};
    Gradient gradient_[2] = {};
};

} // namespace registers
