// One update of all lanes of a pack on a GPU: a block updates a lane, from the schedule to the averages, in one kernel.
//
// The formulas and their order are those of workers/training/optimizers, averaging and schedules, element by element; only
// the gradient's norm is summed in another order, in double, which depends on the number of parameters alone. So a lane's
// bits depend neither on its neighbours nor on how many there are. It is compiled without contraction of products and sums.
//
// A kernel is written as phases, `each(count, work)`: work(i) for every i, shared out among the threads, which meet at the end.
// Within a phase no i reads what another one writes, so that with GRAFT_EMULATED a processor does them one after another.
//
// Legend: L lanes, P parameters, k averages.

typedef long long Int;

constexpr int THREADS = 256;
constexpr int MOST_AVERAGES = 100;
constexpr double PI = 3.141592653589793;

#ifdef GRAFT_EMULATED
#include <cmath>
using std::isfinite;
#define __device__
#define SHARED
static bool backwards; // the order in which the work of a phase is done
template <typename Work> inline void each(int count, Work work) {
    for (int i = 0; i < count; i++) work(backwards ? count - 1 - i : i);
}
#else
#define SHARED __shared__
template <typename Work> __device__ inline void each(int count, Work work) {
    for (int i = int(threadIdx.x); i < count; i += THREADS) work(i);
    __syncthreads();
}
#endif

// As in workers/training/cuda_update.py.
enum Optimizer { ADAMW, ADAM, SGD };
enum Schedule { CONSTANT, LINEAR, COSINE, WARMUP_COOLDOWN };
enum Averaging { NONE, EMA, BEMA_GRID };
// MOMENTUM is beta1 of two moments; WARMUP and LATER are the schedule's.
enum Knob { STEPS, LEARNING_RATE, CLIP_NORM, WEIGHT_DECAY, MOMENTUM, BETA2, EPSILON, WARMUP, LATER, RHO, KAPPA };

struct Choices {
    int lanes, parameters, averages, optimizer, nesterov, schedule, averaging;
};
template <typename T> struct State {
    T *parameters, *first;  // [L][P]
    double *second;         // [L][P]; none with SGD, whose buffer is `first`
    double *shadow;         // [L][k][P]
    Int *step;              // [L] steps made
    double *loss_sum;       // [L]
    Int *diverged_at;       // [L] the first step whose loss was not finite; 0: none
};
template <typename T> struct Given {
    const double *knobs; // [KAPPA + 1][L]
    const T *decays;     // [P] 1 where weight decay applies, else 0
    const T *learns;     // [P] 0 where a parameter keeps its value, else 1; none: all learn
    const T *gradient;   // [L][P]
    const T *loss;       // [L]
};

namespace {

struct Scalars {
    double rate, decay, first_share, second_share, correction2, epsilon, clip_norm;
    double weights[MOST_AVERAGES]; // with which averages consume the new parameters
};

__device__ inline double correction(double beta, double n) { return -expm1((n + 1) * log(beta)); }
__device__ inline double larger(double a, double b) { return a > b ? a : b; }

class Knobs {
  public:
    __device__ Knobs(const double *knobs, const Choices &choices, int lane, Int step)
        : knobs_(knobs), choices_(choices), lane_(lane), n_(double(step)) {}

    __device__ void compute(Scalars &to) const {
        const double rate = of(LEARNING_RATE) * factor(), momentum = of(MOMENTUM);
        to.clip_norm = of(CLIP_NORM);
        to.rate = rate;
        to.decay = of(WEIGHT_DECAY);
        to.first_share = momentum;
        if (choices_.optimizer != SGD) {
            to.rate = rate / correction(momentum, n_);
            to.decay = choices_.optimizer == ADAMW ? rate * of(WEIGHT_DECAY) : of(WEIGHT_DECAY);
            to.first_share = 1 - momentum;
            to.second_share = 1 - of(BETA2);
            to.correction2 = sqrt(correction(of(BETA2), n_));
            to.epsilon = of(EPSILON);
        }
        for (int average = 0; average < choices_.averages; average++) {
            const double kappa = choices_.averaging == EMA ? of(KAPPA) : double(average + 1) / choices_.averages;
            to.weights[average] = exp(-kappa * log(of(RHO) + n_));
        }
    }

  private:
    const double *knobs_;
    const Choices &choices_;
    int lane_;
    double n_; // steps made

    __device__ double of(Knob knob) const { return knobs_[Int(knob) * choices_.lanes + lane_]; }

    __device__ double factor() const {
        if (choices_.schedule == CONSTANT) return 1;
        const double steps = of(STEPS), warmup = of(WARMUP), later = of(LATER);
        if (choices_.schedule == WARMUP_COOLDOWN) {
            const double rise = (n_ + 1) / (warmup * steps + 1), cooling = later * steps;
            const double passed = larger(n_ - (steps - cooling), 0) / larger(cooling, 1);
            return (rise < 1 ? rise : 1) * (1 + cos(PI * passed)) / 2;
        }
        if (n_ < warmup) return (n_ + 1) / (warmup + 1);
        const double left = larger(steps - warmup, 1);
        if (choices_.schedule == LINEAR) return 1 - (1 - later) * (n_ - warmup) / left;
        return later + (1 - later) * (1 + cos(PI * ((n_ - warmup) / left))) / 2;
    }
};

template <typename T>
__device__ void update(int lane, const Choices &choices, const Given<T> &given, const State<T> &before, const State<T> &after) {
    SHARED Scalars scalars;
    SHARED double sums[THREADS];
    const int count = choices.parameters;
    const Int at = Int(lane) * count;
    const T *const gradient = given.gradient + at;
    const auto learnt = [&](int i) { return given.learns ? gradient[i] * given.learns[i] : gradient[i]; };

    each(THREADS, [&](int thread) {
        if (thread == 0) Knobs(given.knobs, choices, lane, before.step[lane]).compute(scalars);
        double sum = 0;
        for (int i = thread; i < count; i += THREADS) sum += double(learnt(i)) * double(learnt(i));
        sums[thread] = sum;
    });
    for (int half = THREADS / 2; half; half /= 2) each(half, [&](int thread) { sums[thread] += sums[thread + half]; });

    const T limit = T(scalars.clip_norm) / (T(sqrt(sums[0])) + T(1e-6));
    const T share = limit > T(1) ? T(1) : limit; // one that is no number stays none
    const T rate = T(scalars.rate), decay = T(scalars.decay), first_share = T(scalars.first_share);
    const T correction2 = T(scalars.correction2), epsilon = T(scalars.epsilon);
    each(count, [&](int i) {
        T g = learnt(i) * share, x = before.parameters[at + i], first = before.first[at + i];
        if (choices.optimizer == SGD) {
            g = g + decay * given.decays[i] * x;
            first = first_share * first + g;
            x = x - rate * (choices.nesterov ? g + first_share * first : first);
        } else {
            if (choices.optimizer == ADAMW)
                x = x * (T(1) - decay * given.decays[i]);
            else
                g = g + decay * given.decays[i] * x;
            first = first + first_share * (g - first);
            double second = before.second[at + i];
            second = second + scalars.second_share * (double(g) * double(g) - second);
            x = x - rate * (first / (T(sqrt(T(second))) / correction2 + epsilon));
            after.second[at + i] = second;
        }
        after.parameters[at + i] = x;
        after.first[at + i] = first;
        for (int average = 0; average < choices.averages; average++) {
            const Int own = (Int(lane) * choices.averages + average) * count + i;
            const double shadow = before.shadow[own];
            after.shadow[own] = shadow + scalars.weights[average] * (double(x) - shadow);
        }
    });
    each(1, [&](int) {
        const T loss = given.loss[lane];
        const Int step = before.step[lane] + 1, diverged_at = before.diverged_at[lane];
        after.step[lane] = step;
        after.loss_sum[lane] = before.loss_sum[lane] + double(loss);
        after.diverged_at[lane] = diverged_at == 0 && !isfinite(loss) ? step : diverged_at;
    });
}

} // namespace

#define GIVEN(T)                                                                                                               \
    int lanes, int parameters, int averages, int optimizer, int nesterov, int schedule, int averaging, const double *knobs,    \
        const T *decays, const T *learns, const T *gradient, const T *loss, T *x, T *first, double *second, double *shadow,    \
        Int *step, double *loss_sum, Int *diverged_at, T *x_after, T *first_after, double *second_after, double *shadow_after, \
        Int *step_after, double *loss_sum_after, Int *diverged_after
#define UPDATE(T, lane)                                                                                                        \
    update<T>(lane, {lanes, parameters, averages, optimizer, nesterov, schedule, averaging},                                   \
              {knobs, decays, learns, gradient, loss}, {x, first, second, shadow, step, loss_sum, diverged_at},                \
              {x_after, first_after, second_after, shadow_after, step_after, loss_sum_after, diverged_after})

#ifdef GRAFT_EMULATED
extern "C" void order(int reversed) { backwards = reversed; }
extern "C" void update_float32(GIVEN(float)) {
    for (int lane = 0; lane < lanes; lane++) UPDATE(float, lane);
}
extern "C" void update_float64(GIVEN(double)) {
    for (int lane = 0; lane < lanes; lane++) UPDATE(double, lane);
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) update_float32(GIVEN(float)) { UPDATE(float, int(blockIdx.x)); }
extern "C" __global__ void __launch_bounds__(THREADS) update_float64(GIVEN(double)) { UPDATE(double, int(blockIdx.x)); }
#endif
