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
};
template <typename T> inline Start<T> zero() {
    alignas(LINE_BYTES) static const T zeros[PANEL<T>] = {};
    return {zeros, 0, 0};
}

// A's rows one after another in strips of TI rows, each of which is multiplied by TE registers' columns of B.
// `far`: the numbers are in no near cache, so that those of the next strip are asked for while this one is multiplied.
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

// All rows: panel by panel, as a panel of B is smaller than A.
template <typename T, Side SIDE>
void multiply(T *y, std::ptrdiff_t y_stride, const T *a, std::ptrdiff_t a_stride, const T *b, std::ptrdiff_t b_stride,
              std::ptrdiff_t panel_step, int rows, int count, int columns, Start<T> start) {
    const Strips strips(rows);
    const int low = strips.first(strips.high); // the first row of the low strips
    for (int e = 0; e < columns; e += PANEL<T>, b += panel_step) {
        const T *from = start.from + start.along * e;
        if (strips.high)
            multiply_panel<T, SIDE>(strips.height + 1, strips.high, y + e, y_stride, a, a_stride, b, b_stride, count,
                                    columns - e, {from, start.step});
        multiply_panel<T, SIDE>(strips.height, strips.count - strips.high, y + low * y_stride + e, y_stride,
                                a + low * (SIDE == Side::rows ? a_stride : 1), a_stride, b, b_stride, count, columns - e,
                                {from + low * start.step, start.step});
    }
}

// A learned matrix of `inputs` rows, as the kernels read it, and its gradient. Its columns may be two parts side by side
// (a gated activation's), each of which is padded to whole registers.
template <typename T> struct Matrix {
    int inputs = 0, part = 0, parts = 1;
    T *panels = nullptr;   // [panel][inputs][PANEL]
    T *turned = nullptr;   // the same of the transposed matrix, [panel][columns][PANEL]
    T *gradient = nullptr; // [inputs][stride]
    int stride = 0;

    int columns() const { return parts * padded(part, W<T>); }
    int last_column() const { return columns() - padded(part, W<T>) + part; } // the first that holds nothing

    template <typename Memory> void lay_out(Memory &memory, int inputs_, int part_, int parts_ = 1) {
        inputs = inputs_, part = part_, parts = parts_, stride = row_stride<T>(columns());
        panels = memory.template take<T>(std::size_t(padded(columns(), PANEL<T>)) * padded(inputs, W<T>));
        turned = memory.template take<T>(std::size_t(padded(inputs, PANEL<T>)) * columns());
        gradient = memory.template take<T>(std::size_t(inputs) * stride);
    }

    // From a matrix whose rows are `step` apart; with `transposed`, from one whose columns are this one's rows.
    void read(const T *from, std::ptrdiff_t step, bool transposed = false) {
        for (int n = 0; n < parts; n++, from += part)
            if (transposed) {
                turn_into(panels, inputs, 0, from, step, part, inputs);
                copy_into(turned, columns(), 0, from, step, part, inputs);
            } else {
                copy_into(panels, inputs, n * padded(part, W<T>), from, step, inputs, part);
                turn_into(turned, columns(), n * padded(part, W<T>), from, step, inputs, part);
            }
        std::memset(gradient, 0, sizeof(T) * inputs * stride);
    }
    // Adds its gradient to one that lies as `read` says.
    void write(T *__restrict to, std::ptrdiff_t step, bool transposed = false) const {
        const T *__restrict from = gradient;
        if (transposed) {
            for (int e = 0; e < part; e++)
                for (int c = 0; c < inputs; c++) to[e * step + c] += from[std::ptrdiff_t(c) * stride + e];
            return;
        }
        for (int c = 0; c < inputs; c++, from += stride, to += step)
            for (int n = 0; n < parts; n++)
                for (int e = 0; e < part; e++) to[n * part + e] += from[n * padded(part, W<T>) + e];
    }

    // Y = A M (+ bias).
    void apply(T *y, int y_stride, const T *a, int a_stride, int rows, const T *bias) const {
        multiply<T, Side::rows>(y, y_stride, a, a_stride, panels, PANEL<T>, std::ptrdiff_t(inputs) * PANEL<T>, rows,
                                inputs, columns(), bias ? Start<T>{bias, 0} : zero<T>());
    }
    // The gradient by A, from that by Y.
    void apply_turned(T *a, int a_stride, const T *y, int y_stride, int rows, bool add) const {
        multiply<T, Side::rows>(a, a_stride, y, y_stride, turned, PANEL<T>, std::ptrdiff_t(columns()) * PANEL<T>, rows,
                                last_column(), padded(inputs, W<T>), add ? Start<T>{a, a_stride} : zero<T>());
    }
    // Adds the gradient by M of these rows.
    void learn(const T *a, int a_stride, const T *y, int y_stride, int rows) {
        multiply<T, Side::columns>(gradient, stride, a, a_stride, y, y_stride, PANEL<T>, inputs, rows, columns(),
                                   {gradient, stride});
    }

  private:
    // Panels of `height` rows each. Columns from `first` on become those of `from` [rows][columns], padded with zeros.
    static void copy_into(T *panels, int height, int first, const T *from, std::ptrdiff_t step, int rows, int columns) {
        for (int e = 0; e < columns; e += W<T>) {
            T *to = panels + std::size_t((first + e) / PANEL<T>) * height * PANEL<T> + (first + e) % PANEL<T>;
            for (int c = 0; c < rows; c++, to += PANEL<T>) store<T>(to, load_within<T>(from + c * step + e, e, columns));
        }
    }
    // Panels of `height` rows each. Rows from `first` on become the columns of `from` [rows][columns].
    static void turn_into(T *panels, int height, int first, const T *from, std::ptrdiff_t step, int rows, int columns) {
        for (int c = 0; c < rows; c += W<T>) {
            T *to = panels + (std::size_t(c / PANEL<T>) * height + first) * PANEL<T> + c % PANEL<T>;
            transpose(to, PANEL<T>, from + c * step, step, rows - c < W<T> ? rows - c : W<T>, columns);
        }
    }
};

} // namespace registers
