#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_attention;
const OpClass op_attention = {.id = "attention", .title = "attention"};
#endif
