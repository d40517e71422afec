#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_dispatch;
const OpClass op_dispatch = {.id = "dispatch", .title = "dispatch all-to-all"};
#endif
