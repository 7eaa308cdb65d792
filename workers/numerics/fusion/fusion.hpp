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
