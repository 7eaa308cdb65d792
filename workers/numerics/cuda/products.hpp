// Products of matrices by a block. Each entry is summed by one thread, from the first term to the last, so that
// its bits depend neither on tiles nor on how many rows are worked on at once.
#pragma once
#include "threads.hpp"

// Where an array starts: in shared memory by a number, so that a function that is called, and not copied into its
// callers, still reads it by the instructions for shared memory. `Cursor`: where an entry is that is read next, there an
// address of 32 bits: those of 64 cost the loops that multiply a third of their instructions with NVRTC 13.0.
#if WEIGHTS_IN_SHARED
typedef int Start;
typedef unsigned Cursor;
__device__ inline float *pointer(Start start) { return shared_memory() + start; }
__device__ inline Cursor cursor(Start start, int entry) { return shared_address(start + entry); }
__device__ inline float next(Cursor &at, int step) {
    const float value = load_shared(at);
    at += 4u * unsigned(step);
    return value;
}
#else
typedef float *Start;
typedef const float *Cursor;
__device__ inline float *pointer(Start start) { return start; }
__device__ inline Cursor cursor(Start start, int entry) { return start + entry; }
__device__ inline float next(Cursor &at, int step) {
    const float value = *at;
    at += step;
    return value;
}
#endif

// Entry [i][e] is at start[i * row + e * column].
struct Matrix {
    Start start;
    int row, column = 1;
    __device__ Matrix turned() const { return {start, column, row}; }
    __device__ float &operator()(int i, int e) const { return pointer(start)[i * row + e * column]; }
    __device__ Cursor at(int i, int e) const { return cursor(start, i * row + e * column); }
};

// `sum` and the products of so many pairs, from the first to the last, of entries that lie apart by these steps.
__device__ inline float add_products(float sum, Cursor left, int left_step, Cursor right, int right_step, int count) {
#pragma unroll 4
    for (int n = 0; n < count; n++) {
        const float factor = next(left, left_step);
        sum = multiply_add(factor, next(right, right_step), sum);
    }
    return sum;
}

// y[i][e] = (add ? y[i][e] : 0) + sum over c of a[i][c] b[c][e], in tiles of TI by TE whose sums stay in
// registers. The rows and columns of a tile lie apart, so that the threads of a warp read neighbours.
template <int TI, int TE>
__device__ inline void tiles(Matrix y, Matrix a, Matrix b, int rows, int columns, int count, bool add) {
    const int high = (rows + TI - 1) / TI, wide = (columns + TE - 1) / TE;
    each_of(high, wide, [&](int tile_row, int tile_column) {
        float sums[TI][TE];
        Cursor left[TI], right[TE]; // what lies outside is computed with the last row or column, and not kept
#pragma unroll
        for (int n = 0; n < TI; n++) left[n] = a.at(tile_row + n * high < rows ? tile_row + n * high : rows - 1, 0);
#pragma unroll
        for (int n = 0; n < TE; n++)
            right[n] = b.at(0, tile_column + n * wide < columns ? tile_column + n * wide : columns - 1);
#pragma unroll
        for (int n = 0; n < TI * TE; n++) {
            const int i = tile_row + n / TE * high, e = tile_column + n % TE * wide;
            sums[n / TE][n % TE] = add && i < rows && e < columns ? y(i, e) : 0.0f;
        }
#pragma unroll 4
        for (int c = 0; c < count; c++) { // with addresses that go on: computing them anew costs as much as the products
            float own[TI];
#pragma unroll
            for (int n = 0; n < TI; n++) own[n] = next(left[n], a.column);
#pragma unroll
            for (int m = 0; m < TE; m++) {
                const float factor = next(right[m], b.row);
#pragma unroll
                for (int n = 0; n < TI; n++) sums[n][m] = multiply_add(own[n], factor, sums[n][m]);
            }
        }
#pragma unroll
        for (int n = 0; n < TI * TE; n++) {
            const int i = tile_row + n / TE * high, e = tile_column + n % TE * wide;
            if (i < rows && e < columns) y(i, e) = sums[n / TE][n % TE];
        }
    });
}
enum Sum { REPLACED, ADDED };
// Called, and not copied into its twenty callers: that takes a compiler minutes.
__device__ __noinline__ void product(Matrix y, Matrix a, Matrix b, int rows, int columns, int count,
                                     Sum sum = REPLACED) {
    // Large tiles read less: half a number a product, where single entries read two. A third of the threads
    // reading what there is to read is faster than all of them reading twice as much.
    const int entries = rows * columns;
    if (entries >= 6 * THREADS)
        tiles<4, 4>(y, a, b, rows, columns, count, sum == ADDED);
    else if (entries >= THREADS)
        tiles<2, 2>(y, a, b, rows, columns, count, sum == ADDED);
    else
        tiles<1, 1>(y, a, b, rows, columns, count, sum == ADDED);
}

// The sum of THREADS numbers, by halves; they are overwritten.
__device__ inline double sum_of(double *numbers) {
    for (int half = THREADS / 2; half; half /= 2) each(half, [&](int i) { numbers[i] += numbers[i + half]; });
    const double total = numbers[0];
    each(0, [](int) {}); // no thread writes there again before all have read it
    return total;
}
