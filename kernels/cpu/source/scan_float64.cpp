#include "entry.h"

GEOMANO_ENTRY(float64, double, double)
