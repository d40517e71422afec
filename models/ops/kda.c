#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_kda;
const OpClass op_kda = {.id = "kda", .title = "KDA"};
#endif
