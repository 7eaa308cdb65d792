// What trials draw on a GPU, a kernel each: the numbers of workers/numerics/randomness.py, which says what they are, to the bit.
//
// A kernel is one function of i for i = 0 .. count - 1, a thread for each; with GRAFT_EMULATED a processor does them in turn.
//
// Legend: L lanes, n words.

typedef long long Int;
typedef unsigned long long Word;
typedef unsigned char Byte;

#ifdef GRAFT_EMULATED
#define __device__
#define KERNEL(name, count, arguments)                                                                                         \
    static void name##_at(Int i, UNPACK arguments);                                                                            \
    extern "C" void name(UNPACK arguments) {                                                                                   \
        for (Int i = 0; i < (count); i++) name##_at(i, NAMES_##name);                                                          \
    }                                                                                                                          \
    static void name##_at(Int i, UNPACK arguments)
#else
#define KERNEL(name, count, arguments)                                                                                         \
    __device__ inline void name##_at(Int i, UNPACK arguments);                                                                 \
    extern "C" __global__ void name(UNPACK arguments) {                                                                        \
        const Int i = Int(blockIdx.x) * blockDim.x + threadIdx.x;                                                              \
        if (i < (count)) name##_at(i, NAMES_##name);                                                                           \
    }                                                                                                                          \
    __device__ inline void name##_at(Int i, UNPACK arguments)
#endif
#define UNPACK(...) __VA_ARGS__

constexpr Word GOLDEN = 0x9E3779B97F4A7C15u;

__device__ inline Word mix(Word z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
__device__ inline Word word(Word state, Int i) { return mix(state + Word(i + 1) * GOLDEN); }

// States [L] of the streams that a purpose and a site have, at each lane's step; `tag`: of both.
#define NAMES_stream_states lanes, tag, seeds, steps, states
KERNEL(stream_states, lanes, (int lanes, int tag, const Word *seeds, const Word *steps, Word *states)) {
    states[i] = mix(mix(seeds[i] + Word(tag) * GOLDEN) + steps[i] * GOLDEN);
}

// Words [L][n].
#define NAMES_stream_words lanes, count, states, words
KERNEL(stream_words, Int(lanes) * count, (int lanes, int count, const Word *states, Word *words)) {
    words[i] = word(states[i / count], i % count);
}

// What dropout keeps [L][n], of rates [L]: eight bytes of a word decide eight elements.
#define NAMES_stream_mask lanes, count, states, rates, kept
KERNEL(stream_mask, Int(lanes) * ((count + 7) / 8), (int lanes, int count, const Word *states, const double *rates, bool *kept)) {
    const int words = (count + 7) / 8, lane = int(i / words), own = int(i % words);
    const double dither = (double(word(states[lane], 0) >> 11) + 0.5) * 0x1p-53;
    const Byte threshold = Byte(256 * rates[lane] + dither);
    const Word bytes = word(states[lane] + GOLDEN, own);
    for (int n = 0; n < 8 && own * 8 + n < count; n++)
        kept[Int(lane) * count + own * 8 + n] = Byte(bytes >> 8 * n) >= threshold;
}

// The first entries [L][rows][length] of permutations of 0 .. size - 1, each by the order of its key; -1 behind a lane's own length.
// `sizes` and `lengths` [L]: the lanes' own.
#define NAMES_stream_permutations lanes, rows, size, length, states, sizes, lengths, drawn
KERNEL(stream_permutations, Int(lanes) * rows * (size > length ? size : length),
       (int lanes, int rows, int size, int length, const Word *states, const Int *sizes, const Int *lengths, Int *drawn)) {
    const int most = size > length ? size : length, entry = int(i % most), row = int(i / most % rows);
    const int lane = int(i / most / rows), own_size = int(sizes[lane]), own_length = int(lengths[lane]);
    Int *const order = drawn + (Int(lane) * rows + row) * length;
    if (entry >= own_length && entry < length) order[entry] = -1;
    if (entry >= own_size) return;
    const Word state = states[lane];
    const Int first = Int(row) * own_size, key = Int(word(state, first + entry));
    int place = 0;
    for (int other = 0; other < own_size; other++) place += Int(word(state, first + other)) < key;
    if (place < own_length) order[place] = entry;
}
