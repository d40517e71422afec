#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_sparse_attention;
const OpClass op_sparse_attention = {.id = "sparse_attention", .title = "sparse attention"};
#endif
