#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_rope;
const OpClass op_rope = {.id = "rope", .title = "RoPE"};
#endif
