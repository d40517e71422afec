#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_l2norm;
const OpClass op_l2norm = {.id = "l2norm", .title = "L2 norm"};
#endif
