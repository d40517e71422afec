#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_router;
const OpClass op_router = {.id = "router", .title = "router"};
#endif
