// One head of one sequence, the sizes of its arrays, and its tokens as standardized rows.
#pragma once
#include "forms/dropout.h"
#include "forms/workspace.h"
#include "tiles/dense.h"
#include "tiles/primitives.h"
#include "tiles/standardize.h"

namespace FM_LEVEL {

struct Range {
  int64_t begin, end;
};

// A key head with the query heads that read it, in one sequence.
struct Head {
  const FmCall* call;
  int64_t batch, key_head, groups;
  int64_t query_start, queries, key_start, keys;
  int64_t state;      // index of its state
  double lowest = 0;  // with decays: the exponent of a weight below which it need not be computed, see Reach
};

FM_INLINE int64_t at(const FmTensor& t, int64_t batch, int64_t head, int64_t token) {
  return batch * t.batch_stride + head * t.head_stride + token * t.token_stride;
}

template <class T>
struct Sizes {
  int raw_dim;   // channels of queries and keys in memory
  bool reduces;  // all channels but the last are used: see reduce_row
  Features<T> features;
  Shape<T> shape;
  int value_dim, chunk;
  bool wraps;    // rows are continued cyclically: degree 2 shifts them
  bool drops;    // features are dropped
  bool packs;    // values are packed where each is used often enough to pay for it
  bool centres;  // sums are about a centre; without squares too few digits are lost for its 2% to 7%
  int64_t x_pitch, u_pitch, dim_pitch;
  // `is_private`: no state comes in or goes out in the public layout, which has all channels.
  Sizes(const FmCall& c, int order, bool is_private = false)
      : raw_dim((int)c.head_dim),
        reduces(is_private && order == 2 && c.normalize == FM_STANDARDIZE && raw_dim > 2 && !drops_features(c)),
        features(raw_dim - reduces, (int)c.value_dim + 1, order),
        shape{raw_dim - reduces, (int)c.value_dim + 1, (int)c.order},
        value_dim((int)c.value_dim),
        chunk((int)c.chunk),
        wraps(order == 2),
        drops(drops_features(c)),
        packs(order == 2),
        centres(is_private && order == 2 && !drops),
        x_pitch(features.row_pitch()),
        u_pitch(features.head),
        dim_pitch(round_up(c.head_dim, WIDE<T>)) {}
  // Size of [sub][dim][W], with room to transpose all channels at once. What is written behind `dim` is not used.
  int64_t transposed_size(int64_t tokens) const { return tokens * shape.dim + (reduces ? WIDE<T> : 0); }
  int64_t public_state_size() const {
    const int64_t dim = shape.dim;
    return (1 + dim + (features.order == 2 ? dim * (dim + 1) / 2 : 0)) * shape.columns;
  }
};

// Queries or keys, normalized as the call says, times `factor`.
template <class T>
void load_vectors(const FmCall& c, const FmTensor& from, int64_t offset, int count, const Sizes<T>& s, T factor, T* x,
                  T* rstd) {
  const TensorRows rows{from.data, from.type, offset, from.token_stride, count, s.raw_dim};
  load_normalized(c.normalize, rows, (T)c.eps, factor, x, s.x_pitch, rstd);
}

}  // namespace FM_LEVEL
