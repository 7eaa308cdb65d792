// Programs at work: kernels and calls one after another, for one lane after another.
//
// A lane's memory is the same for all lanes, so that it is in the nearest caches once the first has gone through it.
#include <memory>

#include "products.hpp"
#include "splines.hpp"

using namespace registers;

namespace {

// Room for so many numbers, kept by each thread.
template <typename T, int N> T *room(std::size_t count) {
    static thread_local std::unique_ptr<T[]> kept;
    static thread_local std::size_t size = 0;
    if (size < count + LINE_BYTES) kept.reset(new T[size = count + LINE_BYTES]);
    return kept.get() + (LINE_BYTES - std::size_t(kept.get()) % LINE_BYTES) % LINE_BYTES / sizeof(T);
}

// Panels of a matrix [count][columns] whose numbers lie anywhere, padded with zeros.
template <typename T>
void pack(T *to, const T *from, std::ptrdiff_t row, std::ptrdiff_t column, int count, int columns) {
    for (int e = 0; e < columns; e += PANEL<T>, to += std::ptrdiff_t(count) * PANEL<T>) {
        const int here = columns - e < PANEL<T> ? columns - e : PANEL<T>;
        if (row == 1 && here == PANEL<T> && count % W<T> == 0) {
            for (int n = 0; n < PANEL<T>; n += W<T>) transpose(to + n, PANEL<T>, from + (e + n) * column, column, W<T>, count);
            continue;
        }
        for (int c = 0; c < count; c++) {
            const T *own = from + c * row + e * column;
            for (int n = 0; n < PANEL<T>; n++) to[c * PANEL<T> + n] = n < here ? own[n * column] : T(0);
        }
    }
}

// Y = A B (+ a row) for each of a batch.
template <typename T> void multiply_all(void *const *at, const int64_t *sizes) {
    const int64_t batch = sizes[0], *strides = sizes + 4, *offsets = sizes + 12;
    const int rows = int(sizes[1]), count = int(sizes[2]), columns = int(sizes[3]), width = padded(columns, W<T>);
    const bool is_whole = width == columns, as_it_is = is_whole && strides[5] == 1;
    T *packed = as_it_is ? nullptr : room<T, 0>(std::size_t(padded(columns, PANEL<T>)) * count);
    T *aside = is_whole ? nullptr : room<T, 1>(std::size_t(rows) * width);
    Start<T> start = zero<T>();
    if (at[2]) {
        const T *from = (const T *)at[2] + offsets[2];
        start = {from, 0};
        if (!is_whole) {
            T *row = room<T, 2>(width);
            std::memset(row, 0, sizeof(T) * width);
            std::memcpy(row, from, sizeof(T) * columns);
            start.from = row;
        }
    }
    for (int64_t n = 0; n < batch; n++) {
        const T *a = (const T *)at[0] + offsets[0] + n * strides[0];
        const T *b = (const T *)at[1] + offsets[1] + n * strides[3];
        T *y = (T *)at[3] + offsets[3] + n * strides[6], *to = is_whole ? y : aside;
        const std::ptrdiff_t y_stride = is_whole ? strides[7] : width;
        std::ptrdiff_t a_row = strides[1], a_column = strides[2];
        if (packed && (n == 0 || strides[3])) pack(packed, b, strides[4], strides[5], count, columns);
        if (a_column != 1 && a_row != 1) {
            T *copy = room<T, 3>(std::size_t(rows) * count);
            for (int i = 0; i < rows; i++)
                for (int c = 0; c < count; c++) copy[i * count + c] = a[i * a_row + c * a_column];
            a = copy, a_row = count, a_column = 1;
        }
        for (int e = 0; e < width; e += PANEL<T>) {
            const T *panel = packed ? packed + std::ptrdiff_t(e) * count : b + e;
            const std::ptrdiff_t step = packed ? PANEL<T> : strides[4];
            const int here = width - e < PANEL<T> ? width - e : PANEL<T>;
            if (a_column == 1)
                multiply<T, Side::rows>(to + e, y_stride, a, a_row, panel, step, rows, count, here, start.at(e));
            else
                multiply<T, Side::columns>(to + e, y_stride, a, a_column, panel, step, rows, count, here, start.at(e));
        }
        if (!is_whole)
            for (int i = 0; i < rows; i++) std::memcpy(y + i * strides[7], aside + i * width, sizeof(T) * columns);
    }
}

// The spline of a lane, whose memory each thread keeps.
template <typename T> Spline<T> &spline_of(const T *knots, int count, const double *low, const double *scale) {
    static thread_local Spline<T> spline;
    spline.knots = count, spline.low = T(*low), spline.scale = T(*scale);
    spline.read(knots);
    return spline;
}
template <typename T> T *argument(void *const *at, const int64_t *offsets, int n) { return (T *)at[n] + offsets[n]; }

template <typename T> void interpolate(void *const *at, const int64_t *sizes) {
    const int64_t *own = sizes + 2;
    spline_of(argument<T>(at, own, 1), int(sizes[1]), argument<double>(at, own, 2), argument<double>(at, own, 3))
        .values(argument<T>(at, own, 0), argument<T>(at, own, 4), sizes[0]);
}
template <typename T> void interpolate_gradient(void *const *at, const int64_t *sizes) {
    const int64_t *own = sizes + 2;
    T *by_knots = argument<T>(at, own, 6);
    std::fill_n(by_knots, sizes[1], T(0));
    spline_of(argument<T>(at, own, 2), int(sizes[1]), argument<double>(at, own, 3), argument<double>(at, own, 4))
        .gradients(argument<T>(at, own, 0), argument<T>(at, own, 1), argument<T>(at, own, 5), by_knots, sizes[0]);
}

} // namespace

// Calls of a program: where tensors start, and sizes; behind these where in each tensor the first number is.
extern "C" {
void product_float32(void *const *at, const int64_t *sizes) { multiply_all<float>(at, sizes); }
void product_float64(void *const *at, const int64_t *sizes) { multiply_all<double>(at, sizes); }
void spline_float32(void *const *at, const int64_t *sizes) { interpolate<float>(at, sizes); }
void spline_float64(void *const *at, const int64_t *sizes) { interpolate<double>(at, sizes); }
void spline_gradient_float32(void *const *at, const int64_t *sizes) { interpolate_gradient<float>(at, sizes); }
void spline_gradient_float64(void *const *at, const int64_t *sizes) { interpolate_gradient<double>(at, sizes); }

// `places`: where the first lane's tensors start; `steps`: bytes from one lane to the next, 0 for what lanes share.
// `fault`: gets an index that is out of bounds, and the size that it is to be below; kernels get it after their tensors.
// `calls`: of each the function, how many tensors it gets and their numbers, -1 for none, and how many sizes and these.
void run_program(int64_t lanes, int64_t tensors, const int64_t *places, const int64_t *steps, int64_t count,
                 const int64_t *calls, int64_t *fault) {
    std::unique_ptr<char *[]> own(new char *[tensors]);
    for (int64_t lane = 0; lane < lanes; lane++) {
        for (int64_t n = 0; n < tensors; n++) own[n] = (char *)places[n] + lane * steps[n];
        const int64_t *call = calls;
        for (int64_t n = 0; n < count; n++) {
            void *at[513];
            const auto function = (void (*)(void *const *, const int64_t *))call[0];
            const int64_t given = call[1];
            for (int64_t i = 0; i < given; i++) at[i] = call[2 + i] < 0 ? nullptr : own[call[2 + i]];
            at[given] = fault;
            call += 2 + given;
            function(at, call + 1);
            call += 1 + call[0];
        }
    }
}
}
