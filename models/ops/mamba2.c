#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_mamba2;
const OpClass op_mamba2 = {.id = "mamba2", .title = "Mamba-2"};
#endif
