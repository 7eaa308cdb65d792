// Products of row-major matrices in tiles whose sums stay in registers.
//
//     Y[i][e] = start + sum over c of A(i, c) B[c][e]
//
// A tile is TILE_ROWS rows by two registers of columns: with AVX-512 14 x 2 sums, two registers of B and one for the
// number of A that all of a row's sums are multiplied by, out of 32. Each number of B is then loaded once per 14 rows and
// each of A once per two registers of columns, so that loads keep up with the multipliers. Every sum runs over c in
// ascending order, whatever the tile is: bits depend on the numbers alone.
//
// B is read in panels of two registers' columns: rows of a learned matrix are packed so (`Matrix`), which keeps a panel in
// the first-level cache and its lines next to one another; other matrices are read where they are.
#pragma once
#include <algorithm>

#include "registers.hpp"

namespace registers {

#if defined(__AVX512F__) || defined(__aarch64__) || defined(GRAFT_REGISTER_BYTES)
constexpr int TILE_ROWS = 14;
#else
constexpr int TILE_ROWS = 6; // 12 sums of 16 registers
#endif
template <typename T> constexpr int PANEL = 2 * W<T>;

// How A(i, c) lies in memory: row by row, or transposed.
enum class Side { rows, columns };

// What sums start from: `from` [i * step + e * along]. A step of 0: a row that all rows share.
template <typename T> struct Start {
    const T *from;
    std::ptrdiff_t step, along = 1;
    Start at(int column) const { return {from + along * column, step, along}; }
};
// Hidden, or all libraries of a process would share the first one's table, which may be of narrower registers.
template <typename T> __attribute__((visibility("hidden"))) inline Start<T> zero() {
    alignas(LINE_BYTES) static const T zeros[PANEL<T>] = {};
    return {zeros, 0, 0};
}

// A's rows one after another in strips of TI rows, each of which is multiplied by TE registers' columns of B.
template <typename T, int TI, int TE, Side SIDE>
void multiply_strips(int strips, T *y, std::ptrdiff_t y_stride, const T *a, std::ptrdiff_t a_stride, const T *b,
                     std::ptrdiff_t b_stride, int count, Start<T> start) {
    const std::ptrdiff_t a_step = SIDE == Side::rows ? TI * a_stride : TI;
    for (; strips > 0; strips--, y += TI * y_stride, a += a_step, start.from += TI * start.step) {
        V<T> sums[TI][TE];
#pragma GCC unroll 28
        for (int n = 0; n < TI * TE; n++) sums[n / TE][n % TE] = load<T>(start.from + n / TE * start.step + n % TE * W<T>);
        const T *from = a, *by = b;
        int c = count;
        do { // a loop that may end before it starts costs copies of all sums
            V<T> factors[TE];
#pragma GCC unroll 2
            for (int e = 0; e < TE; e++) factors[e] = load<T>(by + e * W<T>);
#pragma GCC unroll 14
            for (int i = 0; i < TI; i++) {
                const V<T> number = all<T>(SIDE == Side::rows ? from[i * a_stride] : from[i]);
#pragma GCC unroll 2
                for (int e = 0; e < TE; e++) sums[i][e] = multiply_add(number, factors[e], sums[i][e]);
            }
            from += SIDE == Side::rows ? 1 : a_stride;
            by += b_stride;
        } while (--c);
#pragma GCC unroll 28
        for (int n = 0; n < TI * TE; n++) store<T>(y + n / TE * y_stride + n % TE * W<T>, sums[n / TE][n % TE]);
    }
}

// The same of a height that is known only here.
template <typename T, int TE, Side SIDE, int TI = TILE_ROWS>
inline void multiply_strips_of(int height, int strips, T *y, std::ptrdiff_t y_stride, const T *a, std::ptrdiff_t a_stride,
                               const T *b, std::ptrdiff_t b_stride, int count, Start<T> start) {
    if constexpr (TI > 0) {
        if (height == TI)
            multiply_strips<T, TI, TE, SIDE>(strips, y, y_stride, a, a_stride, b, b_stride, count, start);
        else
            multiply_strips_of<T, TE, SIDE, TI - 1>(height, strips, y, y_stride, a, a_stride, b, b_stride, count, start);
    }
}

// Rows in strips as even as can be, as a low tile leaves multipliers idle: first those that are a row higher.
struct Strips {
    int count, height, high;
    explicit Strips(int rows) : count((rows + TILE_ROWS - 1) / TILE_ROWS), height(count ? rows / count : 0),
                                high(rows - height * count) {}
    int first(int n) const { return n * height + (n < high ? n : high); }
    int height_of(int n) const { return height + (n < high); }
};

// `strips` strips of one height, times one panel or what is left of it.
template <typename T, Side SIDE>
inline void multiply_panel(int height, int strips, T *y, std::ptrdiff_t y_stride, const T *a, std::ptrdiff_t a_stride,
                           const T *b, std::ptrdiff_t b_stride, int count, int columns, Start<T> start) {
    if (columns > W<T>)
        multiply_strips_of<T, 2, SIDE>(height, strips, y, y_stride, a, a_stride, b, b_stride, count, start);
    else
        multiply_strips_of<T, 1, SIDE>(height, strips, y, y_stride, a, a_stride, b, b_stride, count, start);
}

// Y = start + A B of one strip, in `columns` whole registers; panels of B are `panel_step` numbers apart.
template <typename T, Side SIDE>
inline void multiply_strip(int height, T *y, std::ptrdiff_t y_stride, const T *a, std::ptrdiff_t a_stride, const T *b,
                           std::ptrdiff_t b_stride, std::ptrdiff_t panel_step, int count, int columns,
                           Start<T> start = zero<T>()) {
    for (int e = 0; e < columns; e += PANEL<T>, b += panel_step)
        multiply_panel<T, SIDE>(height, 1, y + e, y_stride, a, a_stride, b, b_stride, count, columns - e,
                                {start.from + start.along * e, start.step});
}

// All rows, times one panel or what is left of it.
template <typename T, Side SIDE>
void multiply(T *y, std::ptrdiff_t y_stride, const T *a, std::ptrdiff_t a_stride, const T *b, std::ptrdiff_t b_stride,
              int rows, int count, int columns, Start<T> start) {
    const Strips strips(rows);
    const int low = strips.first(strips.high); // the first row of the low strips
    if (strips.high)
        multiply_panel<T, SIDE>(strips.height + 1, strips.high, y, y_stride, a, a_stride, b, b_stride, count, columns, start);
    multiply_panel<T, SIDE>(strips.height, strips.count - strips.high, y + low * y_stride, y_stride,
                            a + low * (SIDE == Side::rows ? a_stride : 1), a_stride, b, b_stride, count, columns,
                            {start.from + low * start.step, start.step});
}

constexpr std::size_t LARGE_MODEL_BYTES = std::size_t(1) << 20; // of parameters: a second-level cache

// Room that the matrices of a large model share: they are worked on one after another. Its `rows` are 0 for a small model,
// which has none.
template <typename T> struct Room {
    int rows = 0;        // of a block of activations
    T *part = nullptr;  // a panel of one factor, [most of `rows` and of a matrix's rows and columns][PANEL], or a strip
    T *whole = nullptr; // all of the other, [strip][rows][TILE_ROWS at most] or [panel][rows][PANEL]

    static bool wanted(int64_t parameters) { return sizeof(T) * parameters >= LARGE_MODEL_BYTES; }
    // Of a model of so many parameters, whose widest rows have `width` numbers.
    template <typename Memory> static Room take(Memory &memory, int64_t parameters, int width, int rows) {
        if (!wanted(parameters)) return {};
        Room room{rows};
        room.part = memory.template take<T>(std::size_t(std::max(padded(width, W<T>), rows)) * std::max(PANEL<T>, TILE_ROWS));
        room.whole = memory.template take<T>(std::size_t(padded(width, PANEL<T>)) * rows);
        return room;
    }
    bool there() const { return rows > 0; }
};

// A learned matrix of `inputs` rows, as the kernels read it, and its gradient. Its columns may be two parts side by side
// (a gated activation's), each of which is padded to whole registers.
//
// A small one is packed once a lane, and its gradient is added up in rows that are padded alike. A large one would be in no
// near cache when its panels are read: each is packed where it is used, and its gradient is added up where it belongs.
template <typename T> struct Matrix {
    int inputs = 0, part = 0, parts = 1;
    T *gradient = nullptr; // [inputs][stride]
    std::ptrdiff_t stride = 0;

    int columns() const { return parts * padded(part, W<T>); }
    int last_column() const { return columns() - padded(part, W<T>) + part; } // the first that holds nothing

    // In a large model's room it is read where it lies, unless `packed` asks for panels.
    template <typename Memory>
    void lay_out(Memory &memory, int inputs_, int part_, int parts_ = 1, Room<T> room = {}, bool packed = false) {
        inputs = inputs_, part = part_, parts = parts_, room_ = room;
        large_ = room.there() && !packed && inputs % W<T> == 0 && part % W<T> == 0;
        if (large_) return;
        stride = row_stride<T>(columns());
        panels_ = memory.template take<T>(std::size_t(padded(columns(), PANEL<T>)) * padded(inputs, W<T>));
        turned_ = memory.template take<T>(std::size_t(padded(inputs, PANEL<T>)) * columns());
        gradient = memory.template take<T>(std::size_t(inputs) * stride);
    }

    // From a matrix whose rows are `step` apart, and whose gradient lies alike at `to`; with `transposed`, from one whose
    // columns are this one's rows, which is none that may be large.
    void read(const T *from, T *to, std::ptrdiff_t step, bool transposed = false) {
        if (large_) {
            from_ = from, gradient = to, stride = step;
            return;
        }
        for (int n = 0; n < parts; n++, from += part)
            if (transposed) {
                turn_into(panels_, inputs, 0, from, step, part, inputs);
                copy_into(turned_, columns(), 0, from, step, part, inputs);
            } else {
                copy_into(panels_, inputs, n * padded(part, W<T>), from, step, inputs, part);
                turn_into(turned_, columns(), n * padded(part, W<T>), from, step, inputs, part);
            }
        std::memset(gradient, 0, sizeof(T) * inputs * stride);
    }
    // Adds its gradient to one that lies as `read` says.
    void write(T *__restrict to, std::ptrdiff_t step, bool transposed = false) const {
        if (large_) return;
        const T *__restrict from = gradient;
        if (transposed) {
            for (int e = 0; e < part; e++)
                for (int c = 0; c < inputs; c++) to[e * step + c] += from[c * stride + e];
            return;
        }
        for (int c = 0; c < inputs; c++, from += stride, to += step)
            for (int n = 0; n < parts; n++)
                for (int e = 0; e < part; e++) to[n * part + e] += from[n * padded(part, W<T>) + e];
    }

    // Y = A M (+ bias).
    void apply(T *y, int y_stride, const T *a, int a_stride, int rows, const T *bias) const {
        const Start<T> start = bias ? Start<T>{bias, 0} : zero<T>();
        each_panel(panels_, inputs, columns(), [&](const T *panel, int e, int width) {
            if (large_) copy_into(room_.part, inputs, 0, from_ + e, stride, inputs, width);
            multiply<T, Side::rows>(y + e, y_stride, a, a_stride, panel, PANEL<T>, rows, inputs, width, start.at(e));
        });
    }
    // The gradient by A, from that by Y.
    void apply_turned(T *a, int a_stride, const T *y, int y_stride, int rows, bool add) const {
        const Start<T> start = add ? Start<T>{a, a_stride} : zero<T>();
        each_panel(turned_, columns(), padded(inputs, W<T>), [&](const T *panel, int e, int width) {
            if (large_) turn_into(room_.part, columns(), 0, from_ + e * stride, stride, width, columns());
            multiply<T, Side::rows>(a + e, a_stride, y, y_stride, panel, PANEL<T>, rows, last_column(), width,
                                    start.at(e));
        });
    }
    // Adds the gradient by M of these rows.
    void learn(const T *a, int a_stride, const T *y, int y_stride, int rows) {
        if (room_.there()) return learn_in_room(a, a_stride, y, y_stride, rows);
        each_panel(nullptr, 0, columns(), [&](const T *, int e, int width) {
            multiply<T, Side::columns>(gradient + e, stride, a, a_stride, y + e, y_stride, inputs, rows, width,
                                       {gradient + e, stride});
        });
    }

  private:
    bool large_ = false;
    T *panels_ = nullptr;     // [panel][inputs][PANEL]
    T *turned_ = nullptr;     // the same of the transposed matrix, [panel][columns][PANEL]
    Room<T> room_;
    const T *from_ = nullptr; // a large one: [inputs][stride]

    // The same of a large model. Rows that are kilobytes apart share the lines of a near cache and lie on a page each, so
    // that A's strips and Y's panels are copied together: all of the narrower one, which then stays in the second-level
    // cache, and one after another of the other. The gradient's next tile is asked for in time.
    void learn_in_room(const T *a, int a_stride, const T *y, int y_stride, int rows) {
        const Strips strips(inputs);
        for (; rows > 0; rows -= room_.rows, a += room_.rows * a_stride, y += room_.rows * y_stride) {
            const int here = std::min(rows, room_.rows);
            if (inputs <= columns()) {
                for (int n = 0; n < strips.count; n++)
                    copy_strip(room_.whole + std::ptrdiff_t(strips.first(n)) * here, a, a_stride, strips, n, here);
                for (int e = 0; e < columns(); e += PANEL<T>) {
                    copy_into(room_.part, here, 0, y + e, y_stride, here, std::min(PANEL<T>, columns() - e));
                    for (int n = 0; n < strips.count; n++) {
                        ask_for_tile(strips, n + 1, e);
                        learn_tile(strips, n, e, room_.whole + std::ptrdiff_t(strips.first(n)) * here, room_.part, here);
                    }
                }
            } else {
                copy_into(room_.whole, here, 0, y, y_stride, here, columns());
                for (int n = 0; n < strips.count; n++) {
                    copy_strip(room_.part, a, a_stride, strips, n, here);
                    for (int e = 0; e < columns(); e += PANEL<T>) {
                        ask_for_tile(strips, n, e + PANEL<T>);
                        learn_tile(strips, n, e, room_.part, room_.whole + std::ptrdiff_t(e) * here, here);
                    }
                }
            }
        }
    }
    void learn_tile(const Strips &strips, int n, int e, const T *strip, const T *panel, int rows) {
        T *tile = gradient + strips.first(n) * stride + e;
        const int height = strips.height_of(n);
        multiply_panel<T, Side::columns>(height, 1, tile, stride, strip, height, panel, PANEL<T>, rows, columns() - e,
                                         {tile, stride});
    }
    void ask_for_tile(const Strips &strips, int n, int e) {
        if (n == strips.count || e >= columns()) return;
        for (int i = strips.first(n); i < strips.first(n + 1); i++)
            for (int r = 0; r < 2; r++) __builtin_prefetch(gradient + i * stride + e + r * W<T>, 1);
    }
    // Each row is written in whole registers; what is too much is overwritten by the next.
    void copy_strip(T *to, const T *a, int a_stride, const Strips &strips, int n, int rows) const {
        const int first = strips.first(n), height = strips.height_of(n);
        for (int r = 0; r < rows; r++, a += a_stride, to += height)
            for (int i = 0; i < height; i += W<T>) store<T>(to + i, load_first(a + first + i, inputs - first - i));
    }

    // Of `columns` columns; `packed`: panels of `height` rows each.
    template <typename Use> void each_panel(const T *packed, int height, int columns, Use use) const {
        for (int e = 0; e < columns; e += PANEL<T>)
            use(large_ ? room_.part : packed + std::size_t(e) * height, e, columns - e < PANEL<T> ? columns - e : PANEL<T>);
    }

    // Panels of `height` rows each. Columns from `first` on become those of `from` [rows][columns], padded with zeros.
    static void copy_into(T *panels, int height, int first, const T *from, std::ptrdiff_t step, int rows, int columns) {
        const auto to = [&](int c, int e) { return panels + (std::size_t(e / PANEL<T>) * height + c) * PANEL<T> + e % PANEL<T>; };
        const int whole = columns / W<T> * W<T>;
        for (int c = 0; c < rows; c++, from += step) { // a row's neighbours together: its next row may lie on another page
            for (int e = 0; e < whole; e += W<T>) store<T>(to(c, first + e), load<T>(from + e));
            if (whole < columns) store<T>(to(c, first + whole), load_first(from + whole, columns - whole));
        }
    }
    // Panels of `height` rows each. Rows from `first` on become the columns of `from` [rows][columns].
    static void turn_into(T *panels, int height, int first, const T *from, std::ptrdiff_t step, int rows, int columns) {
        const int whole = columns / W<T> * W<T>;
        for (int c = 0; c < rows; c += W<T>) {
            const int here = rows - c < W<T> ? rows - c : W<T>;
            T *to = panels + (std::size_t(c / PANEL<T>) * height + first) * PANEL<T> + c % PANEL<T>;
            transpose(to, PANEL<T>, from + c * step, step, here, whole);
            if (whole == columns) continue;
            T edge[W<T> * W<T>];
            for (int i = 0; i < here; i++)
                store<T>(edge + i * W<T>, load_first(from + (c + i) * step + whole, columns - whole));
            transpose(to + std::ptrdiff_t(whole) * PANEL<T>, PANEL<T>, edge, W<T>, here, W<T>);
        }
    }
    // The first `count` numbers of a register, or all; nothing behind them is read, as parameters end somewhere.
    static V<T> load_first(const T *from, int count) {
        if (count >= W<T>) return load<T>(from);
        V<T> value = {};
        std::memcpy(&value, from, sizeof(T) * count);
        return value;
    }
};

} // namespace registers
