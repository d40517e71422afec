#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_permute;
const OpClass op_permute = {.id = "permute", .title = "permute"};
#endif
