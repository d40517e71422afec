#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_gated_norm;
const OpClass op_gated_norm = {.id = "gated_norm", .title = "gated head RMSNorm"};
#endif
