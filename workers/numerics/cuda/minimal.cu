// Training steps of the minimal transformer (workers/networks/models/minimal.py) on the set complement task: a
// block trains a lane for several steps, from the drawing of its data to its average. No block knows of another
// one, and each sum has one order, so that a lane's bits depend neither on its neighbours nor on how many there
// are.
//
// Legend: N sequences, s positions, v tokens, d width, k key width, u value width, n sequences worked on at once.
// _G: gradient.

#include "sequences.hpp"
#include "training.hpp"
#if TF32
#include "tiles.hpp"
typedef Tiles Learning;
#else
typedef Sequences Learning;
#endif

namespace {

class Lane : public Learning {
  public:
    using Learning::Learning;

    __device__ void train() {
        move_parameters([](float &own, float &stored) { own = stored; });
        const Int before = plan.step[lane];
        double loss_sum = plan.loss_sum[lane];
        Int diverged_at = plan.diverged_at[lane];
        ROLLED for (int n = 0; n < plan.steps; n++) {
            const float loss = compute_gradient(Word(before + n));
            update(n);
            loss_sum += double(loss);
            if (diverged_at == 0 && !(loss - loss == 0.0f)) diverged_at = before + n + 1;
        }
        move_parameters([](float &own, float &stored) { stored = own; });
        each(1, [&](int) {
            plan.step[lane] = before + plan.steps;
            plan.loss_sum[lane] = loss_sum;
            plan.diverged_at[lane] = diverged_at;
        });
    }

  private:
    template <typename Move> __device__ void move_parameters(Move move) const {
        each_parameter([&](int number, int i, int e, Int index) {
            move(parameter(number)(i, e), plan.parameters_of[index]);
        });
    }

    // The loss; the gradient is left in the workspace.
    __device__ float compute_gradient(Word step) {
        const Word seed = Word(plan.seeds[lane]);
        const Word data = stream_of(seed, TRAINING_DATA, 0, step);
        if (plan.dropped & OF_EMBEDDING)
            embedding_site = DropoutSite(stream_of(seed, DROPOUT, 0, step), plan.rates[lane * 2]);
        if (plan.dropped & OF_ROWS)
            rows_site = DropoutSite(stream_of(seed, DROPOUT, 1, step), plan.rates[lane * 2 + 1]);
        combine_weights();
        if (!occurrences) fill_tables();
#if TF32
        learn_in_tiles(data);
        const int losses = THREADS;
#else
        const int losses = N;
        for (int first = 0; first < N; first += int(plan.sequences)) {
            const int count = N - first < plan.sequences ? N - first : int(plan.sequences);
            draw_sequences(data, first, count);
            draw_masks(first, count);
            if (occurrences)
                make_occurrences(count);
            else
                gather_tokens(count);
            attend(count);
            predict(first, count);
            return_through_attention(count);
            if (occurrences)
                return_through_occurrences(count);
            else
                add_to_tables(count);
        }
#endif
        if (!occurrences) return_through_tables();
        separate_weights();
        const double total = sum_in(reinterpret_cast<double *>(at(PARTIAL_SUMS)), at(LOSSES), losses);
        return float(total / (double(N) * s));
    }

    __device__ void update(int n) const {
        double *sums = reinterpret_cast<double *>(at(PARTIAL_SUMS));
        each(THREADS, [&](int thread) { sums[thread] = 0; });
        ROLLED for (int number = 0; number < MATRICES; number++)
            add_squares(sums, gradient(number), rows_of(number), columns_of(number));
        const Update update(plan, lane, n, float(sqrt(sum_of(sums))));
        each_parameter([&](int number, int i, int e, Int index) {
            update.move(parameter(number)(i, e), gradient(number)(i, e), number > GAIN ? 1.0f : 0.0f, index);
        });
    }
};

} // namespace

// Two blocks to a multiprocessor, or one where its shared memory is not enough for the weights of one: addresses of other memory
// take twice the registers. The smaller blocks of TF32 are two in any case.
extern "C" __global__ void __launch_bounds__(THREADS, WEIGHTS_IN_SHARED ? 2 : 1) fused_minimal(__grid_constant__ const Plan plan) {
    ROLLED for (int lane = block_number(); lane < plan.lanes; lane += int(plan.blocks)) Lane(plan, lane).train();
}
