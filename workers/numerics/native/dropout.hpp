// Dropout by counter: byte i of a lane's stream decides element i of a site's mask (workers/numerics/randomness.py, keep_mask).
// minimal.hpp draws the same bytes of a whole site at once, in `Dropout`.
#pragma once
#include "registers.hpp"
#include "splitmix.hpp"

namespace registers {

template <typename T> struct DropoutSite {
    bool on = false;
    uint64_t state = 0;
    uint8_t threshold = 0; // an element is dropped if its byte is below
    T scale = 1;           // 1 / (1 - rate)

    // Bytes first .. first + count - 1 of the stream, at `to`, which has room for 16 more.
    void draw(uint8_t *to, std::size_t first, std::size_t count) const {
        const std::size_t word = first / 8, skipped = first % 8, words = (skipped + count + 7) / 8;
        if (!skipped) {
            for (std::size_t i = 0; i < words; i++) {
                const uint64_t drawn = splitmix_word(state, word + i);
                std::memcpy(to + 8 * i, &drawn, 8);
            }
            return;
        }
        std::size_t done = 0;
        for (std::size_t i = 0; i < words; i++) {
            const uint64_t drawn = splitmix_word(state, word + i);
            uint8_t bytes[8];
            std::memcpy(bytes, &drawn, 8);
            for (std::size_t n = i ? 0 : skipped; n < 8 && done < count; n++) to[done++] = bytes[n];
        }
    }

    // A row's numbers, scaled or dropped.
    void drop(T *__restrict row, const uint8_t *__restrict bytes, int count) const {
        const uint8_t least = threshold;
        const T factor = scale;
        for (int c = 0; c < count; c++) row[c] = bytes[c] >= least ? row[c] * factor : T(0);
    }
};

} // namespace registers
