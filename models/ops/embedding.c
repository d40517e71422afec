#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_embedding;
const OpClass op_embedding = {.id = "embedding", .title = "embedding lookup"};
#endif
