// As torch has them: what is no number stays none.
template <typename T> __device__ inline T larger(T a, T b) { return a > b || a != a ? a : b; }
template <typename T> __device__ inline T smaller(T a, T b) { return a < b || a != a ? a : b; }
template <typename T> __device__ inline T sign_of(T a) { return T((a > T(0)) - (a < T(0))); }
// The quotient rounded down, and what is left of it, which has the divisor's sign.
template <typename T> __device__ inline T left_over(T a, T b) { const T r = a % b; return r != 0 && (r < 0) != (b < 0) ? T(r + b) : r; }
template <> __device__ inline float left_over(float a, float b) { const float r = fmod(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
template <> __device__ inline double left_over(double a, double b) { const double r = fmod(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
template <typename T> __device__ inline T quotient_down(T a, T b) { return T((a - left_over(a, b)) / b); }
// torch's own steps: a division of what is left over leaves may be rounded just above or below a whole number.
template <typename T> __device__ inline T quotient_of_floats(T a, T b) {
    if (b == T(0)) return a / b;
    const T r = fmod(a, b);
    T q = (a - r) / b;
    if (r != T(0) && (b < T(0)) != (r < T(0))) q -= T(1);
    if (q == T(0)) return copysign(T(0), a / b);
    const T whole = floor(q);
    return q - whole > T(0.5) ? whole + T(1) : whole;
}
template <> __device__ inline float quotient_down(float a, float b) { return quotient_of_floats(a, b); }
template <> __device__ inline double quotient_down(double a, double b) { return quotient_of_floats(a, b); }
