// Checks a built kernel library through its C interface against plain loops in fp64, without Python or torch.
//
//   c++ -std=c++17 -O1 -I native native/tests/check_kernels.cpp -o check_kernels -ldl
//   ./check_kernels src/fastmax/backends/native/_kernels.so
//
// It runs every instruction set level of the library that this processor has: both forms, forward and backward, states and
// decoding. Each call must leave the floating-point mode of the caller and of its threads as it was.
// tests/backends/test_check_kernels.py runs it on this machine and, in an emulator, for aarch64.
#include <dlfcn.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "api.h"

// The floating-point mode: rounding and flushing, without the flags that arithmetic raises.
#if defined(__x86_64__)
#include <xmmintrin.h>
static const char PROCESSOR[] = "x86-64";
static const uint64_t FLUSHES = 0x8040;
static uint64_t mode() { return _mm_getcsr() & ~0x3fu; }
static void set_mode(uint64_t x) { _mm_setcsr((unsigned)x); }
#elif defined(__aarch64__)
static const char PROCESSOR[] = "aarch64";
static const uint64_t FLUSHES = 1 << 24;
static uint64_t mode() {
  uint64_t x;
  asm volatile("mrs %0, fpcr" : "=r"(x));
  return x;
}
static void set_mode(uint64_t x) { asm volatile("msr fpcr, %0" : : "r"(x)); }
#else  // not looked at
static const char PROCESSOR[] = "another processor";
static const uint64_t FLUSHES = 0;
static uint64_t mode() { return 0; }
static void set_mode(uint64_t) {}
#endif

static const double EPS = 1e-6;  // of the normalization
static const int BATCH = 1, KEY_HEADS = 2, GROUPS = 2, QUERY_HEADS = KEY_HEADS * GROUPS;
static const int THREADS = 3;  // more than key heads, so that these are cut into segments
static const int CHUNK = 32;

struct Case {
  int type, form, order;
  bool is_causal;
  double decay;  // the mean of log_decay, 0: none
  int normalize, dim, value_dim, tokens;
  bool is_masked;         // some keys are hidden
  bool flushes;           // the caller flushes denormals to zero
  double value_size = 1;  // of v

  int arithmetic() const { return type == FM_F64 ? FM_F64 : FM_F32; }
  double scale() const { return order == 2 ? 0.5 : 0.5 / dim; }  // keeps the denominators of order 1 away from 0
  std::string text(const char* level) const {
    char line[256];
    snprintf(line, sizeof line,
             "level %s, type %d, form %d, order %d, %s, decay %g, normalize %d, %d and %d channels, %d tokens%s%s, v of %g",
             level, type, form, order, is_causal ? "causal" : "unmasked", decay, normalize, dim, value_dim, tokens,
             is_masked ? ", some keys hidden" : "", flushes ? ", the caller flushes to zero" : "", value_size);
    return line;
  }
};

// bf16 and fp16 by their fields: sign, exponent, mantissa. All numbers here are in range.
struct Half {
  int exponent_bits, mantissa_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  double decode(uint16_t bits) const {
    const int mantissa = bits & ((1 << mantissa_bits) - 1), exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
    const double fraction = ldexp(mantissa, -mantissa_bits) + (exponent != 0);
    return copysign(ldexp(fraction, std::max(exponent, 1) - bias()), bits >> 15 ? -1.0 : 1.0);
  }
  uint16_t encode(double x) const {
    const int exponent = x == 0 ? 1 - bias() : std::max(ilogb(x), 1 - bias());
    const double units = nearbyint(ldexp(fabs(x), mantissa_bits - exponent));  // the hidden bit adds 1 to the exponent
    return (uint16_t)((signbit(x) ? 1 << 15 : 0) + ((exponent - 1 + bias()) << mantissa_bits) + (int)units);
  }
};
static const Half BF16 = {8, 7}, F16 = {5, 10};

static double epsilon(int type) {
  return type == FM_F64 ? DBL_EPSILON : type == FM_F32 ? FLT_EPSILON : ldexp(1, type == FM_BF16 ? -7 : -10);
}

// (batch, heads, tokens, channels) in memory as (batch, tokens, heads, channels), as the projections of a layer leave it.
struct Tensor {
  int type, heads, tokens, channels;
  std::vector<double> memory;  // of any type: aligned, and large enough

  Tensor(int type, int heads, int tokens, int channels)
      : type(type), heads(heads), tokens(tokens), channels(channels), memory(size()) {}
  int64_t size() const { return (int64_t)BATCH * tokens * heads * channels; }
  int64_t at(int b, int h, int n) const { return (((int64_t)b * tokens + n) * heads + h) * channels; }
  double get(int64_t i) const {
    if (type == FM_F64) return memory[i];
    if (type == FM_F32) return ((const float*)memory.data())[i];
    return (type == FM_BF16 ? BF16 : F16).decode(((const uint16_t*)memory.data())[i]);
  }
  void set(int64_t i, double x) {
    if (type == FM_F64)
      memory[i] = x;
    else if (type == FM_F32)
      ((float*)memory.data())[i] = (float)x;
    else
      ((uint16_t*)memory.data())[i] = (type == FM_BF16 ? BF16 : F16).encode(x);
  }
  char* address(int64_t i) {
    return (char*)memory.data() + i * (type == FM_F64 ? sizeof(double) : type == FM_F32 ? sizeof(float) : sizeof(uint16_t));
  }
  // The tokens from `first` on.
  FmTensor from(int first) {
    return {address(at(0, 0, first)), (int64_t)tokens * heads * channels, channels, (int64_t)heads * channels, type};
  }
};

static double next_random() {  // in (-1, 1), the same numbers on every machine
  static uint64_t state = 1;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (double)(int32_t)(state >> 32) / 2147483648.0;
}

struct Inputs {
  Tensor q, k, v, d_o, log_decay;
  std::vector<uint8_t> mask;

  explicit Inputs(const Case& c)
      : q(c.type, QUERY_HEADS, c.tokens, c.dim),
        k(c.type, KEY_HEADS, c.tokens, c.dim),
        v(c.type, KEY_HEADS, c.tokens, c.value_dim),
        d_o(c.type, QUERY_HEADS, c.tokens, c.value_dim),
        log_decay(c.arithmetic(), KEY_HEADS, c.tokens, 1),
        mask(BATCH * c.tokens, 1) {
    for (Tensor* t : {&q, &k, &v, &d_o})
      for (int64_t i = 0; i < t->size(); i++) t->set(i, 2 * next_random() * (t == &v ? c.value_size : 1));
    for (int64_t i = 0; i < log_decay.size(); i++) log_decay.set(i, c.decay * (1 + next_random()));
    for (int n = 1; c.is_masked && n < c.tokens; n++) mask[n] = n % 3 != 1;  // every query sees key 0
  }
};

template <class T>
void normalize(int how, const Tensor& x, int64_t at, std::vector<T>& hat, T& factor) {
  const int dim = x.channels;
  T mean = 0, square = 0;
  for (int i = 0; i < dim; i++) mean += how == FM_STANDARDIZE ? (T)x.get(at + i) / dim : 0;
  for (int i = 0; i < dim; i++) hat[i] = (T)x.get(at + i) - mean, square += hat[i] * hat[i];
  factor = how == FM_AS_IT_IS ? 1 : 1 / std::sqrt(square / dim + (T)EPS);
  for (int i = 0; i < dim; i++) hat[i] *= factor;
}
// The gradient of x from that of the normalized x, in place.
template <class T>
void normalize_vjp(int how, const T* hat, T factor, int dim, T* d) {
  T mean = 0, along = 0;
  for (int i = 0; i < dim; i++) mean += how == FM_STANDARDIZE ? d[i] / dim : 0, along += d[i] * hat[i] / dim;
  for (int i = 0; how != FM_AS_IT_IS && i < dim; i++) d[i] = factor * (d[i] - mean - hat[i] * along);
}

// The definition, and its gradients by the chain rule. Each vector is laid out as the tensor of its name.
template <class T>
struct Plain {
  std::vector<T> o, g, d_q, d_k, d_v, d_decay;

  Plain(const Case& c, const Inputs& in)
      : o(in.d_o.size()),
        g(BATCH * QUERY_HEADS * c.tokens),
        d_q(in.q.size()),
        d_k(in.k.size()),
        d_v(in.v.size()),
        d_decay(in.log_decay.size()) {
    const int dim = c.dim;
    for (int b = 0; b < BATCH; b++)
      for (int kh = 0; kh < KEY_HEADS; kh++) {
        std::vector<std::vector<T>> keys(c.tokens, std::vector<T>(dim));
        std::vector<T> factors(c.tokens);
        std::vector<double> sums(c.tokens);  // of log_decay
        for (int n = 0; n < c.tokens; n++) {
          normalize(c.normalize, in.k, in.k.at(b, kh, n), keys[n], factors[n]);
          sums[n] = in.log_decay.get(in.log_decay.at(b, kh, n)) + (n ? sums[n - 1] : 0);
        }
        for (int h = kh * GROUPS; h < (kh + 1) * GROUPS; h++)
          for (int i = 0; i < c.tokens; i++) see_keys(c, in, b, kh, h, i, keys, sums);
        for (int n = 0; n < c.tokens; n++) normalize_vjp(c.normalize, keys[n].data(), factors[n], dim, &d_k[in.k.at(b, kh, n)]);
        double behind = 0;  // a decay is in the sums of its token and of those behind it
        for (int n = c.tokens; n-- > 0;) d_decay[in.log_decay.at(b, kh, n)] = (T)(behind += d_decay[in.log_decay.at(b, kh, n)]);
      }
  }

 private:
  void see_keys(const Case& c, const Inputs& in, int b, int kh, int h, int i, const std::vector<std::vector<T>>& keys,
                const std::vector<double>& sums) {
    const int dim = c.dim, value_dim = c.value_dim;
    const T scale = (T)c.scale();
    const int64_t at_o = in.d_o.at(b, h, i), at_g = ((int64_t)b * c.tokens + i) * QUERY_HEADS + h;
    const int count = c.is_causal ? i + 1 : c.tokens;
    std::vector<T> q(dim), s(count), fade(count);
    T factor;
    normalize(c.normalize, in.q, in.q.at(b, h, i), q, factor);
    for (int j = 0; j < count; j++) {
      for (int m = 0; m < dim; m++) s[j] += scale * q[m] * keys[j][m];
      fade[j] = in.mask[b * c.tokens + j] ? (T)exp(-fabs(sums[i] - sums[j])) : 0;  // without decay all sums are 0
      const T weight = (c.order == 2 ? 1 + s[j] + s[j] * s[j] / 2 : 1 + s[j]) * fade[j];
      g[at_g] += weight;
      for (int m = 0; m < value_dim; m++) o[at_o + m] += weight * (T)in.v.get(in.v.at(b, kh, j) + m);
    }
    for (int m = 0; m < value_dim; m++) o[at_o + m] /= g[at_g];
    T* d_query = &d_q[in.q.at(b, h, i)];
    for (int j = 0; j < count; j++) {
      const T weight = (c.order == 2 ? 1 + s[j] + s[j] * s[j] / 2 : 1 + s[j]) * fade[j];
      T d_weight = 0;
      for (int m = 0; m < value_dim; m++) {
        const T d = (T)in.d_o.get(at_o + m) / g[at_g];
        d_weight += d * ((T)in.v.get(in.v.at(b, kh, j) + m) - o[at_o + m]);
        d_v[in.v.at(b, kh, j) + m] += weight * d;
      }
      const T d_s = scale * d_weight * fade[j] * (c.order == 2 ? 1 + s[j] : 1);
      for (int m = 0; m < dim; m++) d_query[m] += d_s * keys[j][m], d_k[in.k.at(b, kh, j) + m] += d_s * q[m];
      const T share = j < i ? weight * d_weight : j > i ? -weight * d_weight : 0;  // of the exponent -|c_i - c_j|
      d_decay[in.log_decay.at(b, kh, i)] += share, d_decay[in.log_decay.at(b, kh, j)] -= share;
    }
    normalize_vjp(c.normalize, q.data(), factor, dim, d_query);
  }
};

struct Library {
  int64_t (*level_count)();
  const char* (*level_name)(int64_t);
  int (*level_runs)(int64_t);
  int (*forward)(int64_t, const FmCall*, FmParallelFor, int64_t);
  int (*backward)(int64_t, const FmCall*, FmParallelFor, int64_t);
  int (*step)(int64_t, const FmStep*, FmParallelFor, int64_t);

  explicit Library(const char* path) {
    void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) printf("%s\n", dlerror()), exit(2);
    find(handle, "fm_level_count", level_count), find(handle, "fm_level_name", level_name);
    find(handle, "fm_level_runs", level_runs), find(handle, "fm_forward", forward);
    find(handle, "fm_backward", backward), find(handle, "fm_step", step);
  }

 private:
  template <class F>
  static void find(void* handle, const char* name, F& function) {
    function = (F)dlsym(handle, name);
    if (!function) printf("the library has no %s\n", name), exit(2);
  }
};

static int64_t mode_changes = 0;

// torch's pool, one range after another.
static int32_t in_turns(int64_t begin, int64_t end, int64_t grain, FmRange body, void* context) {
  for (; begin < end; begin += grain) {
    const uint64_t before = mode();
    body(begin, std::min(begin + grain, end), context);
    mode_changes += mode() != before;
  }
  return 0;
}

struct Check {
  const Case& c;
  const Library& library;
  Inputs in;
  Plain<double> exact;
  Plain<float> plain;
  int64_t level = 0, checked = 0, failed = 0;

  Check(const Case& c, const Library& library) : c(c), library(library), in(c), exact(c, in), plain(c, in) {}

  void run(int64_t at_level) {
    level = at_level;
    check_gradients();
    if (c.form == FM_FACTORIZED && c.is_causal && !c.is_masked) check_states();
  }

 private:
  void fail(const std::string& what) {
    failed++;
    printf("%s: %s\n", c.text(library.level_name(level)).c_str(), what.c_str());
  }
  // Runs a function of the library in the caller's mode, which it must leave alone.
  template <class F, class Call>
  void call(const char* name, F function, const Call& fields) {
    const uint64_t before = mode();
    if (c.flushes) set_mode(before | FLUSHES);
    const uint64_t during = mode();
    mode_changes = 0;
    const int status = function(level, &fields, in_turns, THREADS);
    mode_changes += mode() != during;
    set_mode(before);
    if (status != FM_OK) fail(std::string(name) + " returns status " + std::to_string(status));
    if (mode_changes) fail(std::string(name) + " changes the floating-point mode");
  }
  FmCall new_call(int first, int count) {
    FmCall f = {};
    f.type = c.arithmetic(), f.batch = BATCH, f.query_heads = QUERY_HEADS, f.key_heads = KEY_HEADS;
    f.queries = f.keys = count, f.head_dim = c.dim, f.value_dim = c.value_dim, f.order = c.order;
    f.is_causal = c.is_causal, f.normalize = c.normalize, f.chunk = CHUNK, f.sequences = -1, f.form = c.form;
    f.scale = c.scale(), f.eps = EPS;
    f.q = in.q.from(first), f.k = in.k.from(first), f.v = in.v.from(first);
    if (c.decay != 0) f.log_decay = in.log_decay.from(first);
    if (c.is_masked) f.mask = in.mask.data(), f.mask_batch_stride = c.tokens, f.mask_token_stride = 1;
    return f;
  }

  void check_gradients() {
    Tensor o(c.type, QUERY_HEADS, c.tokens, c.value_dim), g(c.arithmetic(), QUERY_HEADS, c.tokens, 1);
    Tensor d_q = in.q, d_k = in.k, d_v = in.v, d_decay = in.log_decay;
    FmCall f = new_call(0, c.tokens);
    f.o = o.from(0), f.g = g.from(0);
    call("forward", library.forward, f);
    compare("o", o, exact.o, plain.o);
    compare("g", g, exact.g, plain.g);
    f.d_o = in.d_o.from(0), f.d_q = d_q.from(0), f.d_k = d_k.from(0), f.d_v = d_v.from(0);
    if (c.decay != 0) f.d_decay = d_decay.from(0);
    call("backward", library.backward, f);
    compare("d_q", d_q, exact.d_q, plain.d_q);
    compare("d_k", d_k, exact.d_k, plain.d_k);
    compare("d_v", d_v, exact.d_v, plain.d_v);
    if (c.decay != 0) compare("d_decay", d_decay, exact.d_decay, plain.d_decay);
  }

  // The first tokens leave a state, from which a second call and steps of decoding go on.
  void check_states() {
    const int first = c.tokens / 2, columns = c.value_dim + 1, capacity = 6;
    const int features = 1 + c.dim + (c.order == 2 ? c.dim * (c.dim + 1) / 2 : 0);
    Tensor o(c.type, QUERY_HEADS, c.tokens, c.value_dim), state(c.arithmetic(), KEY_HEADS, features, columns);
    FmCall begin = new_call(0, first);
    begin.o = o.from(0), begin.state_out = state.address(0);
    call("forward to a state", library.forward, begin);
    FmCall rest = new_call(first, c.tokens - first);
    rest.o = o.from(first), rest.state_in = state.address(0);
    call("forward from a state", library.forward, rest);
    compare("o by a state", o, exact.o, plain.o);

    Tensor recent_k(c.arithmetic(), KEY_HEADS, capacity, c.dim), recent_u(c.arithmetic(), KEY_HEADS, capacity, columns);
    Tensor recent_decay(c.arithmetic(), KEY_HEADS, capacity, 1);
    FmStep s = {};
    s.type = c.arithmetic(), s.batch = BATCH, s.query_heads = QUERY_HEADS, s.key_heads = KEY_HEADS;
    s.head_dim = c.dim, s.value_dim = c.value_dim, s.order = c.order, s.normalize = c.normalize;
    s.recent_capacity = capacity, s.scale = c.scale(), s.eps = EPS, s.total = state.address(0);
    s.recent_k = recent_k.address(0), s.recent_u = recent_u.address(0);
    if (c.decay != 0) s.recent_decay = recent_decay.address(0);
    for (int n = first; n < c.tokens; n++) {
      s.fold = s.recent_count == capacity ? 4 : 0;
      s.q = in.q.from(n), s.k = in.k.from(n), s.v = in.v.from(n), s.o = o.from(n);
      if (c.decay != 0) s.log_decay = in.log_decay.from(n);
      call("step", library.step, s);
      s.recent_count += 1 - s.fold;
    }
    compare("o by steps", o, exact.o, plain.o);
  }

  // The budget of tests/support.py: twice the error of the plain loops in the same precision, and rounding. Where tensors are
  // of a half type, a level may round factors of products to it, and gradients of decays are made of the rounded o. Each token
  // may lose the smallest normal number, if denormals are flushed.
  void compare(const char* what, const Tensor& found, const std::vector<double>& exact, const std::vector<float>& plain) {
    const double operations = c.type == FM_F64 ? 16000 : 16, smallest = c.type == FM_F64 ? DBL_MIN : FLT_MIN;
    Tensor rounded(c.type, 1, 1, 1);
    double error = 0, plain_error = 0, largest = c.value_size;
    for (int64_t i = 0; i < found.size(); i++) {
      rounded.set(0, plain[i]);
      const double off = fabs(found.get(i) - exact[i]);
      error = off <= error ? error : off;  // NaN too
      largest = fmax(largest, fabs(exact[i]));
      if (c.type != FM_F64) plain_error = fmax(plain_error, fabs(rounded.get(0) - exact[i]));
    }
    const double budget = 2 * plain_error + operations * epsilon(c.type) * largest + c.tokens * smallest;
    checked++;
    if (error <= budget) return;
    char text[128];
    snprintf(text, sizeof text, "%s is off by %.3g, the budget is %.3g", what, error, budget);
    fail(text);
  }
};

// Every type, form, order, mask and strength of decays; normalizations, sizes, hidden keys and the caller's mode in turns.
static std::vector<Case> cases() {
  std::vector<Case> all;
  const int sizes[][3] = {{32, 32, 70}, {19, 5, 97}, {8, 37, 33}, {16, 16, 1}};
  for (int type : {FM_F32, FM_F64, FM_BF16, FM_F16})
    for (int form : {FM_DENSE, FM_FACTORIZED})
      for (int order : {1, 2})
        for (int mask : {0, 1, 2, 3, 4, 5, 6}) {
          const int i = (int)all.size();
          const double decay = mask == 2 || mask == 5 ? -0.02 : mask == 3 || mask == 6 ? -0.7 : mask == 4 ? -30 : 0;
          const bool is_causal = mask > 0 && mask < 5;
          const int* size = sizes[i % 11 % 4];
          all.push_back(
              {type, form, order, is_causal, decay, i % 3, size[0], size[1], size[2], mask < 2 && i % 2 == 0, i % 7 < 3});
        }
  for (int type : {FM_F32, FM_F64})  // the form of each head by its decays
    for (bool is_causal : {false, true}) all.push_back({type, FM_BY_REACH, 2, is_causal, -0.3, FM_STANDARDIZE, 4, 4, 400});
  for (int form : {FM_DENSE, FM_FACTORIZED})  // denormal values and weights
    for (bool flushes : {false, true})
      all.push_back({FM_F32, form, 2, true, -2, FM_STANDARDIZE, 16, 16, 70, false, flushes, 1e-36});
  return all;
}

int main(int count, char** arguments) {
  if (count != 2) return printf("usage: %s LIBRARY\n", arguments[0]), 2;
  const Library library(arguments[1]);
  int64_t checked = 0, failed = 0;
  std::vector<int64_t> levels;
  for (int64_t level = 0; level < library.level_count(); level++)
    if (library.level_runs(level)) levels.push_back(level);
  for (const Case& c : cases()) {
    Check check(c, library);
    for (int64_t level : levels) check.run(level);
    checked += check.checked, failed += check.failed;
  }
  std::string names;
  for (int64_t level : levels) names += std::string(names.empty() ? "" : ", ") + library.level_name(level);
  printf("%s: %lld results at %s, %lld wrong\n", PROCESSOR, (long long)checked, names.c_str(), (long long)failed);
  return failed != 0 || checked == 0;
}
