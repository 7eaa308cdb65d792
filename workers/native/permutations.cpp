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

// `out` [L][rows][room]: in each row the first lengths[lane] entries of a permutation of 0 .. sizes[lane]-1, from words
// [rows][size] of the lane's stream, compared as signed numbers; then -1.
extern "C" void permutations(int lanes, int rows, int room, const int64_t *states, const int64_t *sizes,
                             const int64_t *lengths, int64_t *out) {
    std::vector<int64_t> keys, order;
    for (int lane = 0; lane < lanes; lane++) {
        const int size = int(sizes[lane]), length = int(lengths[lane]);
        keys.assign(size + 8, std::numeric_limits<int64_t>::max());
        for (int row = 0; row < rows; row++) {
            for (int i = 0; i < size; i++) keys[i] = int64_t(splitmix_word(states[lane], uint64_t(row) * size + i));
            if (size <= FEW)
                order_few(keys.data(), size, length, out);
            else
                order_many(keys.data(), size, length, out, order);
            std::fill(out + length, out + room, -1);
            out += room;
        }
    }
}
