// Random permutations: the order of random words, as Streams.permutations in workers/randomness.py has them.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "splitmix.hpp"

namespace {

constexpr int FEW = 64;

// Every key's rank by comparing it with all others: no branch to mispredict, eight comparisons at once.
void order_few(const int64_t *keys, int size, int length, int64_t *out) {
    const int padded = (size + 7) / 8 * 8;
    for (int i = 0; i < size; i++) {
        int64_t rank = 0;
        for (int j = 0; j < padded; j++) rank += keys[j] < keys[i];
        if (rank < length) out[rank] = i;
    }
}

void order_many(const int64_t *keys, int size, int length, int64_t *out, std::vector<int64_t> &order) {
    order.resize(size);
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + length, order.end(),
                      [keys](int64_t a, int64_t b) { return keys[a] < keys[b]; });
    std::copy_n(order.begin(), length, out);
}

} // namespace

// `out` [L][rows][length]: in each row the first entries of a permutation of 0 .. size-1, from words [rows][size] of
// the lane's stream, compared as signed numbers.
extern "C" void permutations(const int64_t *states, int lanes, int rows, int size, int length, int64_t *out) {
    std::vector<int64_t> keys(size + 8, std::numeric_limits<int64_t>::max()), order;
    for (int lane = 0; lane < lanes; lane++)
        for (int row = 0; row < rows; row++) {
            for (int i = 0; i < size; i++) keys[i] = int64_t(splitmix_word(states[lane], uint64_t(row) * size + i));
            if (size <= FEW)
                order_few(keys.data(), size, length, out);
            else
                order_many(keys.data(), size, length, out, order);
            out += length;
        }
}
