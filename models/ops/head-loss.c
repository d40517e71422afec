#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_head_loss;
const OpClass op_head_loss = {.id = "head_loss", .title = "fused head and cross entropy"};
#endif
