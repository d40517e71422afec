#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_linear;
const OpClass op_linear = {.id = "linear", .title = "linear"};
#endif
