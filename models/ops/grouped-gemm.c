#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_grouped_gemm;
const OpClass op_grouped_gemm = {.id = "grouped_gemm", .title = "grouped GEMM"};
#endif
