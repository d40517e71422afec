#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_cross_entropy;
const OpClass op_cross_entropy = {.id = "cross_entropy", .title = "cross entropy"};
#endif
