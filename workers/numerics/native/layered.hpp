// Loss and gradient of the layered transformers (workers/networks/models/_layers.py), or their outputs alone, one lane after
// another, each in blocks of whole sequences that stay in the core's cache from the embedding to the last weight's gradient.
//
// A lane is read once a step: its matrices become panels for the forward and for the backward products (products.hpp),
// vectors are padded to whole registers. Then block by block: forward, keeping what the gradient needs, loss, backward,
// where weights' gradients are added up. At the end they are written to the lane's flat vector. All sums run in an order
// that depends on the lane's own data alone: bits do not depend on the number of lanes, nor on their neighbours.
//
// What is left out: positions after the last one that carries loss, where no position sees later ones; and in the last
// layer queries, MLP and outputs of all positions without loss, unless a convolution in that layer looks back at them.
// In the first layer queries, keys and values are made once for each distinct row of the batch (layered_lane_table.hpp).
//
// Legend: L lanes, N sequences, s positions, d width, h heads, c channels of a head, f hidden channels of the MLP,
// v outputs. Suffix _g: gradient. R rows of a block are its sequences' positions, Q of them pass a layer's end.

#pragma once
#include <utility>
#include <vector>

#include "driver.hpp"
#include "layered_lane_backward.hpp"
#include "layered_lane_block.hpp"
#include "layered_lane_forward.hpp"
#include "layered_lane_memory.hpp"
#include "layered_lane_table.hpp"

namespace layered {

// This thread's memory, which it keeps from call to call. Cleared where the last call's was laid out in another way, as
// what stands in the padding of rows is computed with. Hidden, or all libraries of a process would share it.
template <typename T> __attribute__((visibility("hidden"))) Memory &begin_memory(const Plan &plan, std::size_t bytes) {
    thread_local Memory memory;
    thread_local std::vector<int64_t> sizes;
    std::vector<int64_t> own(&plan.batch, &plan.dropout + 1);
    own.push_back(plan.outputs_values != nullptr);
    memory.begin(bytes, own != sizes);
    sizes = std::move(own);
    return memory;
}

template <typename T> int all_lanes(const Plan &plan) {
    return each_lane(plan, [&] {
        const int64_t rows = Room<T>::wanted(plan.total) ? LARGE_BLOCK_ROWS : BLOCK_ROWS;
        const int most = int(std::max<int64_t>(plan.length, std::min<int64_t>(plan.batch * plan.length, rows)));
        Memory counted;
        const LayeredLane<T> sketch(plan, counted, most);
        return LayeredLane<T>(plan, begin_memory<T>(plan, counted.used()), most);
    });
}

} // namespace layered
