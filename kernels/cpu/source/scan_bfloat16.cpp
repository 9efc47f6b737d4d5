#include "entry.h"

GEOMANO_ENTRY(bfloat16, c10::BFloat16, float)
