#include "entry.h"

GEOMANO_ENTRY(float32, float, float)
