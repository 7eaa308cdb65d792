// As torch has them: what is no number stays none.
template <typename T> __device__ inline T larger(T a, T b) { return a > b || a != a ? a : b; }
template <typename T> __device__ inline T smaller(T a, T b) { return a < b || a != a ? a : b; }
template <typename T> __device__ inline T sign_of(T a) { return T((a > T(0)) - (a < T(0))); }
// The quotient rounded down, and what is left of it, which has the divisor's sign.
template <typename T> __device__ inline T left_over(T a, T b) { const T r = a % b; return r != 0 && (r < 0) != (b < 0) ? T(r + b) : r; }
template <> __device__ inline float left_over(float a, float b) { const float r = fmod(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
template <> __device__ inline double left_over(double a, double b) { const double r = fmod(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
template <typename T> __device__ inline T quotient_down(T a, T b) { return T((a - left_over(a, b)) / b); }
