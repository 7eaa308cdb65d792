// Training steps of the layered transformers over tokens (workers/networks/models/_layers.py), causal: a block trains a
// lane for several steps, whose data it is given. Parameters and gradient lie in the GPU's memory, and so in its second
// cache; what a block of whole sequences leaves on its way lies in shared memory as far as that goes. No block of threads
// knows of another one, and each sum has one order: a lane's bits depend neither on its neighbours nor on how many there are.
//
// As in the native step (workers/numerics/native/layered.hpp), the last layer's queries, MLP and outputs are of the
// positions alone that carry loss.
#include "layered_backward.hpp"

namespace {

class Lane : public Backward {
  public:
    using Backward::Backward;

    __device__ void train() {
        fill_ones(int(plan.sequences) * s);
        train_lane(
            plan, lane,
            [&](int n, Word now) {
                step = now;
                data = (Int(n) * plan.lanes + lane) * plan.batch * s;
                const float loss = compute_gradient();
                update(n);
                return loss;
            },
            [] {});
    }

  private:
    // The loss; the gradient is left in the workspace.
    __device__ float compute_gradient() {
        const int N = int(plan.batch), P = int(plan.parameters), most = int(plan.sequences);
        float *const g = gradient();
        double *const losses = reinterpret_cast<double *>(at(LOSSES));
        each(P, [&](int i) { g[i] = 0; });
        each(N, [&](int i) { losses[i] = 0; });
        float *const cells = at(CELLS);
        each(int(plan.splines) * 2 * int(plan.knots + 1) * THREADS, [&](int i) { cells[i] = 0; });
        for (first = 0; first < N; first += most) {
            rows = (N - first < most ? N - first : most) * s;
            read_rows();
            if (!loss_rows) {
                each(0, [](int) {}); // all threads have read `loss_rows` before the next block's rows overwrite it
                continue;
            }
            embed();
            ROLLED for (int l = 0; l <= last; l++) attend(l), pass_mlp(l);
            predict();
            ROLLED for (int l = last; l >= 0; l--) {
                const bool even = (last - l) % 2 == 0;
                const Matrix own = matrix(even ? STREAM_G : NEXT_G, d), other = matrix(even ? NEXT_G : STREAM_G, d);
                return_through_mlp(l, own, other);
                return_through_attention(l, own, other);
            }
            learn_embedding(matrix(last % 2 == 0 ? NEXT_G : STREAM_G, d));
        }
        learn_knots();
        return float(sum_in(reinterpret_cast<double *>(at(PARTIAL_SUMS)), losses, N));
    }

    __device__ void update(int n) const {
        const int P = int(plan.parameters);
        double *const sums = reinterpret_cast<double *>(at(PARTIAL_SUMS));
        float *const g = gradient();
        each(THREADS, [&](int thread) { sums[thread] = 0; });
        add_squares(sums, {g, 1}, P, 1);
        const Update update(plan, lane, n, float(sqrt(sum_of(sums))));
        each(P, [&](int i) { update.move(parameters()[i], g[i], plan.decays[i], lane * plan.parameters + i); });
    }
};

} // namespace

// Two blocks to a multiprocessor: one alone would wait most of the time. A few addresses are kept in memory between phases for
// it, none of them in the loops that multiply.
extern "C" __global__ void __launch_bounds__(THREADS, 2) fused_layered(__grid_constant__ const Plan plan) {
    ROLLED for (int lane = block_number(); lane < plan.lanes; lane += int(plan.blocks)) Lane(plan, lane).train();
}
