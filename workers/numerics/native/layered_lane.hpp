// A lane's loss and gradient: what it is made of. How it is computed is in layered_lane_*.hpp.
//
// Legend as in layered.hpp. D, H, F, O: d, the channels of all heads, f, v, each padded to registers; U distinct rows.
#pragma once
#include "losses.hpp"
#include "parts.hpp"
#include "plan.hpp"

namespace layered {

// Rows of a block: enough to use a weight that was fetched a hundred times, and few enough for the activations of small
// models to stay in the second-level cache. Between 56 and 220 rows time hardly depends on it.
constexpr int BLOCK_ROWS = 112;
constexpr int LARGE_BLOCK_ROWS = 256; // of a large model, which packs its matrices once a block
constexpr std::size_t LOGITS_BYTES = 128 * 1024;
constexpr std::size_t LARGE_LOGITS_BYTES = std::size_t(16) << 20; // of a large model, whose gradient is read once a chunk

template <typename T> class LayeredLane {
  public:
    LayeredLane(const Plan &plan, Memory &memory, int most_rows)
        : plan_(plan), N(plan.batch), s(plan.length), d(plan.width), h(plan.heads), c(d / h), f(plan.hidden),
          parts(plan.gates), v(plan.outputs), most_(most_rows), D(row_stride<T>(d)),
          H(row_stride<T>((h - 1) * c + padded(c, W<T>))), F(row_stride<T>(parts * padded(f, W<T>))),
          O(row_stride<T>(v)), layers_(plan.depth) {
        lay_out(memory);
    }

    void gradient(int64_t lane) {
        gradient_ = static_cast<T *>(plan_.gradient) + lane * plan_.total;
        std::memset(gradient_, 0, sizeof(T) * plan_.total);
        open(lane);
        loss_ = 0;
        for (int next = 0; next < N;) {
            next = take_block(next);
            if (loss_rows_.empty()) continue;
            forward();
            backward();
        }
        close_table();
        for (int l = 0; l < plan_.depth; l++) write(layers_[l], plan_.layers + l * LAYER_OFFSETS);
        final_gain_.write(gradient_), final_bias_.write(gradient_), writing_bias_.write(gradient_);
        T *to = gradient_ + (plan_.tied ? plan_.ends[READING] : plan_.ends[WRITING]);
        writing_.write(to, plan_.tied ? d : v, plan_.tied);
        if (plan_.features) reading_.write(gradient_ + plan_.ends[READING], d), reading_bias_.write(gradient_);
        static_cast<T *>(plan_.loss_values)[lane] = T(loss_);
    }

    // The outputs at all positions that weigh anything, as a trained model answers: without dropout.
    void evaluate(int64_t lane) {
        open(lane);
        T *outputs = static_cast<T *>(plan_.outputs_values) + lane * N * s * v;
        std::memset(outputs, 0, sizeof(T) * N * s * v);
        for (int next = 0; next < N;) {
            next = take_block(next);
            if (loss_rows_.empty()) continue;
            forward();
            write_outputs(outputs);
        }
    }

  private:
    const Plan &plan_;
    const int N, s, d, h, c, f, parts, v, most_;
    const int D, H, F, O;
    std::vector<Layer<T>> layers_;
    Matrix<T> reading_, writing_;
    Vector<T> reading_bias_, writing_bias_, final_gain_, final_bias_;
    Normed<T> final_normed_;
    Attention<T> attention_;
    ShortAttention<T> short_;
    const T *parameters_;
    T *gradient_;
    T epsilon_ = 0, cap_ = 0;
    DropoutSite<T> embedding_site_;
    std::vector<DropoutSite<T>> attention_sites_, mlp_sites_, weight_sites_;
    double loss_ = 0;

    // Of this lane.
    const int64_t *tokens_ = nullptr, *answers_ = nullptr, *lengths_ = nullptr;
    const T *features_ = nullptr, *numbers_ = nullptr, *loss_weights_ = nullptr, *placed_ = nullptr;
    const T *cosines_ = nullptr, *sines_ = nullptr;

    // Of a block: its rows' positions in the lane and in their sequences, and the rows that carry loss.
    int rows_ = 0;
    std::vector<Sequence> sequences_, last_;    // with all rows for queries, and with those that carry loss
    std::vector<int> all_positions_, last_positions_; // what their `positions` point into
    std::vector<int64_t> row_numbers_;          // n s + i
    std::vector<int> loss_rows_;
    bool narrow_ = false; // the last layer ends with the rows that carry loss

    T *stream_;                                            // [R][D] that the first layer reads
    T *inputs_;                                            // [R][features]
    T *ended_, *final_;                                    // [Q][D] rows that carry loss, before and after the last norm
    T *outputs_;                                           // [chunk][O]
    T *stream_g_, *next_g_, *branch_g_, *spare_g_;         // [R][D]
    T *mixed_g_, *q_g_, *k_g_, *v_g_, *head_g_;            // [R][H]
    T *active_g_, *hidden_g_;                              // [R][F]
    T *channel_;                                           // [c] one head's numbers of a row
    Room<T> room_;                                         // of a large model
    T *capped_;                                            // [O] tanh of a row of outputs
    uint8_t *embedding_bytes_;
    int chunk_ = 0;

    // The first layer's rows, once for each kind of row in the batch.
    int most_distinct_ = 0, distinct_ = 0;                 // 0: it is worked on row by row
    std::vector<int> kinds_, kind_of_key_;                 // [N s] of a position; of a token, or token and position
    std::vector<int64_t> firsts_;                          // [U] the first position of a kind
    Normed<T> table_normed_;
    T *table_given_, *table_g_;                            // [U][D] what the maps read, and the gradient by it
    T *table_q_, *table_k_, *table_v_, *table_q_g_, *table_k_g_, *table_v_g_; // [U][H]

    bool has_dropout(int site) const { return plan_.dropout & site; }
    bool has(int letter) const { return plan_.canon & letter; }
    bool keeps_unmixed_heads() const { return plan_.query_key_norm || has(AT_B); } // queries and keys before either

    // -- memory: layered_lane_memory.hpp
    void lay_out(Memory &memory);
    void lay_out(Memory &memory, Layer<T> &one, const int64_t *at, int number);

    // -- one lane: layered_lane_memory.hpp
    void open(int64_t lane);
    void open_parameters(int64_t lane);
    template <typename Work> static void each_vector(Layer<T> &one, Work work);
    void read(Layer<T> &one, const int64_t *at);
    void write(Layer<T> &one, const int64_t *at);

    // -- a block of sequences: layered_lane_block.hpp
    int take_block(int first);
    // Whether a position has a loss; with a weight of NaN too, so that it reaches the loss.
    bool has_loss(int64_t number) const { return !loss_weights_ || loss_weights_[number] != T(0); }
    bool is_narrow(int layer) const { return narrow_ && layer == plan_.depth - 1; }
    int ends_of(int layer) const { return is_narrow(layer) ? int(loss_rows_.size()) : rows_; }
    const std::vector<Sequence> &seen_by(int layer) const { return is_narrow(layer) ? last_ : sequences_; }
    // The row of the block that row i of a layer's end is.
    int row_of(int layer, int i) const { return is_narrow(layer) ? loss_rows_[i] : i; }
    int position_of(int row) const { return all_positions_[row]; }
    void draw(const DropoutSite<T> &site, uint8_t *bytes) const;
    uint8_t *bytes_of(const Sequence &one, uint8_t *bytes) const { return bytes + std::size_t(one.first) * d; }
    void drop(const DropoutSite<T> &site, T *rows, const uint8_t *bytes, int layer, int count) const;
    static void add(T *to, const T *from, int stride);

    // -- layered_lane_table.hpp
    void lay_out_table(Memory &memory);
    void find_distinct();
    void open_table();
    void look_up();
    void look_up_gradient();
    void close_table();
    bool looks_up(int layer) const { return distinct_ && layer == 0; }
    std::ptrdiff_t kind_of(int row) const { return kinds_[row_numbers_[row]]; }

    // -- layered_lane_forward.hpp
    void forward();
    void norm(T *out, const Normed<T> &kept, const T *rows, int count, const Vector<T> &gain, const Vector<T> &bias) const;
    void norm_gradient(T *rows, const Normed<T> &kept, int count, const Vector<T> &gain, const Vector<T> &bias) const;
    void begin();
    void embed(T *to, int64_t number) const;
    void map(int l, const T *stream);
    void attend(int l, const T *stream);
    template <typename Alike, typename One> void each_sequence(int l, Alike alike, One one);
    std::ptrdiff_t weights_offset(const Sequence &one, int head) const;
    std::ptrdiff_t kept_offset(int l, const Sequence &one, int head) const;
    T *logits_at(int l, std::ptrdiff_t at) const { return layers_[l].logits ? layers_[l].logits + at : nullptr; }
    T slope(int head) const { return plan_.slopes ? static_cast<const T *>(plan_.slopes)[head] : T(0); }
    const T *pass_mlp(int l);
    const T *ended() const { return plan_.pre_norm ? final_ : ended_; } // rows that carry loss, as outputs are made of
    void unit_heads(T *unit, T *factors, T *rows, int count) const;
    void unit_heads_gradient(T *rows, const T *unit, const T *factors, int count);
    void turn_rows(T *rows, int l, int count, T way, bool ends = true) const;

    void write_outputs(T *to) const;
    void cap(T *row) const;

    // -- layered_lane_backward.hpp
    void backward();
    void score_outputs();
    void score(T *row, int64_t number);
    void pass_mlp_gradient(int l, T *g);
    void attend_gradient(int l, T *g, T *to);
    const T *dropped_gradient(const DropoutSite<T> &site, const T *g, const uint8_t *bytes, int l, int count);
    void map_gradient(int l, T *to);
    void begin_gradient(T *g);
    void learn_embedding(const T *__restrict g, int64_t number);
    void learn_maps(Layer<T> &one, const T *asked, int queries, const T *q_g, const T *given, int rows, const T *k_g,
                    const T *v_g) const;
};

} // namespace layered
