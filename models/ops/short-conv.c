#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_short_conv;
const OpClass op_short_conv = {.id = "short_conv", .title = "short convolution"};
#endif
