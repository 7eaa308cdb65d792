// What all of a lane's phases share: its sizes, and where its arrays lie.
#pragma once
#include "functions.hpp"
#include "plan.hpp"
#include "products.hpp"

// Rows of odd length: threads that read one each read other banks of shared memory.
__device__ inline int odd(int count) { return count | 1; }

class Workspace {
  public:
    __device__ Workspace(const Plan &given, int number)
        : plan(given), lane(number), N(int(given.batch)), s(size(0)), v(size(1)), d(size(2)), k(size(3)), u(size(4)), by_s(s),
          knobs(given.knobs + number * KNOBS),
          occurrences(given.dropped & OF_EMBEDDING && !(given.dropped & WHOLE_TOKENS)),
          drops_rows(given.dropped & OF_ROWS && !(given.dropped & WHOLE_TOKENS)) {}

  protected:
    const Plan &plan;
    const int lane;
    const int N, s, v, d, k, u;
    const Divisor by_s;
    const float *const knobs;
    const bool occurrences; // of one token differ, by dropout of their embeddings
    const bool drops_rows;  // by dropout of each occurrence's row
    DropoutSite embedding_site, rows_site;

    __device__ int size(int n) const { return int(plan.sizes[lane * 5 + n]); }
    __device__ Start start(Array array) const {
        const Int place = plan.places[opaque(array)];
#if WEIGHTS_IN_SHARED
        return int(place);
#else
        return (array <= FACTORS ? plan.scratch + block_number() * plan.scratch_floats : shared_memory()) + place;
#endif
    }
    __device__ float *at(Array array) const { return pointer(start(array)); }
    __device__ Matrix matrix(Array array, int columns) const { return {start(array), odd(columns)}; }
    __device__ Matrix parameter(int number) const { return matrix(Array(EMBEDDING + number), columns_of(number)); }
    __device__ Matrix gradient(int number) const { return matrix(Array(EMBEDDING_G + number), columns_of(number)); }
    __device__ int rows_of(int number) const {
        return number == EMBEDDING ? v : number == GAIN ? 1 : number == OUTPUT ? u : d;
    }
    __device__ int columns_of(int number) const {
        return number == QUERY || number == KEY ? k : number == VALUE ? u : number == UNEMBEDDING ? v : d;
    }
    // work(entry in the workspace, its index among the lane's parameters with padding) of all parameters.
    template <typename Work> __device__ void each_parameter(Work work) const {
        ROLLED for (int number = 0; number < MATRICES; number++)
            each_of(rows_of(number), columns_of(number), [&](int i, int e) {
                work(number, i, e, lane * plan.parameters + plan.starts[number] + i * plan.columns[number] + e);
            });
    }
};
