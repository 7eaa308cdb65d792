// Random games of Othello, as workers/data/othello/board.py plays them: eight games side by side in vector registers.

#include <algorithm>
#include <cstdint>

#include "splitmix.hpp"

namespace {

constexpr int TOGETHER = 8, SQUARES = 64;
constexpr uint64_t BLACK = 1ull << 28 | 1ull << 35, WHITE = 1ull << 27 | 1ull << 36;
constexpr uint64_t EVERYWHERE = ~0ull, INNER_COLUMNS = 0x7E7E7E7E7E7E7E7Eull;
typedef uint64_t Boards __attribute__((vector_size(TOGETHER * sizeof(uint64_t))));

template <int SHIFT> Boards moved(Boards boards) {
    if constexpr (SHIFT > 0) return boards << SHIFT;
    else return boards >> -SHIFT;
}

// The runs of `through` that begin next to `from`, in one direction. Runs have at most six discs.
template <int SHIFT> Boards runs(Boards from, Boards through) {
    Boards found = through & moved<SHIFT>(from);
    found |= through & moved<SHIFT>(found);
    through &= moved<SHIFT>(through);
    found |= through & moved<2 * SHIFT>(found);
    found |= through & moved<2 * SHIFT>(found);
    return found;
}

template <int SHIFT> Boards landings(Boards own, Boards other, uint64_t columns) {
    return moved<SHIFT>(runs<SHIFT>(own, other & columns));
}

Boards legal_moves(Boards own, Boards other) {
    const Boards found = landings<1>(own, other, INNER_COLUMNS) | landings<-1>(own, other, INNER_COLUMNS) |
                         landings<8>(own, other, EVERYWHERE) | landings<-8>(own, other, EVERYWHERE) |
                         landings<7>(own, other, INNER_COLUMNS) | landings<-7>(own, other, INNER_COLUMNS) |
                         landings<9>(own, other, INNER_COLUMNS) | landings<-9>(own, other, INNER_COLUMNS);
    return found & ~(own | other);
}

template <int SHIFT> Boards turned_along(Boards own, Boards other, Boards move, uint64_t columns) {
    const Boards run = runs<SHIFT>(move, other & columns);
    return run & Boards((moved<SHIFT>(run) & own) != 0);  // all ones where it ends at an own disc
}

Boards turned(Boards own, Boards other, Boards move) {
    return turned_along<1>(own, other, move, INNER_COLUMNS) | turned_along<-1>(own, other, move, INNER_COLUMNS) |
           turned_along<8>(own, other, move, EVERYWHERE) | turned_along<-8>(own, other, move, EVERYWHERE) |
           turned_along<7>(own, other, move, INNER_COLUMNS) | turned_along<-7>(own, other, move, INNER_COLUMNS) |
           turned_along<9>(own, other, move, INNER_COLUMNS) | turned_along<-9>(own, other, move, INNER_COLUMNS);
}

bool any(Boards boards) {
    uint64_t all = 0;
    for (int game = 0; game < TOGETHER; game++) all |= boards[game];
    return all;
}

struct Positions {
    Boards own, other, legal;

    // Where the side to move cannot move, the other side does, if it can.
    void pass() {
        const Boards stuck = Boards(legal == 0);
        if (!any(stuck)) return;
        const Boards theirs = legal_moves(other, own) & stuck, passing = Boards(theirs != 0);
        const Boards swapped = (own ^ other) & passing;
        own ^= swapped;
        other ^= swapped;
        legal |= theirs;
    }

    void play(Boards move) {
        const Boards discs = turned(own, other, move);
        const Boards mine = own | discs | move;
        own = other & ~discs;
        other = mine;
        legal = legal_moves(own, other);
        pass();
    }
};

// The square of one of the moves, each equally likely, by the upper half of a random word; `legal` is not 0.
int chosen(uint64_t legal, uint64_t word) {
    const uint64_t count = uint64_t(__builtin_popcountll(legal));
    for (uint64_t skipped = (word >> 32) * count >> 32; skipped; skipped--) legal &= legal - 1;
    return __builtin_ctzll(legal);
}

// 1 .. 60 for the squares without the four in the centre.
uint8_t token(int square) { return uint8_t(square + 1 - 2 * (square > 28) - 2 * (square > 36)); }

void play_together(const uint64_t *states, int games, int plies, uint8_t *tokens, uint64_t *legal) {
    Positions positions{Boards{} + BLACK, Boards{} + WHITE, {}};
    positions.legal = legal_moves(positions.own, positions.other);
    for (int ply = 0; ply < plies; ply++) {
        Boards move{};
        for (int game = 0; game < games; game++) {
            const uint64_t choices = positions.legal[game];
            legal[game * plies + ply] = choices;
            tokens[game * plies + ply] = 0;
            if (!choices) continue;
            const int square = chosen(choices, splitmix_word(states[game], uint64_t(ply)));
            tokens[game * plies + ply] = token(square);
            move[game] = 1ull << square;
        }
        positions.play(move);
    }
}

} // namespace

// Games [games][plies] of tokens, and the legal moves [games][plies] before each ply as bits; 0 once a game has ended.
// Ply p of a game draws word p of the stream with the game's state.
extern "C" void othello(int64_t games, int plies, const uint64_t *states, uint8_t *tokens, uint64_t *legal) {
    for (int64_t first = 0; first < games; first += TOGETHER) {
        const int count = int(std::min<int64_t>(TOGETHER, games - first));
        play_together(states + first, count, plies, tokens + first * plies, legal + first * plies);
    }
}
