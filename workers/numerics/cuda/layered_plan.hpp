// What the layered transformers' kernel is told: as `LayeredPlan` of workers/engine/fused/layered.py, in the same order.
//
// Legend: N sequences, s positions, d width, h heads, c channels of a head, f hidden channels of the MLP, v tokens,
// P parameters; R rows of a block, which are its sequences' positions, Q <= R of them pass a layer's end. _G: gradient.
#pragma once
#include "training.hpp"

// Arrays of a block of sequences, then those that each layer has; as ARRAYS and LAYER_ARRAYS of layered_plan.py. Rows of
// matrices are padded to odd lengths.
enum Array {
    // [R] the rows that carry loss, [n + 1] where a sequence's begin among these; [R] tokens, and the first row of a token
    LOSS_ROWS, FIRST_LOSS_ROWS, TOKENS, LEADERS,
    // [2][R h] gradients of a scorer's b and n by each query and head
    BENT_G,
    // [R] losses, [N] doubles, [THREADS] doubles; [R] factors of the last norm
    ROW_LOSSES, LOSSES, PARTIAL_SUMS, FINAL_FACTORS,
    // [R][d]
    STREAM, MIDDLE, STREAM_G, NEXT_G, BRANCH_G, MIXED_G, QUERIES_G, KEYS_G, VALUES_G, FINAL, FINAL_UNIT,
    // [R][d] bytes
    KEPT_EMBEDDING,
    // [R h][s], [R][f], [R][v], [P]
    WEIGHTS_G, ACTIVE_G, OUTPUTS, GRADIENT,
    // Of learned splines: [splines][2][knots + 1][THREADS] each thread's sums by cell, of gradients and of these times the
    // share of the cell; [2][knots + 1] doubles
    CELLS, CELL_SUMS,
    ARRAYS
};
enum LayerArray {
    // [R] of the two norms; [R][d] bytes
    FACTORS, MLP_FACTORS, KEPT_ATTENTION, KEPT_MLP,
    // [R][d]
    QUERIES, KEYS, VALUES, UNIT, MLP_UNIT,
    // [R][d + 1] what maps read: the last column is 1, and meets the bias
    GIVEN, ASKED, MIXED, MLP_GIVEN,
    // [R h][s] twice, [R][f], twice if gated, [R][f] of a spline, [R][f + 1]
    WEIGHTS, LOGITS, SLOPES, POINTS, ACTIVE,
    LAYER_ARRAYS
};
// In the order of workers/networks/gradients/layered.py, as in the native step's plan.
enum LayerPlace {
    ATTENTION_NORM, ATTENTION_NORM_BIAS, CANON_A, QUERY_KEY_VALUE, QUERY_KEY_VALUE_BIAS, CANON_B, OUTPUT, OUTPUT_BIAS,
    MLP_NORM, MLP_NORM_BIAS, CANON_C, MLP_IN, MLP_IN_BIAS, CANON_D, KNOTS, MLP_OUT, MLP_OUT_BIAS, LAYER_PLACES
};
enum EndPlace { READING, READING_BIAS, POSITIONS, NORM, NORM_BIAS, WRITING, WRITING_BIAS, END_PLACES };
enum Knob { EPSILON, CAP, EMBEDDING_SCALE, ATTENTION_SCALE, MLP_SCALE, WEIGHTS_SCALE, SPLINE_LOW, SPLINE_SCALE, KNOBS };
enum Thinned { OF_EMBEDDING = 1, OF_ATTENTION = 2, OF_MLP = 4 };

// Of a model at most: a kernel is told 4 KB.
constexpr int MOST_LAYERS = 8;

struct Plan : Training {
    Int length, width, heads, depth, hidden, gates, outputs;
    Int pre_norm, centred, activation, tied, dropped;
    Int knots, splines;    // of a spline; how many of them are learned
    Int bent;              // whether the scorer is signed averaging
    Int sequences;         // worked on at once
    Int shared_floats;     // arrays that start beyond them are in scratch memory
    Int layers[MOST_LAYERS][LAYER_PLACES]; // where a layer's parameters start; -1: there are none
    Int learned[MOST_LAYERS][2];           // the same of each head's b and n, by which logits are bent
    Int ends[END_PLACES];                  // the same of what stands before and after the layers
    Int places[ARRAYS];                    // where each array starts, in floats
    Int layer_places[MOST_LAYERS][LAYER_ARRAYS];
    const float *decays;   // [P]
    const float *knobs;    // [L][KNOBS + 3 h]
    const double *rates;   // [4][L] of dropout's families
    const Int *inputs;     // [steps][L][N][s]
    const Int *targets;    // [steps][L][N][s]
    const float *weights;  // [steps][L][N][s] of a position's loss
    const float *placed;   // [L][s][d] added to the stream; null: nothing
    const float *cosines;  // [L][s][c / 2] of the angles that queries and keys are turned by; null: they are not
    const float *sines;
    const float *slopes;   // [h] of ALiBi; null: none
};
