// What the minimal transformer's kernel is told: as `Plan` of workers/engine/fused/plan.py, in the same order.
#pragma once
#include "threads.hpp"

// Arrays of the workspace, one after another; as ARRAYS of plan.py. Rows of matrices are padded to odd lengths.
enum Array {
    // Of the lane's weights: parameters and their gradients, which from QUERY_G to VALUE_G are first those of what these make;
    // [d][k] [d][k] [d][u] the norm's gain times query, key and value, and [d][d] this times output.
    EMBEDDING, GAIN, QUERY, KEY, VALUE, OUTPUT, UNEMBEDDING,
    EMBEDDING_G, GAIN_G, QUERY_G, KEY_G, VALUE_G, OUTPUT_G, UNEMBEDDING_G,
    QUERY_BY_GAIN, KEY_BY_GAIN, VALUE_BY_GAIN, MIXED, MIXED_G,
    // Of tokens, where no occurrence of one is like no other: [v][d] [v][d] [v][k] [v][k] [v][d] [v][v]; [v] factors of the norm.
    USED, NORMED, TOKEN_QUERY, TOKEN_KEY, TOKEN_ROWS, LOGITS,
    NORMED_G, TOKEN_QUERY_G, TOKEN_KEY_G, TOKEN_ROWS_G, LOGITS_G, FACTORS,
    // Of n sequences: [n][v] words, [n][s + 1] and [n][v] ints, [n s][d] bytes.
    KEYS, TOKENS, PLACES, KEPT_EMBEDDING, KEPT_ROWS,
    // [n s][d], and [n s][k]
    STREAM, NORMED_ROWS, ROWS, STREAM_G,
    QUERIES, KEYS_OF_ROWS, QUERIES_G, KEYS_OF_ROWS_G,
    // [n s][s] [n s][s] [n s][v] [n s] [n s]
    WEIGHTS, WEIGHTS_G, OUTPUTS, ROW_FACTORS, ROW_LOSSES,
    // Of the block: [N] or, in tiles, [THREADS]; and [THREADS] doubles.
    LOSSES, PARTIAL_SUMS,
    // In tiles, as tiles.hpp has them: tables, twice the unembedding, and sums of warps.
    TILE_USED, TILE_ROWS, TILE_OUT, TILE_BACK, WARP_SUMS,
    ARRAYS,
    MATRICES = 7
};
enum Scalar { CLIP_NORM, STEP_SIZE, DECAY, FIRST_SHARE, SECOND_SHARE, CORRECTION2, ADAM_EPSILON, SCALARS = 10 };
enum Knob { LOGIT_SCALE, NORM_EPSILON, EMBEDDING_SCALE, RESIDUAL_SCALE, KNOBS };
enum Dropped { OF_EMBEDDING = 1, OF_ROWS = 2, WHOLE_TOKENS = 4 };

struct Plan {
    Int lanes, steps, batch, averages, decoupled;
    Int parameters;        // of a lane, with padding
    Int scratch_floats;    // of a block
    Int blocks;            // of the launch: each trains its lane, then the one that lies so many further
    const Int *seeds;      // [L]
    const double *scalars; // [steps][L][SCALARS + averages]
    // What follows is read and written.
    float *parameters_of, *first; // [L][P]
    double *second, *shadow;      // [L][P], [L][averages][P]
    Int *step;                    // [L]
    double *loss_sum;             // [L]
    Int *diverged_at;             // [L]
    float *scratch;               // [blocks][scratch_floats]
    // What follows is read alone.
    Int dropped;
    Int sequences;        // worked on at once
    Int starts[MATRICES]; // where each matrix lies in a lane's parameters
    Int columns[MATRICES];
    Int places[ARRAYS];   // where each array starts, in floats; up to FACTORS in scratch memory if WEIGHTS_IN_SHARED is 0
    const Int *sizes;     // [L][5] length, tokens, width, key width, value width
    const float *knobs;   // [L][KNOBS]
    const double *rates;  // [L][2] of the dropout sites
};
