#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_residual_add;
const OpClass op_residual_add = {.id = "residual_add", .title = "residual add"};
#endif
