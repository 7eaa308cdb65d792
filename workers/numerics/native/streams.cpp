// States of random streams and thresholds of dropout, as workers/numerics/randomness.py has them.
#include <cmath>

#include "splitmix.hpp"

// `out` [L]: Streams.of the lanes with these seeds at their own steps; `tag` says purpose and site.
extern "C" void stream_states(int lanes, int64_t tag, const int64_t *seeds, const int64_t *steps, int64_t *out) {
    for (int lane = 0; lane < lanes; lane++) {
        const uint64_t tagged = splitmix_mix(uint64_t(seeds[lane]) + uint64_t(tag));
        out[lane] = int64_t(splitmix_mix(tagged + uint64_t(steps[lane]) * GOLDEN));
    }
}

// `out` [L] and `thresholds` [L]: dropout_streams_and_thresholds of streams with these states and rates.
extern "C" void dropout_streams_and_thresholds(int lanes, const int64_t *states, const double *rates, int64_t *out, uint8_t *thresholds) {
    for (int lane = 0; lane < lanes; lane++) {
        const double dither = (double(splitmix_word(uint64_t(states[lane]), 0) >> 11) + 0.5) * 0x1p-53;
        out[lane] = int64_t(uint64_t(states[lane]) + GOLDEN);
        thresholds[lane] = uint8_t(std::floor(256 * rates[lane] + dither));
    }
}

// `states` and `thresholds` [L, count], written at the `places` [k] of sites with these tags [k] and rates [k, L].
extern "C" void site_streams(int lanes, int sites, int count, const int64_t *tags, const int64_t *places, const double *rates, const int64_t *seeds, const int64_t *steps, int64_t *states, uint8_t *thresholds) {
    for (int lane = 0; lane < lanes; lane++) {
        for (int site = 0; site < sites; site++) {
            const int64_t place = int64_t(lane) * count + places[site];
            int64_t state;
            stream_states(1, tags[site], seeds + lane, steps + lane, &state);
            dropout_streams_and_thresholds(1, &state, rates + int64_t(site) * lanes + lane, states + place, thresholds + place);
        }
    }
}
