#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_expert_bias;
const OpClass op_expert_bias = {.id = "expert_bias", .title = "expert bias"};
#endif
