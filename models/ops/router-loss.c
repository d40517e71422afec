#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_router_loss;
const OpClass op_router_loss = {.id = "router_loss", .title = "router loss"};
#endif
