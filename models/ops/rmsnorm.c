#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_rmsnorm;
const OpClass op_rmsnorm = {.id = "rmsnorm", .title = "RMSNorm"};
#endif
