// What all phases of a layered transformer's lane share: sizes, a block's rows, and where arrays and parameters lie.
#pragma once
#include "activations.hpp"
#include "layered_plan.hpp"
#include "norms.hpp"

__device__ inline int odd(int count) { return count | 1; }

class Workspace {
  public:
    __device__ Workspace(const Plan &given, int number)
        : plan(given), lane(number), s(int(given.length)), d(int(given.width)), h(int(given.heads)), c(d / h),
          f(int(given.hidden)), v(int(given.outputs)), last(int(given.depth) - 1) {}

  protected:
    const Plan &plan;
    const int lane, s, d, h, c, f, v;
    const int last; // layer: in it queries, MLP and outputs are of the rows alone that carry loss
    Word step = 0;   // of the lane
    Int data = 0;    // where its positions start among all
    int first = 0, rows = 0, loss_rows = 0; // of the block: its first sequence, and its rows

    // Computed where they are needed: kept, they would take registers that there are too few of.
    __device__ Divisor by_s() const { return Divisor(s); }
    __device__ Divisor by_h() const { return Divisor(h); }
    __device__ Divisor by_c() const { return Divisor(c); }
    __device__ float knob(int number) const { return plan.knobs[opaque(lane) * (KNOBS + 3 * h) + number]; }
    __device__ float *parameters() const { return plan.parameters_of + opaque(lane) * plan.parameters; }

    // -- where arrays lie
    __device__ float *at_place(Int place) const {
        return place < plan.shared_floats ? shared_memory() + place
                                          : plan.scratch + block_number() * plan.scratch_floats + (place - plan.shared_floats);
    }
    __device__ float *at(Array array) const { return at_place(plan.places[opaque(array)]); }
    __device__ float *at(int l, LayerArray array) const {
        return at_place(plan.layer_places[l][opaque(array)]);
    }
    __device__ int *ints(Array array) const { return reinterpret_cast<int *>(at(array)); }
    __device__ Matrix matrix(Array array, int columns) const { return {at(array), odd(columns)}; }
    __device__ Matrix matrix(int l, LayerArray array, int columns) const { return {at(l, array), odd(columns)}; }

    // -- where parameters lie, and their gradients at the same places
    __device__ float *gradient() const { return at(GRADIENT); }
    __device__ Int place(int l, LayerPlace name) const { return plan.layers[l][name]; }
    // A map's weights of these columns, of `wide` that lie side by side; its bias is the row below.
    __device__ Matrix weight(int l, LayerPlace name, int wide, int column = 0) const {
        return {parameters() + place(l, name) + column, wide};
    }
    __device__ Matrix weight_g(int l, LayerPlace name, int wide, int column = 0) const {
        return {gradient() + place(l, name) + column, wide};
    }
    __device__ int biased(int l, LayerPlace bias) const { return place(l, bias) >= 0; } // one row more
    __device__ Matrix unembedding(float *of) const {
        return plan.tied ? Matrix{of + plan.ends[READING], d}.turned() : Matrix{of + plan.ends[WRITING], v};
    }

    // -- a block's rows: those that a layer ends with
    __device__ int ends(int l) const { return l == last ? loss_rows : rows; }
    __device__ int row_of(int l, int i) const { return l == last ? ints(LOSS_ROWS)[i] : i; }
    __device__ int first_of_sequence(int row) const { return by_s().quotient(row) * s; }
    // Of a sequence's rows that a layer ends with, the first one; of the sequence after the last one too.
    __device__ int first_end(int l, int sequence) const {
        return l == last ? ints(FIRST_LOSS_ROWS)[sequence] : sequence * s;
    }
    // What a head's logits are multiplied by, after positions' biases are added.
    __device__ float factor_of(int head) const { return knob(KNOBS + 3 * head); }

    __device__ Spline spline(int l) const {
        return {parameters() + place(l, KNOTS), int(plan.knots), knob(SPLINE_LOW), knob(SPLINE_SCALE)};
    }

    // -- signed averaging, (1 + b |z|)^(sign(z) n): softmax of bent logits. What an optimizer takes out of the range is
    // reflected back into it, with a slope of -1.
    __device__ float learned(int l, int which, int head) const {
        const Int place = plan.learned[l][which];
        return place >= 0 ? parameters()[place + head] : knob(KNOBS + 3 * head + 1 + which);
    }
    __device__ float b_of(int l, int head) const { return absolute(learned(l, 0, head)); }
    __device__ float n_of(int l, int head) const {
        const float n = learned(l, 1, head);
        return n >= 1.0f ? n : 2.0f - n;
    }

    // -- dropout: what is kept of the block's rows, a byte each; null: all, as the sites of this kind are off
    __device__ const Byte *kept(Thinned kind, float *array) const {
        return plan.dropped & kind ? reinterpret_cast<Byte *>(array) : nullptr;
    }
    // The same, drawn. `site`: counted as the model does: embedding, then attention and MLP of each layer; `family`: of
    // its rate.
    __device__ const Byte *drawn(Thinned kind, float *array, int site, int family) const {
        if (plan.dropped & kind) {
            const Word stream = stream_of(Word(plan.seeds[lane]), DROPOUT, site, step);
            draw_mask(reinterpret_cast<Byte *>(array), Site(stream, plan.rates[family * plan.lanes + lane]),
                      first * s * d, rows * d);
        }
        return kept(kind, array);
    }
};
