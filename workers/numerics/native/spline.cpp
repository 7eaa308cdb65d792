// Linear splines and their gradients, for steps that are traced.
#include <exception>

#include "splines.hpp"

namespace {

using namespace registers;

template <typename T> void read(Spline<T> &spline, int lane, int n, const T *knots, const double *low, const double *scale) {
    spline.knots = n, spline.low = T(low[lane]), spline.scale = T(scale[lane]);
    spline.read(knots + std::size_t(lane) * n);
}

template <typename T>
int forward(int lanes, std::ptrdiff_t count, int n, const T *points, const T *knots, const double *low,
            const double *scale, T *values) try {
    Spline<T> spline;
    for (int lane = 0; lane < lanes; lane++, points += count, values += count) {
        read(spline, lane, n, knots, low, scale);
        spline.values(points, values, count);
    }
    return 0;
} catch (const std::exception &) {
    return 1;
}

// Gradients by points and, unless `knots_gradient` is null, by knots.
template <typename T>
int backward(int lanes, std::ptrdiff_t count, int n, const T *gradient, const T *points, const T *knots,
             const double *low, const double *scale, T *points_gradient, T *knots_gradient) try {
    Spline<T> spline;
    for (int lane = 0; lane < lanes; lane++, points += count, gradient += count, points_gradient += count) {
        read(spline, lane, n, knots, low, scale);
        T *by_knots = knots_gradient ? knots_gradient + std::size_t(lane) * n : nullptr;
        if (by_knots) std::fill_n(by_knots, n, T(0));
        spline.gradients(gradient, points, points_gradient, by_knots, count);
    }
    return 0;
} catch (const std::exception &) {
    return 1;
}

} // namespace

// Points and values [L][count], knots [L][n], low and scale [L]. They return 0, or 1 if memory ran out.
#define GRAFT_SPLINE(NAME, T)                                                                                          \
    extern "C" int spline_##NAME(int lanes, std::ptrdiff_t count, int n, const T *points, const T *knots,              \
                                 const double *low, const double *scale, T *values) {                                  \
        return forward<T>(lanes, count, n, points, knots, low, scale, values);                                         \
    }                                                                                                                  \
    extern "C" int spline_gradient_##NAME(int lanes, std::ptrdiff_t count, int n, const T *gradient, const T *points,  \
                                          const T *knots, const double *low, const double *scale, T *points_gradient, \
                                          T *knots_gradient) {                                                         \
        return backward<T>(lanes, count, n, gradient, points, knots, low, scale, points_gradient, knots_gradient);     \
    }
GRAFT_SPLINE(float32, float)
GRAFT_SPLINE(float64, double)
