#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_layernorm;
const OpClass op_layernorm = {.id = "layernorm", .title = "LayerNorm"};
#endif
