#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_unpermute;
const OpClass op_unpermute = {.id = "unpermute", .title = "unpermute"};
#endif
