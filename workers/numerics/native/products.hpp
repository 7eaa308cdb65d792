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

// What sums start from: zero, what Y holds, or a row that all rows share.
enum class Start { zero, sum, row };

template <typename T, int TI, int TE, Side SIDE>
inline void tile(T *y, std::ptrdiff_t y_stride, const T *a, std::ptrdiff_t a_stride, const T *b, std::ptrdiff_t b_stride,
                 int count, Start start, const T *row) {
    V<T> sums[TI][TE];
    if (start == Start::zero) {
#pragma GCC unroll 28
        for (int n = 0; n < TI * TE; n++) sums[n / TE][n % TE] = V<T>{};
    } else {
        const T *from = start == Start::sum ? y : row;
        const std::ptrdiff_t step = start == Start::sum ? y_stride : 0;
#pragma GCC unroll 28
        for (int n = 0; n < TI * TE; n++) sums[n / TE][n % TE] = load<T>(from + n / TE * step + n % TE * W<T>);
    }
    for (int c = 0; c < count; c++) {
        V<T> factors[TE];
#pragma GCC unroll 2
        for (int e = 0; e < TE; e++) factors[e] = load<T>(b + c * b_stride + e * W<T>);
#pragma GCC unroll 14
        for (int i = 0; i < TI; i++) {
            const V<T> number = all<T>(SIDE == Side::rows ? a[i * a_stride + c] : a[c * a_stride + i]);
#pragma GCC unroll 2
            for (int e = 0; e < TE; e++) sums[i][e] += number * factors[e];
        }
    }
#pragma GCC unroll 28
    for (int n = 0; n < TI * TE; n++) store<T>(y + n / TE * y_stride + n % TE * W<T>, sums[n / TE][n % TE]);
}

// Rows of one tile's height and one panel's columns.
template <typename T, int TE, Side SIDE, int TI = TILE_ROWS>
inline void tile_of(int height, T *y, std::ptrdiff_t y_stride, const T *a, std::ptrdiff_t a_stride, const T *b,
                    std::ptrdiff_t b_stride, int count, Start start, const T *row) {
    if constexpr (TI > 0) {
        if (height == TI)
            tile<T, TI, TE, SIDE>(y, y_stride, a, a_stride, b, b_stride, count, start, row);
        else
            tile_of<T, TE, SIDE, TI - 1>(height, y, y_stride, a, a_stride, b, b_stride, count, start, row);
    }
}

// Strip n of `rows` rows in `strips` strips as even as can be: a low tile leaves multipliers idle.
struct Strip {
    int first, height;
    Strip(int rows, int strips, int n) : first(rows * n / strips), height(rows * (n + 1) / strips - first) {}
};
inline int strips_of(int rows) { return (rows + TILE_ROWS - 1) / TILE_ROWS; }

// One strip of rows, `columns` whole registers; panels of B are `panel_step` numbers apart.
template <typename T, Side SIDE>
inline void multiply_strip(int height, T *y, std::ptrdiff_t y_stride, const T *a, std::ptrdiff_t a_stride, const T *b,
                           std::ptrdiff_t b_stride, std::ptrdiff_t panel_step, int count, int columns,
                           Start start = Start::zero, const T *row = nullptr) {
    for (int e = 0; e < columns; e += PANEL<T>, b += panel_step) {
        const T *own = row ? row + e : nullptr;
        if (columns - e >= PANEL<T>)
            tile_of<T, 2, SIDE>(height, y + e, y_stride, a, a_stride, b, b_stride, count, start, own);
        else
            tile_of<T, 1, SIDE>(height, y + e, y_stride, a, a_stride, b, b_stride, count, start, own);
    }
}

// All rows: panel by panel, as a panel of B is smaller than A.
template <typename T, Side SIDE>
void multiply(T *y, std::ptrdiff_t y_stride, const T *a, std::ptrdiff_t a_stride, const T *b, std::ptrdiff_t b_stride,
              std::ptrdiff_t panel_step, int rows, int count, int columns, Start start = Start::zero,
              const T *row = nullptr) {
    const int strips = strips_of(rows);
    for (int e = 0; e < columns; e += PANEL<T>, b += panel_step)
        for (int n = 0; n < strips; n++) {
            const Strip strip(rows, strips, n);
            multiply_strip<T, SIDE>(strip.height, y + strip.first * y_stride + e, y_stride,
                                    a + strip.first * (SIDE == Side::rows ? a_stride : 1), a_stride, b, b_stride,
                                    panel_step, count, columns - e < PANEL<T> ? columns - e : PANEL<T>, start,
                                    row ? row + e : nullptr);
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
                                inputs, columns(), bias ? Start::row : Start::zero, bias);
    }
    // The gradient by A, from that by Y.
    void apply_turned(T *a, int a_stride, const T *y, int y_stride, int rows, bool add) const {
        multiply<T, Side::rows>(a, a_stride, y, y_stride, turned, PANEL<T>, std::ptrdiff_t(columns()) * PANEL<T>, rows,
                                last_column(), padded(inputs, W<T>), add ? Start::sum : Start::zero);
    }
    // Adds the gradient by M of these rows.
    void learn(const T *a, int a_stride, const T *y, int y_stride, int rows) {
        multiply<T, Side::columns>(gradient, stride, a, a_stride, y, y_stride, PANEL<T>, inputs, rows, columns(),
                                   Start::sum);
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
