// What a generated kernel begins with. Its work is written as loops over what a block has to do, shared out among the
// block's threads, which meet between one level of loops and the next. Within a level no loop reads what another one
// writes, so that with GRAFT_EMULATED a processor does them one after another, in either order.

typedef long long Long;
typedef unsigned char Byte;

constexpr int THREADS = 256;

#ifdef GRAFT_EMULATED
#include <cmath>
#include <limits>
using std::isfinite; using std::isnan; using std::isinf;
using std::exp; using std::exp2; using std::expm1; using std::log; using std::log1p; using std::log2; using std::sqrt;
using std::sin; using std::cos; using std::tanh; using std::erf; using std::pow; using std::floor; using std::ceil;
using std::trunc; using std::rint; using std::fabs; using std::fmod;
#define __device__
#define INFINITY_OF(type) std::numeric_limits<type>::infinity()
#define NAN_OF(type) std::numeric_limits<type>::quiet_NaN()
static bool backwards;
extern "C" void order(int value) { backwards = value; }
#define EACH(i, count) for (int i##_th = 0, i; i##_th < (count) && (i = backwards ? (count) - 1 - i##_th : i##_th, true); i##_th++)
#define MEET
#define KERNEL                                                                                                                 \
    static void work(int block, PARAMETERS);                                                                                   \
    extern "C" void fused(int blocks, PARAMETERS) {                                                                            \
        EACH(block, blocks) work(block, NAMES);                                                                                \
    }                                                                                                                          \
    static void work(int block, PARAMETERS)
#else
#define INFINITY_OF(type) type(__int_as_float(0x7f800000))
#define NAN_OF(type) type(__int_as_float(0x7fc00000))
#define EACH(i, count) for (int i = int(threadIdx.x); i < (count); i += THREADS)
#define MEET __syncthreads()
#define KERNEL                                                                                                                 \
    __device__ inline void work(int block, PARAMETERS);                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS) fused(PARAMETERS) { work(int(blockIdx.x), NAMES); }                  \
    __device__ inline void work(int block, PARAMETERS)
#endif

// As torch has them: what is no number stays none.
template <typename T> __device__ inline T larger(T a, T b) { return a > b || a != a ? a : b; }
template <typename T> __device__ inline T smaller(T a, T b) { return a < b || a != a ? a : b; }
template <typename T> __device__ inline T sign_of(T a) { return T((a > T(0)) - (a < T(0))); }
// The quotient rounded down, and what is left of it, which has the divisor's sign.
template <typename T> __device__ inline T left_over(T a, T b) { const T r = a % b; return r != 0 && (r < 0) != (b < 0) ? T(r + b) : r; }
template <> __device__ inline float left_over(float a, float b) { const float r = fmod(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
template <> __device__ inline double left_over(double a, double b) { const double r = fmod(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
template <typename T> __device__ inline T quotient_down(T a, T b) { return T((a - left_over(a, b)) / b); }
