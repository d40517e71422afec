#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_add;
const OpClass op_add = {.id = "add", .title = "residual add"};
#endif
