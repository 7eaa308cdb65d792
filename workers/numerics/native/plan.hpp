// What the layered transformers' step is told: sizes, choices, and where everything lies.
#pragma once
#include <cstdint>

// What is computed, and from what: as `_Plan` of workers/networks/gradients/layered.py, in the same order.
struct Plan {
    int64_t lanes, batch, length, width, heads, depth, hidden, gates, outputs, features, total;
    int64_t causal, pre_norm, centred, query_key_norm, canon, tied, capped, loss;
    int64_t own_knobs, own_offsets; // of the scorers of all heads, of their features and of the activation
    int64_t dropout;         // bits: embedding, attention, mlp, weights
    const int64_t *layers;   // [depth][LAYER_OFFSETS] where a layer's parameters start; -1: there are none
    const int64_t *ends;     // [END_OFFSETS] the same of what stands before and after the layers
    const int64_t *scorers;  // [h][SCORER_FIELDS]
    const int64_t *phi;      // [ACTIVATION_FIELDS] of the scorers' features; all 0: they read logits
    const int64_t *activation; // [ACTIVATION_FIELDS]; all 0: there is no MLP
    const int64_t *learned;  // [depth][own_offsets] where what the heads' scorers learn lies, one head's after another's, then
                             // what the features and the activation learn
    const void *parameters;  // [L][P]
    void *gradient;          // [L][P]
    void *loss_values;       // [L]
    const void *inputs;      // [L][N][s] int64, or [L][N][s][features]
    const void *targets;     // [L][N][s] int64, or numbers
    const void *weights;     // [L][N][s] of a position's loss; null: of outputs, all are computed
    const int64_t *lengths;  // [L][N] positions that are given; null: all
    const void *placed;      // [L][s][d] added to the stream; null: nothing
    const void *cosines;     // [L][s][c / 2] of the angles that queries and keys are turned by; null: they are not
    const void *sines;
    const void *slopes;      // [h] of ALiBi; null: none
    const void *placing;     // [s][s] factors of products of features; null: none
    const void *knobs;       // [L][KNOBS + own_knobs]
    const int64_t *states;   // [L][sites] of the dropout sites' streams, those that are on and those that are not
    const uint8_t *thresholds;
    void *outputs_values;    // [L][N][s][v] where positions weigh anything, else 0; null: the gradient is computed
};
enum LayerOffset {
    ATTENTION_NORM, ATTENTION_NORM_BIAS, CANON_A, QUERY_KEY_VALUE, QUERY_KEY_VALUE_BIAS, CANON_B, OUTPUT, OUTPUT_BIAS,
    MLP_NORM, MLP_NORM_BIAS, CANON_C, MLP_IN, MLP_IN_BIAS, CANON_D, MLP_OUT, MLP_OUT_BIAS, LAYER_OFFSETS
};
enum EndOffset { READING, READING_BIAS, POSITIONS, NORM, NORM_BIAS, WRITING, WRITING_BIAS, END_OFFSETS };
enum Knob { EPSILON, CAP, EMBEDDING_SCALE, ATTENTION_SCALE, MLP_SCALE, WEIGHTS_SCALE, KNOBS };
enum Canon { AT_A = 1, AT_B = 2, AT_C = 4, AT_D = 8 };
enum DropoutFamily { EMBEDDING = 1, ATTENTION = 2, MLP = 4, WEIGHTS = 8 };
