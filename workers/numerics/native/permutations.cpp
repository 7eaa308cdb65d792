// Random permutations: the order of random words, as Streams.permutations in workers/numerics/randomness.py has them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <numeric>
#include <vector>

#include "splitmix.hpp"

namespace {

constexpr int FEW = 64;
constexpr int TOGETHER = 8;
typedef int64_t Keys __attribute__((vector_size(TOGETHER * sizeof(int64_t))));

// Eight rows side by side, every pair of keys compared once: no branch to mispredict. `keys` [size]; of equal keys the
// first comes first. Writes the first `length` entries of `rows` rows, `room` apart.
void order_few(const Keys *keys, int size, int length, int rows, int room, int64_t *out) {
    Keys ranks[FEW];
    for (int i = 0; i < size; i++) ranks[i] = Keys{} + i;
    for (int i = 0; i < size; i++)
        for (int j = i + 1; j < size; j++) {
            const Keys smaller = keys[j] < keys[i];  // -1 where it is
            ranks[i] -= smaller;
            ranks[j] += smaller;
        }
    int64_t order[FEW];
    for (int row = 0; row < rows; row++, out += room) {
        for (int i = 0; i < size; i++) order[ranks[i][row]] = i;
        std::copy_n(order, length, out);
        std::fill(out + length, out + room, -1);
    }
}

void order_many(const std::vector<int64_t> &keys, int length, int room, int64_t *out, std::vector<int64_t> &order) {
    order.resize(keys.size());
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + length, order.end(),
                      [&keys](int64_t a, int64_t b) { return keys[a] != keys[b] ? keys[a] < keys[b] : a < b; });
    std::copy_n(order.begin(), length, out);
    std::fill(out + length, out + room, -1);
}

} // namespace

// `out` [L][rows][room]: in each row the first lengths[lane] entries of a permutation of 0 .. sizes[lane]-1, from words
// [rows][size] of the lane's stream, compared as signed numbers; then -1. Returns 0, or 1 if memory ran out.
extern "C" int permutations(int lanes, int rows, int room, const int64_t *states, const int64_t *sizes,
                            const int64_t *lengths, int64_t *out) try {
    std::vector<int64_t> keys, order;
    Keys together[FEW];
    for (int lane = 0; lane < lanes; lane++) {
        const int size = int(sizes[lane]), length = std::min(int(lengths[lane]), int(sizes[lane]));
        const auto word = [&](int row, int i) { return int64_t(splitmix_word(states[lane], uint64_t(row) * size + i)); };
        keys.resize(size);
        for (int row = 0; row < rows; row += size <= FEW ? TOGETHER : 1) {
            int64_t *to = out + (std::size_t(lane) * rows + row) * room;
            if (size <= FEW) {
                for (int i = 0; i < size; i++)
                    for (int r = 0; r < TOGETHER; r++) together[i][r] = word(row + r, i);
                order_few(together, size, length, std::min(TOGETHER, rows - row), room, to);
            } else {
                for (int i = 0; i < size; i++) keys[i] = word(row, i);
                order_many(keys, length, room, to, order);
            }
        }
    }
    return 0;
} catch (const std::exception &) {  // no memory left
    return 1;
}
