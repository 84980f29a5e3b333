// Prints the short name of the best level that this machine runs, for a build for this machine alone.
#include <stdio.h>

#include "levels.h"

int main() {
#if defined(__x86_64__)
#if defined(FM_KNOWS_AVX512BF16)
  if (describe_v4_bf16().runs) return puts("v4_bf16") < 0;
#endif
  if (describe_v4().runs) return puts("v4") < 0;
  if (describe_v3().runs) return puts("v3") < 0;
  if (describe_v2().runs) return puts("v2") < 0;
#endif
  return puts("generic") < 0;
}
