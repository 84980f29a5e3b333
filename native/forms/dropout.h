// Dropout of a call: the words of its features, and the masks of a chunk of its tokens.
#pragma once
#include "api.h"
#include "forms/workspace.h"
#include "tiles/features.h"

namespace FM_LEVEL {

FM_INLINE bool drops_features(const FmCall& c) { return c.dropout == FM_STANDARD || c.dropout == FM_QUADRATIC; }
FM_INLINE bool drops_tokens(const FmCall& c) { return c.dropout == FM_TOKENS; }

FM_INLINE uint64_t dropout_root(const FmCall& c) { return mix((uint64_t)*c.dropout_seed); }
FM_INLINE uint32_t feature_word(uint64_t root, int64_t row) { return (uint32_t)mix((uint64_t)row - root); }
FM_INLINE int32_t least_kept(const FmCall& c) { return (int32_t)((c.dropped - (1 << 15)) * (1 << 16)); }
FM_INLINE double kept_scale(const FmCall& c) { return (double)(1 << 16) / (double)((1 << 16) - c.dropped); }

// The words of the features in blocks: [blocks][W].
template <class T>
struct FeatureWords {
  uint32_t* words = nullptr;
  bool are_made = false;

  void take(Workspace& workspace, const Features<T>& f) { words = workspace.take<uint32_t>((int64_t)f.blocks * WIDE<T>); }
  // For existing features; lanes behind the last are not used.
  void make(const FmCall& c, const Features<T>& f) {
    if (are_made || !drops_features(c)) return;
    are_made = true;
    const uint64_t root = dropout_root(c);
    for (int b = 0; b < f.blocks; b++) {
      const Block block = f.block(b);
      uint32_t* to = words + b * WIDE<T>;
      for (int lane = 0; lane < WIDE<T>; lane++)
        to[lane] = lane < block.lanes ? feature_word(root, f.public_row(block, lane)) : 0;
    }
  }
};

// The masks of a chunk of queries or keys.
template <class T>
struct TokenDropout {
  uint32_t *add, *multiply;  // the words of its tokens
  T* factors;                // one per token, where whole tokens are dropped
  bool drops = false;        // true if whole tokens are dropped
  T scale = 1;

  void take(Workspace& workspace, int64_t capacity) {
    const int64_t whole = round_up(capacity, WIDE<T>);
    add = workspace.take<uint32_t>(whole);
    multiply = workspace.take<uint32_t>(whole);
    factors = workspace.take<T>(whole);
  }
  // `first` of head `index`, counted through batch and heads, of `tokens` each; side 0 are queries, 1 keys.
  void load(const FmCall& c, int side, int64_t index, int64_t tokens, int64_t first, int count) {
    if (c.dropout == FM_NO_DROPOUT) return;
    const uint64_t root = dropout_root(c), start = mix(root + side) + (uint64_t)(index * tokens + first);
    for (int n = 0; n < count; n++) {
      const uint64_t hash = mix(start + n);
      add[n] = (uint32_t)hash, multiply[n] = (uint32_t)(hash >> 32) | 1;
    }
    for (int n = count; n < round_up(count, WIDE<T>); n++) add[n] = multiply[n] = 0;
    drops = drops_tokens(c);
    if (!drops) return;
    scale = (T)kept_scale(c);
    FeatureMasks<T> masks;
    masks.least = least_kept(c), masks.scale = scale;
    const Words<T> feature = broadcast_word<T>(feature_word(root, 0));
    for (int n = 0; n < count; n += LANES<T>)
      store(factors + n, kept(masks, broadcast((T)1), feature, {load_words<T>(add + n), load_words<T>(multiply + n)}));
  }
  FeatureMasks<T> masks(const FmCall& c, const FeatureWords<T>& features) const {
    FeatureMasks<T> m;
    if (!drops_features(c)) return m;
    m.features = features.words, m.add = add, m.multiply = multiply;
    m.least = least_kept(c), m.scale = (T)kept_scale(c), m.linear = c.dropout == FM_STANDARD;
    return m;
  }
};

}  // namespace FM_LEVEL
